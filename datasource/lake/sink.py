"""The sink `penstock.lake`: one write into a Delta table and an Iceberg table of the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...committers.contract import Batch, DataFiles, Manifest, Mode, TaskWriterFactory
from ...committers.errors import ConfigurationError
from ...committers.file_tables.manifest import LakeManifest, PlannedFiles
from ...committers.file_tables.shared_files import SHARES_PROPERTY
from ...writers.lake.table_format import files_of_delta, files_of_iceberg
from ...writers.parquet.write_config import WriteConfig
from ..delta.options import DeltaOptions
from ..delta.sink import DeltaSink, DeltaTarget
from ..fanout.sink import FanoutSink, TargetSink
from ..iceberg.options import IcebergOptions
from ..iceberg.sink import IcebergSink, IcebergTarget
from ..options.parsing import check
from .options import NAME, LakeOptions
from .pair import TablePair

if TYPE_CHECKING:
    import pyarrow as pa

KIND = "lake"


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


@dataclass(frozen=True, slots=True)
class LakeSink(FanoutSink):
    """A fan-out into two tables whose files are written once. See `FansOut` and `WritesOnce`."""

    options: LakeOptions  # type: ignore[assignment]
    pair: TablePair = field(kw_only=True)
    kind: str = KIND

    @classmethod
    def of(cls, given: Mapping[str, str]) -> LakeSink:
        """Make the sinks of both tables from the options that Spark passes.

        Raises:
            ConfigurationError: lists all problems of both.
        """
        options = LakeOptions.parse(given)
        problems: list[str] = []
        try:
            delta = DeltaSink(DeltaOptions.parse(options.of_delta(given)))
        except ConfigurationError as error:
            problems.append(f"Target delta: {error}")
        try:
            iceberg = IcebergSink(IcebergOptions.parse(options.of_iceberg(given)))
        except ConfigurationError as error:
            problems.append(f"Target iceberg: {error}")
        check(NAME, problems)
        if set(delta.table_uri) & set("%?#\n"):
            problems.append(
                f"path {delta.table_uri!r} has a '%', '?', '#' or line break, which readers of Iceberg "
                "tables interpret as parts of a URL. Use another path."
            )
        if "://" in delta.table_uri and iceberg.catalog.is_embedded:
            problems.append(
                "path is in an object store, which the embedded catalog in warehouse cannot open. Give "
                "catalog or catalog.*, with the catalog.s3.* that it needs."
            )
        check(NAME, problems)
        pair = TablePair(delta, iceberg)
        addresses = (delta.table_uri, iceberg.table_uri)
        sinks: dict[str, Any] = {
            # first, because Iceberg is the stricter one about names, and no Delta table is left over then
            "iceberg": LakeIcebergSink(iceberg.options, pair=pair),
            "delta": LakeDeltaSink(delta.options, pair=pair),
        }
        targets = {name: TargetSink(sink, addresses) for name, sink in sinks.items()}
        return cls(options, targets, pair=pair)

    def joined(self, writers: Mapping[str, TaskWriterFactory[Any]]) -> TaskWriterFactory[Any]:
        """See `WritesOnce`."""
        delta, iceberg = writers["delta"], writers["iceberg"]
        assert isinstance(delta, WriteConfig), "the plan of a file table"
        assert isinstance(iceberg, WriteConfig), "the plan of a file table"
        return self.pair.write_config(delta, iceberg)
