"""The sink for Delta tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...committers.changes.key_files import data_files
from ...committers.contract import Changes, Manifest, Mode, PartitionField, PlannedBatch
from ...committers.delta.committer import DeltaTableCommitter
from ...committers.delta.deletion_vectors import parse_vector_name
from ...committers.delta.log_checkpoints import LOG_CHECKPOINTS, LogCheckpoints
from ...committers.delta.log_files import LOG
from ...committers.delta.probing import storage_probe
from ...committers.delta.snapshot_cache import SNAPSHOT_CACHE, SnapshotCache
from ...committers.delta.table import KIND, load_if_there
from ...committers.file_tables.clock import now_ms
from ...committers.file_tables.manifest import LakeManifest, PlannedFiles, decode
from ...committers.file_tables.merge import merge
from ...committers.file_tables.shared_files import check_written_together, shared_with
from ...committers.maintenance import MaintenancePolicy, Step
from ...committers.probing import Probe
from ...writers.changes.change_files import ChangeFilesConfig
from ...writers.changes.rewriting import FileRewriter
from ...writers.changes.table_rows import TableRowsOpener
from ...writers.delta.change_data import ChangeDataWriter
from ...writers.delta.partitions import check_partition_columns, serialize
from ...writers.delta.table_format import DeltaFormat
from ...writers.parquet.file_names import parse_file_name
from ...writers.parquet.write_config import WriteConfig
from ..changes.planning import plan_changes
from ..destinations import DestinationType, with_prefix
from ..file_table import (
    CleanableFiles,
    CompactableFileTable,
    data_files_of,
    leading,
    partition_fields,
    with_case_of,
    write_config,
)
from ..options.delivery import TARGET_FILE_BYTES
from ..options.stream import origins_of
from ..plain_sink import StorageSink
from ..stored.batch_rows import WaitingRows, parquet_rows
from ..stored.stored_table import TableContents, TableNow
from .options import OPTIONS, DeltaOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.cleaning.cleanup import CleanableTable, NameParser, ParsedName
    from ...committers.contract import StreamKey
    from ...committers.delta.schema import DeltaTableLayout
    from ...committers.lineage import TableCommit
    from ...committers.store.sql import SqlManifestStore
    from ..sink import MaintenanceContext
    from ..stored.table_access import TableAccess

CHECKPOINT_S = 3600.0


@dataclass(frozen=True, slots=True)
class DeltaSink(StorageSink):
    """See `Sink`."""

    options: DeltaOptions
    kind: str = KIND

    @property
    def table_uri(self) -> str:
        return self.options.table_uri

    def open_table(self) -> DeltaTarget:
        return DeltaTarget(self.table_uri, self.options)

    def probes(self) -> Sequence[Probe]:
        """See `ProbesStorage`."""
        uri, storage = self.table_uri, self.options.storage_options
        return storage_probe(uri, storage), storage_probe(uri, storage, LOG)

    def open_shared(self, partner: str) -> DeltaTarget:
        """See `DeltaOfPair`."""
        return DeltaTarget(self.table_uri, self.options, partner)

    def maintenance_policy(self) -> MaintenancePolicy:
        return self.options.maintenance_policy

    def maintenance_steps(self, context: MaintenanceContext) -> list[Step]:
        from ...committers.delta.compaction import DeltaCompactableTable
        from ...committers.delta.maintenance import checkpoint_log, vacuum

        uri, storage = self.table_uri, self.options.storage_options

        def checkpoint() -> str:
            version = checkpoint_log(uri, storage)
            return "" if version is None else f"wrote a log checkpoint of version {version:,}"

        def remove() -> str:
            count = vacuum(uri, storage, context.now(), context.pending_names)
            return f"deleted {count:,} files that the table has removed" if count else ""

        table = load_if_there(uri, storage)
        partner = None if table is None else shared_with(table.metadata().configuration)
        if partner is None:
            compaction = context.compaction(
                DeltaCompactableTable(uri, storage, context.stream.query_id, serialize),
                lambda content: self.open_table().rewrite_config(content),
                self.options.target_file_bytes or TARGET_FILE_BYTES,
            )
        else:
            from ..lake.maintenance import shared_compaction, shared_vacuum

            compaction = shared_compaction(self, partner, context)
            remove = shared_vacuum(self, partner, context)
        return [
            compaction,
            Step("checkpoint", CHECKPOINT_S, checkpoint),
            Step("vacuum", context.policy.vacuum_s, remove),
            context.orphans(StoredDelta(uri, storage, context.access.catalog)),
        ]

    def partitioning(self) -> tuple[PartitionField, ...]:
        table = load_if_there(self.table_uri, self.options.storage_options)
        names = self.options.partition_by or () if table is None else table.metadata().partition_columns
        return partition_fields(names)

    def is_maintained(self) -> bool:
        from ...committers.delta.maintenance import is_maintained

        return is_maintained(self.table_uri, self.options.storage_options)


class DeltaTarget(CompactableFileTable, DeltaTableCommitter):
    """The target of a stream into a Delta table, with the options of its query. See `Target`.

    Args:
        partner: the table with the same files that the query writes too
        views, log_checkpoints, now_ms: as in `DeltaTableCommitter`
    """

    def __init__(
        self,
        table_uri: str,
        options: DeltaOptions,
        partner: str | None = None,
        *,
        snapshot_cache: SnapshotCache = SNAPSHOT_CACHE,
        log_checkpoints: LogCheckpoints = LOG_CHECKPOINTS,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        super().__init__(
            table_uri,
            options.storage_options,
            snapshot_cache=snapshot_cache,
            log_checkpoints=log_checkpoints,
            now_ms=now_ms,
            rewrite=FileRewriter(self.rewrite_config),
            write_change_data=ChangeDataWriter(self.rewrite_config),
            open_rows=TableRowsOpener(self.rewrite_config),
        )
        self._table_uri = table_uri
        self._query: DeltaOptions = options
        self._partner = partner

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        options = self._query
        changes = plan_changes(rows, mode) if isinstance(mode, Changes) else None
        rows = rows if changes is None else changes.columns
        asked = options.partition_by
        partition_by = None if asked is None else with_case_of(asked, rows)
        check_partition_columns(rows, partition_by or ())
        layout = self.plan(
            rows,
            partition_by=partition_by,
            create=options.create_table,
            properties=options.table_properties,
            evolution=options.evolution,
            widens_types=options.widens_types,
            narrows=options.narrows,
            mode=mode,
            batch_id=batch_id,
        )
        check_partition_columns(layout.schema, layout.partition_by)
        check_written_together(self._properties(), self._table_uri, self._partner)
        if changes is not None:
            mode = changes.in_table(layout.schema, layout.new_columns)
        content = replace(layout.content((), mode), origins=origins_of(options))
        config = self._write_config(layout, options.sort_within)
        writers = config if changes is None else ChangeFilesConfig(config, changes.kinds)
        return PlannedBatch(writers, content, content.table_id)

    def merge(self, manifests: Sequence[Manifest], verified_version: int | None) -> Manifest:
        """See `MergeableFiles`. Versions of Delta tables are ordered."""
        return merge(manifests, -1 if verified_version is None else verified_version)

    def rewrite_config(self, content: LakeManifest) -> WriteConfig | None:
        """See `DeliveryFiles`."""
        layout = self.target_of(content)
        if layout is None or shared_with(self._properties()) != self._partner:
            return None
        columns = [name for name in layout.schema.names if name not in layout.partition_by]
        return self._write_config(layout, leading(self._query.sort_within, columns))

    def _properties(self) -> Mapping[str, str]:
        """Of the table as it was just read."""
        table = self._load_table()
        return {} if table is None else table.metadata().configuration

    def _write_config(self, layout: DeltaTableLayout, sort_within: tuple[str, ...]) -> WriteConfig:
        table_format = DeltaFormat(
            layout.partition_by, layout.statistics_columns, layout.statistics_columns_max
        )
        options = self._query
        return write_config(
            options, self._table_uri, options.storage_options, layout.schema, table_format, sort_within
        )


# For the command line and the delivery process ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredDelta(CleanableFiles):
    """See `StoredTable`."""

    uri: str
    storage: Mapping[str, str] = field(repr=False)
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of an Iceberg table that shares its files."""

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        """See `Cleanable`. Files of deletion vectors have other names than data files."""
        query_ids = [stream.query_id for stream in streams]

        def parse(path: str) -> ParsedName | None:
            return parse_file_name(path) or parse_vector_name(path, query_ids)

        return parse

    def committer(self) -> DeltaTableCommitter:
        return DeltaTarget(self.uri, DeltaOptions(path=self.uri, storage_options=self.storage))

    def now(self) -> TableNow | None:
        table = load_if_there(self.uri, self.storage)
        return None if table is None else TableNow(str(table.metadata().id), table.version())

    def contents(self) -> TableContents | None:
        """See `HasContents`."""
        from ...committers.delta.contents import sizes_and_rows

        table = load_if_there(self.uri, self.storage)
        return None if table is None else TableContents(table.version(), *sizes_and_rows(table, self.storage))

    def read(self, column: str, value: str) -> pa.Table | None:
        """See `Readable`."""
        from ...committers.delta.table import read_rows

        return read_rows(self.uri, self.storage, column, value)

    def commits(self, version: int | None = None) -> Iterator[TableCommit]:
        """See `HasLineage`."""
        from ...committers.delta.lineage import delta_commits

        table = load_if_there(self.uri, self.storage)
        return iter(()) if table is None else delta_commits(self.uri, self.storage, table.version(), version)

    def batch_rows(self, manifest: Manifest, store: SqlManifestStore) -> Iterator[WaitingRows]:
        """See `HoldsRows`."""
        import pyarrow as pa
        from deltalake import Schema

        from ...committers.delta.files import delta_files

        content = decode(manifest)
        return parquet_rows(
            delta_files(self.uri, self.storage),
            data_files(content.files),
            lambda: pa.schema(Schema.from_json(content.schema_json).to_arrow()),
        )

    def cleanable(self, store: SqlManifestStore) -> CleanableTable:
        from ...committers.delta.cleanup import DeltaCleanableTable

        own = DeltaCleanableTable(self.uri, self.storage)
        table = load_if_there(self.uri, self.storage)
        partner = None if table is None else shared_with(table.metadata().configuration)
        if partner is None:
            return own
        from ..lake.cleanup import PartnerFiles, SharedCleanable
        from ..stored.table_access import TableAccess

        access = TableAccess(dict(self.storage), dict(self.catalog))
        return SharedCleanable(own, PartnerFiles(partner, store, access))


def _sink_of(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> DeltaSink:
    return DeltaSink(DeltaOptions.parse(with_prefix("storage.", options, access.storage)))


DESTINATION = DestinationType(
    kind=KIND,
    data_source="penstock.datasource.delta.source:DeltaDataSource",
    options=OPTIONS,
    sink=_sink_of,
    stored_table=lambda stream, access: StoredDelta(stream.table_uri, access.storage, access.catalog),
    files_of=data_files_of,
    remains="its last batch in the log of the table (txn), see delta.setTransactionRetentionDuration",
)
