"""The targets of `penstock.lake`: a Delta table and an Iceberg table with the same data files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...committers.contract import Batch, DataFiles, Manifest, Mode
from ...committers.file_tables.manifest import LakeManifest, PlannedFiles
from ...committers.file_tables.shared_files import SHARES_PROPERTY
from ...writers.lake.table_format import files_of_delta, files_of_iceberg
from ..delta.sink import DeltaSink, DeltaTarget
from ..iceberg.sink import IcebergSink, IcebergTarget
from .pair import TablePair

if TYPE_CHECKING:
    import pyarrow as pa


class LakeDeltaTarget(DeltaTarget):
    """The Delta table. Its payloads are the files of both tables."""

    def __init__(self, pair: TablePair) -> None:
        options = pair.delta.options
        own = {SHARES_PROPERTY: pair.name_of_iceberg}
        super().__init__(
            pair.delta.table_uri, replace(options, table_properties={**options.table_properties, **own})
        )
        self._pair = pair
        self._partner = pair.name_of_iceberg

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        self._pair.check(rows)
        return super().plan_batch(rows, mode, batch_id)

    def manifest(self, batch: Batch, content: LakeManifest, payloads: Sequence[DataFiles]) -> Manifest:
        return super().manifest(batch, content, [files_of_delta(files) for files in payloads])


class LakeIcebergTarget(IcebergTarget):
    """The Iceberg table. Its payloads are the files of both tables."""

    def __init__(self, pair: TablePair) -> None:
        sink = pair.iceberg
        own = {
            SHARES_PROPERTY: pair.name_of_delta,
            "write.data.path": pair.data_location,
            "write.object-storage.enabled": "false",
        }
        # For other engines, which would delete files that the Delta table needs.
        properties = {"gc.enabled": "false", **sink.new.properties}
        new = replace(sink.new, properties=properties, own_properties=own)
        super().__init__(sink.catalog, sink.address, new, sink.options)
        self._pair = pair
        self._partner = pair.name_of_delta

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        self._pair.check(rows)
        return super().plan_batch(rows, mode, batch_id)

    def manifest(self, batch: Batch, content: LakeManifest, payloads: Sequence[DataFiles]) -> Manifest:
        return super().manifest(batch, content, [files_of_iceberg(files) for files in payloads])

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        """Delete the files through the Delta table: they are not below the location of this one."""
        return LakeDeltaTarget(self._pair).discard(payloads)


@dataclass(frozen=True, slots=True)
class LakeDeltaSink(DeltaSink):
    """See `Sink`."""

    pair: TablePair = field(kw_only=True)

    def open_table(self) -> LakeDeltaTarget:
        return LakeDeltaTarget(self.pair)


@dataclass(frozen=True, slots=True)
class LakeIcebergSink(IcebergSink):
    """See `Sink`."""

    pair: TablePair = field(kw_only=True)

    def open_table(self) -> LakeIcebergTarget:
        return LakeIcebergTarget(self.pair)
