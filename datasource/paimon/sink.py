"""The sink for Paimon tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from ...committers.changes.key_files import FOLDER, data_files
from ...committers.contract import Changes, Manifest, Mode, PartitionField, PlannedBatch
from ...committers.file_tables.manifest import PlannedFiles
from ...committers.paimon.address import PaimonAddress
from ...committers.paimon.catalog import CatalogConfig
from ...committers.paimon.catalog_table import CatalogTable
from ...committers.paimon.committer import PaimonTableCommitter
from ...committers.paimon.folder import KIND, TableFolder
from ...committers.paimon.merge_tree import DELETE, KEY_PREFIX, SEQUENCE, Sequences, kind_of
from ...committers.paimon.merge_tree import KIND as ROW_KIND
from ...committers.paimon.plan import PlanOptions, plan
from ...committers.paimon.tokens import NOTES
from ...committers.probing import Probe, local_probe
from ...writers.changes.change_files import ChangeFilesConfig
from ...writers.paimon.names import parse_paimon_name
from ...writers.paimon.sorted_files import SortedFiles
from ...writers.paimon.writer import PaimonWriters
from ...writers.parquet.file_names import parse_file_name
from ...writers.parquet.schema_projection import check_fits
from ..changes.planning import plan_changes
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
from .row_writer import PaimonRowWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.cleaning.cleanup import CleanableTable, NameParser
    from ...committers.contract import StreamKey
    from ...committers.paimon.cleanup import PaimonRecords
    from ...committers.paimon.table import PaimonTable
    from ...committers.store.sql import SqlManifestStore
    from ..stored.table_access import TableAccess

_OF_PAIMON = {
    NOTES,
    FOLDER,
    "snapshot",
    "schema",
    "manifest",
    "index",
    "statistics",
    "changelog",
    "consumer",
    "tag",
}
"""Folders of a Paimon table. A table that was dropped may have left some."""
_OF_THE_TREE = (KEY_PREFIX, SEQUENCE, ROW_KIND)
"""How columns begin that only data files have."""


@dataclass(frozen=True, slots=True)
class PaimonSink(BaseSink):
    """See `Sink`."""

    options: PaimonOptions
    kind: str = KIND

    @property
    def table_uri(self) -> str:
        return self.options.table_uri

    def probes(self) -> Sequence[Probe]:
        """See `ProbesStorage`. A catalog chooses the place of its tables, and has its own credentials."""
        return () if self.options.address is not None else (local_probe(self.table_uri),)

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
        table = table_of(options.table_uri, options.catalog_properties)
        super().__init__(table, write=_row_writer(table, options))
        self._query = options

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        options = self._query
        changes = plan_changes(rows, mode) if isinstance(mode, Changes) else None
        rows = rows if changes is None else changes.columns
        wanted = PlanOptions(
            options.create_table,
            options.partition_by,
            options.table_properties,
            mode=mode if changes is None else changes.kinds.changes,
            deletes=changes is not None and changes.kinds.deletes is not None,
        )
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
        origins = origins_of(options)
        if changes is None:
            return PlannedBatch(writers, layout.content(mode, origins), layout.table_id)
        in_table = changes.in_table(layout.schema)
        config = SortedFiles(
            writers,
            Sequences.of_plan(layout.newest_sequence, batch_id),
            in_table.keys,
            in_table.order_by if in_table.late_rows == "ignore" else (),
        )
        return PlannedBatch(
            ChangeFilesConfig(config, changes.kinds, may_keep=False, stores_deletions=True),
            layout.content(in_table, origins),
            layout.table_id,
        )

    def _check_place(self) -> None:
        """See `check_location_is_free`. A catalog chooses it."""
        if self._query.address is not None:
            return
        place = Path(self._uri)
        entries = [entry.name for entry in place.iterdir()] if place.is_dir() else []
        check_location_is_free("Paimon table", self._uri, entries, _OF_PAIMON)


def _row_writer(table: PaimonTable, options: PaimonOptions) -> PaimonRowWriter:
    return PaimonRowWriter(table, options.target_file_bytes or TARGET_FILE_BYTES, options.buffer_bytes_max)


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
        table = self._table()
        return PaimonTableCommitter(table, write=_row_writer(table, PaimonOptions()))

    def now(self) -> TableNow | None:
        table = self._table()
        table_id = table.table_id()
        return None if table_id is None else TableNow(table_id, table.head().snapshot_id)

    def batch_rows(self, manifest: Manifest, store: SqlManifestStore) -> Iterator[WaitingRows]:
        """See `HoldsRows`. Of changes, those that insert or replace."""
        from ...committers.paimon.files import files_of

        for some in parquet_rows(files_of(self._table()), data_files(data_files_of(manifest))):
            rows = some.rows
            if ROW_KIND in rows.schema.names:
                rows = rows.filter(pc.not_equal(rows.column(ROW_KIND), kind_of(DELETE)))
                names = [name for name in rows.schema.names if not name.startswith(_OF_THE_TREE)]
                rows = rows.select(names)
            yield replace(some, rows=rows)

    def cleanable(self, store: SqlManifestStore) -> CleanableTable:
        from ...committers.paimon.cleanup import PaimonCleanableTable

        return PaimonCleanableTable(self._table())

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        return lambda path: parse_paimon_name(path) or parse_file_name(path)


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
