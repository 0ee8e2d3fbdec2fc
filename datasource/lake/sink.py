"""The targets of `penstock.lake`: a Delta table and an Iceberg table with the same data files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...committers.contract import Batch, Changes, DataFiles, Manifest, Mode
from ...committers.delta.change_features import has_vectors
from ...committers.dry_runs import in_dry_run
from ...committers.errors import TableNotSupportedError
from ...committers.file_tables.manifest import LakeManifest, PlannedFiles
from ...committers.file_tables.shared_files import SHARES_PROPERTY
from ...committers.iceberg.changes import is_on_read
from ...writers.lake.table_format import files_of_delta, files_of_iceberg
from ..changes.planning import plan_changes
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
        self._pair.check(rows if not isinstance(mode, Changes) else plan_changes(rows, mode).columns)
        planned = super().plan_batch(rows, mode, batch_id)
        will_have_vectors = in_dry_run() and isinstance(mode, Changes) and mode.merge == "on-read"
        if isinstance(mode, Changes) and not (has_vectors(self._properties()) or will_have_vectors):
            raise _not_on_read(self._pair.delta.table_uri)
        return planned

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
        self._pair.check(rows if not isinstance(mode, Changes) else plan_changes(rows, mode).columns)
        planned, table = super().plan_batch(rows, mode, batch_id), self._load_table()
        assert table is not None, "it was just planned"
        if isinstance(mode, Changes) and not is_on_read(mode, table.metadata, has_deletes=False):
            raise _not_on_read(self._pair.iceberg.table_uri)
        return planned

    def manifest(self, batch: Batch, content: LakeManifest, payloads: Sequence[DataFiles]) -> Manifest:
        return super().manifest(batch, content, [files_of_iceberg(files) for files in payloads])

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        """Delete the files through the Delta table: they are not below the location of this one."""
        return LakeDeltaTarget(self._pair).discard(payloads)


def _not_on_read(table_uri: str) -> TableNotSupportedError:
    return TableNotSupportedError(
        f"The table {table_uri} has no masked rows, and files that changes write again would belong to one "
        "of the two tables. Nothing was written. Give merge=on-read, if all readers of both tables know "
        "deletion vectors and position deletes."
    )


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
