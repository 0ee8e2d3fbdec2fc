"""The sink for Paimon append tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...committers.contract import Manifest, Mode, PartitionField, PlannedBatch
from ...committers.file_tables.manifest import PlannedFiles
from ...committers.paimon.address import PaimonAddress
from ...committers.paimon.catalog import CatalogConfig
from ...committers.paimon.catalog_table import CatalogTable
from ...committers.paimon.committer import PaimonTableCommitter
from ...committers.paimon.folder import KIND, TableFolder
from ...committers.paimon.plan import PlanOptions, plan
from ...committers.paimon.tokens import NOTES
from ...writers.paimon.names import parse_paimon_name
from ...writers.paimon.writer import PaimonWriters
from ...writers.parquet.schema_projection import check_fits
from ..destinations import DestinationType, with_prefix
from ..file_table import (
    CleanableFiles,
    FileTableTarget,
    check_location_is_free,
    data_files_of,
    partition_fields,
)
from ..options.delivery import TARGET_FILE_BYTES
from ..options.stream import origins_of
from ..plain_sink import BaseSink
from ..stored.batch_rows import WaitingRows, parquet_rows
from ..stored.stored_table import TableNow
from .options import OPTIONS, PaimonOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.cleaning.cleanup import CleanableTable, NameParser
    from ...committers.contract import StreamKey
    from ...committers.paimon.cleanup import PaimonRecords
    from ...committers.paimon.table import PaimonTable
    from ...committers.store.sql import SqlManifestStore
    from ..stored.table_access import TableAccess

_OF_PAIMON = {NOTES, "snapshot", "schema", "manifest", "index", "statistics", "changelog", "consumer", "tag"}
"""Folders of a Paimon table. A table that was dropped may have left some."""


@dataclass(frozen=True, slots=True)
class PaimonSink(BaseSink):
    """See `Sink`."""

    options: PaimonOptions
    kind: str = KIND

    @property
    def table_uri(self) -> str:
        return self.options.table_uri

    def open_table(self) -> PaimonTarget:
        return PaimonTarget(self.options)

    def records(self, query_id: str) -> PaimonRecords:
        from ...committers.paimon.cleanup import PaimonRecords

        return PaimonRecords(table_of(self.table_uri, self.options.catalog_properties), query_id)

    def partitioning(self) -> tuple[PartitionField, ...]:
        """See `Partitioned`."""
        table = table_of(self.table_uri, self.options.catalog_properties)
        has_table = table.table_id() is not None
        names = table.load().partition_keys if has_table else self.options.partition_by or ()
        return partition_fields(names)


class PaimonTarget(FileTableTarget, PaimonTableCommitter):
    """The target of a stream into a Paimon table, with the options of its query. See `Target`."""

    def __init__(self, options: PaimonOptions) -> None:
        super().__init__(table_of(options.table_uri, options.catalog_properties))
        self._query = options

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        options = self._query
        wanted = PlanOptions(options.create_table, options.partition_by, options.table_properties)
        layout = plan(self._table, rows, wanted, batch_id, self._check_place)
        check_fits(rows, layout.schema, narrows=options.narrows)
        writers = PaimonWriters(
            path=layout.location,
            table_schema_json=layout.table_schema_json,
            schema=layout.schema,
            target_file_bytes=options.target_file_bytes or TARGET_FILE_BYTES,
            buffer_bytes_max=options.buffer_bytes_max,
            narrows=options.narrows,
        )
        return PlannedBatch(writers, layout.content(mode, origins_of(options)), layout.table_id)

    def _check_place(self) -> None:
        """See `check_location_is_free`. A catalog chooses it."""
        if self._query.address is not None:
            return
        place = Path(self._uri)
        entries = [entry.name for entry in place.iterdir()] if place.is_dir() else []
        check_location_is_free("Paimon table", self._uri, entries, _OF_PAIMON)


def table_of(uri: str, catalog: Mapping[str, str]) -> PaimonTable:
    """Return the table at a path, or at an address in a catalog.

    Args:
        uri: see `PaimonOptions.table_uri`
        catalog: options of the catalog, without `catalog.`

    Raises:
        ConfigurationError: the catalog cannot be opened with these options.
    """
    address = PaimonAddress.parse(uri)
    if address is None:
        return TableFolder(uri)
    return CatalogTable(CatalogConfig.of(catalog, address.warehouse), address)


# For the command line and the delivery process ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredPaimon(CleanableFiles):
    """See `StoredTable`."""

    uri: str
    catalog: Mapping[str, str] = field(repr=False)

    def _table(self) -> PaimonTable:
        return table_of(self.uri, self.catalog)

    def committer(self) -> PaimonTableCommitter:
        return PaimonTableCommitter(self._table())

    def now(self) -> TableNow | None:
        table = self._table()
        table_id = table.table_id()
        return None if table_id is None else TableNow(table_id, table.head().snapshot_id)

    def batch_rows(self, manifest: Manifest, store: SqlManifestStore) -> Iterator[WaitingRows]:
        """See `HoldsRows`."""
        from ...committers.paimon.files import files_of

        return parquet_rows(files_of(self._table()), data_files_of(manifest))

    def cleanable(self, store: SqlManifestStore) -> CleanableTable:
        from ...committers.paimon.cleanup import PaimonCleanableTable

        return PaimonCleanableTable(self._table())

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        return parse_paimon_name


def _sink_of(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> PaimonSink:
    address = PaimonAddress.parse(stream.table_uri)
    if address is None:
        return PaimonSink(PaimonOptions.parse(options))
    catalog = CatalogConfig.of(access.catalog, address.warehouse)  # fails here if options are missing
    return PaimonSink(PaimonOptions.parse(with_prefix("catalog.", options, catalog.properties)))


DESTINATION = DestinationType(
    kind=KIND,
    data_source="penstock.datasource.paimon.source:PaimonDataSource",
    options=OPTIONS,
    sink=_sink_of,
    stored_table=lambda stream, access: StoredPaimon(stream.table_uri, access.catalog),
    files_of=data_files_of,
    ignores_case=True,
    records=lambda stream, sink: sink.records(stream.query_id),
    remains="its last batch in the snapshots of the table, until they expire",
)
"""The data source `penstock.paimon`."""
