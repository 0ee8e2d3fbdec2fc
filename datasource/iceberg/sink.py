"""The sink for Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...committers.changes.key_files import data_files
from ...committers.contract import Batch, Changes, Manifest, Mode, PartitionField, PlannedBatch
from ...committers.file_tables.manifest import LakeManifest, PlannedFiles
from ...committers.file_tables.shared_files import check_written_together, shared_with
from ...committers.iceberg.address import IcebergAddress, parse_table_name
from ...committers.iceberg.catalog import CatalogConfig, check_address_given, in_short
from ...committers.iceberg.committer import IcebergTableCommitter
from ...committers.iceberg.expiry import ExpiryPolicy, SnapshotExpiry
from ...committers.iceberg.files import iceberg_probe
from ...committers.iceberg.new_table import NewIcebergTable
from ...committers.iceberg.plan import data_location, partitioning
from ...committers.iceberg.properties import EXPIRE_PROPERTY, is_maintained
from ...committers.iceberg.table import check_query_not_rolled_back, load, load_if_there, version_of
from ...committers.iceberg.target import KIND, IcebergTableLayout
from ...committers.maintenance import MaintenancePolicy, Step
from ...committers.probing import Probe, local_probe
from ...writers.changes.change_files import ChangeFilesConfig
from ...writers.changes.rewriting import FileRewriter
from ...writers.changes.table_rows import TableRowsOpener
from ...writers.iceberg.deletes import name_deletes
from ...writers.iceberg.filesystem import open_iceberg_filesystem
from ...writers.iceberg.table_format import IcebergFormat
from ...writers.parquet.data_file_config import ROW_GROUP_ROWS, ParquetOptions
from ...writers.parquet.write_config import WriteConfig
from ..changes.planning import plan_changes
from ..destinations import DestinationType, with_prefix
from ..file_table import CleanableFiles, CompactableFileTable, data_files_of, leading, sort_fields
from ..options.delivery import TARGET_FILE_BYTES
from ..options.file_tables import COMPRESSION
from ..options.stream import origins_of
from ..stored.batch_rows import WaitingRows, parquet_rows
from ..stored.stored_table import TableContents, TableNow
from .options import OPTIONS, IcebergOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    from ...committers.cleaning.cleanup import CleanableTable
    from ...committers.contract import StreamKey
    from ...committers.lineage import TableCommit
    from ...committers.store.sql import SqlManifestStore
    from ..sink import MaintenanceContext
    from ..stored.table_access import TableAccess

BATCHES_PER_MAINTENANCE = 10
EXPIRE_S = 600.0


@dataclass(frozen=True, slots=True)
class IcebergSink:
    """See `Sink`."""

    options: IcebergOptions
    kind: str = KIND
    catalog: CatalogConfig = field(init=False, repr=False)
    address: IcebergAddress = field(init=False)
    new: NewIcebergTable = field(init=False)

    def __post_init__(self) -> None:
        options = self.options
        catalog = CatalogConfig.of(options.catalog, options.catalog_properties, options.warehouse)
        address = IcebergAddress(catalog.address_name, parse_table_name(options.table), options.branch)
        new = NewIcebergTable(
            allowed=options.create_table,
            partition_spec=options.partition_spec,
            sort_order=options.sort_order,
            format_version=options.format_version,
            properties=options.table_properties,
        )
        for name, value in (("catalog", catalog), ("address", address), ("new", new)):
            object.__setattr__(self, name, value)

    @property
    def table_uri(self) -> str:
        return self.address.uri

    def open_table(self) -> IcebergTarget:
        return IcebergTarget(self.catalog, self.address, self.new, self.options)

    def probes(self) -> Sequence[Probe]:
        """See `ProbesStorage`. Where a new table will be, only the catalog of a folder tells."""
        table = load_if_there(self.catalog, self.address)
        if table is not None:
            return (iceberg_probe(data_location(table), table.io.properties),)
        warehouse = self.catalog.warehouse
        return () if warehouse is None else (local_probe(warehouse),)

    def open_shared(self, partner: str) -> IcebergTarget:
        """Return the target of a table that shares its files with another one."""
        return IcebergTarget(self.catalog, self.address, self.new, self.options, partner)

    def open_filesystem(self, location: str) -> tuple[FileSystem, str]:
        """Open a location, a remote one with the file options in `catalog.*`."""
        return open_iceberg_filesystem(location, dict(self.options.catalog_properties))

    def maintain(self, store: SqlManifestStore, batch: Batch) -> None:
        """Expire old snapshots, if the options say so; not for every batch, because it loads the table."""
        if batch.batch_id % BATCHES_PER_MAINTENANCE == 0:
            self._expire_snapshots(store, batch.stream.query_id)

    def _expire_snapshots(self, store: SqlManifestStore, query_id: str) -> None:
        if self.options.expire_snapshots is False:
            return
        is_wanted = self.options.expire_snapshots is True
        if not is_wanted:
            properties = load(self.catalog, self.address).metadata.properties
            is_wanted = properties.get(EXPIRE_PROPERTY, "false").lower() == "true"
        if is_wanted:
            self._expiry(store, query_id).run()

    def _expiry(self, store: SqlManifestStore, query_id: str) -> SnapshotExpiry:
        return SnapshotExpiry(
            lambda: load(self.catalog, self.address),
            store.expiries,
            self.table_uri,
            ExpiryPolicy(self.options.snapshots_max, self.options.snapshot_grace_s),
            now=lambda: datetime.now(timezone.utc),
            check=partial(check_query_not_rolled_back, address=self.address, query_id=query_id),
            in_short=partial(in_short, config=self.catalog),
        )

    def maintenance_policy(self) -> MaintenancePolicy:
        return self.options.maintenance_policy

    def maintenance_steps(self, context: MaintenanceContext) -> list[Step]:
        from ...committers.iceberg.compaction import IcebergCompactableTable

        def expire() -> str:
            self._expire_snapshots(context.store, context.stream.query_id)
            return ""

        table = IcebergCompactableTable(self.catalog, self.address, context.stream.query_id)
        return [
            context.compaction(
                table,
                lambda content: self.open_table().rewrite_config(content),
                self.options.target_file_bytes or TARGET_FILE_BYTES,
            ),
            Step("expire", EXPIRE_S, expire, decides_itself=True),
            context.orphans(StoredIceberg(self.catalog, self.address)),
        ]

    def partitioning(self) -> tuple[PartitionField, ...]:
        table = load_if_there(self.catalog, self.address)
        if table is None:
            return self.options.partition_spec or ()
        return partitioning(table.spec(), table.schema())

    def is_maintained(self) -> bool:
        table = load_if_there(self.catalog, self.address)
        return table is not None and is_maintained(table.properties)


class IcebergTarget(CompactableFileTable, IcebergTableCommitter):
    """The target of a stream into an Iceberg table, with the options of its query. See `Target`.

    Args:
        partner: the table with the same files that the query writes too
    """

    def __init__(
        self,
        catalog: CatalogConfig,
        address: IcebergAddress,
        new: NewIcebergTable,
        options: IcebergOptions,
        partner: str | None = None,
    ) -> None:
        config_of = self.rewrite_config
        super().__init__(catalog, address, name_deletes, FileRewriter(config_of), TableRowsOpener(config_of))
        self._new = new
        self._query = options
        self._partner = partner

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        options = self._query
        changes = plan_changes(rows, mode) if isinstance(mode, Changes) else None
        rows = rows if changes is None else changes.columns
        layout = self.plan(
            rows,
            self._new,
            evolution=options.evolution,
            narrows=options.narrows,
            mode=mode,
            batch_id=batch_id,
        )
        check_written_together(self._properties(), self._address.uri, self._partner)
        if changes is not None:
            mode = changes.in_table(layout.schema, layout.new_columns)
        content = replace(layout.content((), mode), origins=origins_of(options))
        config = self._write_config(layout, options.sort_within)
        writers = config if changes is None else ChangeFilesConfig(config, changes.kinds)
        return PlannedBatch(writers, content, content.table_id)

    def rewrite_config(self, content: LakeManifest) -> WriteConfig | None:
        """See `DeliveryFiles`."""
        layout = self.target_of(content)
        if layout is None or shared_with(self._properties()) != self._partner:
            return None
        return self._write_config(layout, leading(self._query.sort_within, layout.schema.names))

    def _properties(self) -> Mapping[str, str]:
        """Of the table as it was just read."""
        table = self._load_table()
        return {} if table is None else table.properties

    def _write_config(self, layout: IcebergTableLayout, sort_within: tuple[str, ...]) -> WriteConfig:
        """Return how to write files: options of the query come before table properties, then defaults."""
        options, parquet = self._query, layout.parquet
        return WriteConfig(
            location=layout.data_location,
            storage_options=dict(layout.io_properties),
            schema=layout.schema,
            table_format=IcebergFormat(
                layout.partitioning,
                layout.metrics,
                layout.is_object_storage_layout,
                layout.has_partition_paths,
            ),
            target_file_bytes=options.target_file_bytes or parquet.target_file_bytes or TARGET_FILE_BYTES,
            row_group_rows=options.row_group_rows or parquet.row_group_rows or ROW_GROUP_ROWS,
            row_group_bytes=parquet.row_group_bytes,
            compression=options.compression or parquet.compression or COMPRESSION,
            compression_level=None if options.compression else parquet.compression_level,
            max_open_partitions=options.max_open_partitions,
            buffer_bytes_max=options.buffer_bytes_max,
            sort=sort_fields(sort_within, layout.schema) or layout.sort_order,
            narrows=options.narrows,
            parquet=ParquetOptions(
                page_bytes=parquet.page_bytes,
                page_rows=parquet.page_rows,
                dictionary_bytes=parquet.dictionary_bytes,
                bloom_columns=parquet.bloom_columns,
            ),
        )


# For the command line and the delivery process ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredIceberg(CleanableFiles):
    """See `StoredTable`."""

    catalog: CatalogConfig = field(repr=False)
    address: IcebergAddress

    @classmethod
    def of(cls, stream: StreamKey, access: TableAccess) -> StoredIceberg:
        """Return the table of a stream.

        Raises:
            ConfigurationError: the address of the catalog is missing.
        """
        address = IcebergAddress.parse(stream.table_uri)
        if Path(address.catalog).is_absolute():
            return cls(CatalogConfig.of(None, {}, warehouse=address.catalog), address)
        catalog = CatalogConfig.of(address.catalog, access.catalog)
        check_address_given(catalog)
        return cls(catalog, address)

    def committer(self) -> IcebergTableCommitter:
        options = IcebergOptions(table=self.address.table_name, branch=self.address.branch)
        return IcebergTarget(self.catalog, self.address, NewIcebergTable(allowed=False), options)

    def now(self) -> TableNow | None:
        table = load_if_there(self.catalog, self.address)
        if table is None:
            return None
        return TableNow(str(table.metadata.table_uuid), version_of(table.metadata, self.address.branch))

    def contents(self) -> TableContents | None:
        """See `HasContents`."""
        from ...committers.iceberg.contents import sizes_and_rows

        table = load_if_there(self.catalog, self.address)
        if table is None:
            return None
        version = version_of(table.metadata, self.address.branch)
        return TableContents(version, *sizes_and_rows(table, self.address, self.catalog))

    def read(self, column: str, value: str) -> pa.Table | None:
        """See `Readable`."""
        from ...committers.iceberg.table import read_rows

        return read_rows(self.catalog, self.address, column, value)

    def commits(self, version: int | None = None) -> Iterator[TableCommit]:
        """See `HasLineage`."""
        from ...committers.iceberg.lineage import iceberg_commits

        table = load_if_there(self.catalog, self.address)
        return iter(()) if table is None else iceberg_commits(table.metadata, self.address.branch, version)

    def batch_rows(self, manifest: Manifest, store: SqlManifestStore) -> Iterator[WaitingRows]:
        """See `HoldsRows`."""
        return parquet_rows(self.committer().files(manifest), data_files(data_files_of(manifest)))

    def cleanable(self, store: SqlManifestStore) -> CleanableTable:
        from ...committers.iceberg.cleanup import IcebergCleanableTable

        return IcebergCleanableTable(
            lambda: load_if_there(self.catalog, self.address),
            self.address.uri,
            self.address.branch,
            store.expiries,
            in_short=partial(in_short, config=self.catalog),
        )


def _sink_of(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> IcebergSink:
    is_embedded = Path(stream.table_uri.rpartition(":")[0]).is_absolute()
    sink = IcebergSink(
        IcebergOptions.parse(with_prefix("catalog.", options, {} if is_embedded else access.catalog))
    )
    check_address_given(sink.catalog)  # here, because a failed delivery would park the stream
    return sink


DESTINATION = DestinationType(
    kind=KIND,
    data_source="penstock.datasource.iceberg.source:IcebergDataSource",
    options=OPTIONS,
    sink=_sink_of,
    stored_table=StoredIceberg.of,
    files_of=data_files_of,
    ignores_case=True,
    remains="its last batch in the properties of the table, with which newQuery=refuse recognizes the source",
)
