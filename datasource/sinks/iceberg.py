"""The sink for Iceberg tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ...committers.contract import SortField
from ...committers.iceberg.address import IcebergAddress, parse_table_name
from ...committers.iceberg.catalog import CatalogConfig, known_properties, redacted
from ...committers.iceberg.committer import IcebergTableCommitter
from ...committers.iceberg.expiry import ExpiryPolicy, SnapshotExpiry
from ...committers.iceberg.new_table import NewTable
from ...committers.iceberg.properties import EXPIRE_PROPERTY
from ...committers.iceberg.table import load
from ...committers.iceberg.target import KIND, IcebergTarget
from ...writers.iceberg.filesystem import open_iceberg_filesystem
from ...writers.iceberg.table_format import IcebergFormat
from ...writers.plan import ROW_GROUP_ROWS, ParquetOptions, WritePlan
from ..options.common import COMPRESSION, TARGET_FILE_BYTES
from ..options.iceberg import IcebergOptions
from .sink import PlannedTable, leading

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    from ...committers.lake_manifest import LakeManifest
    from ...committers.store.sql import SqlManifestStore

BATCHES_PER_MAINTENANCE = 10


@dataclass(frozen=True, slots=True)
class IcebergSink:
    """See `Sink`."""

    options: IcebergOptions
    kind: str = KIND
    _catalog: CatalogConfig = field(init=False, repr=False)
    _address: IcebergAddress = field(init=False)
    _new: NewTable = field(init=False)

    def __post_init__(self) -> None:
        options = self.options
        catalog = CatalogConfig.of(options.catalog, options.catalog_properties, options.warehouse)
        address = IcebergAddress(catalog.address_name, parse_table_name(options.table), options.branch)
        new = NewTable(
            allowed=options.create_table,
            partition_spec=options.partition_spec,
            sort_order=options.sort_order,
            format_version=options.format_version,
            properties=options.table_properties,
        )
        for name, value in (("_catalog", catalog), ("_address", address), ("_new", new)):
            object.__setattr__(self, name, value)

    @property
    def table_uri(self) -> str:
        return self._address.uri

    @property
    def catalog(self) -> CatalogConfig:
        return self._catalog

    @property
    def address(self) -> IcebergAddress:
        return self._address

    def open_table(self) -> IcebergTableCommitter:
        return IcebergTableCommitter(self._catalog, self._address)

    def plan_table(
        self, table: IcebergTableCommitter, rows: pa.Schema, overwrite: bool, batch_id: int
    ) -> PlannedTable:
        target = table.plan(
            rows, self._new, evolve=self.options.add_columns, overwrite=overwrite, batch_id=batch_id
        )
        content = target.content((), "overwrite" if overwrite else "append")
        return PlannedTable(self._write_plan(target, self.options.sort_within), content)

    def rewrite_plan(self, table: IcebergTableCommitter, content: LakeManifest) -> WritePlan | None:
        target = table.target_of(content)
        if target is None:
            return None
        return self._write_plan(target, leading(self.options.sort_within, target.schema.names))

    def _write_plan(self, target: IcebergTarget, sort_within: tuple[str, ...]) -> WritePlan:
        """What the query asks for goes before what the table says, and that before the defaults."""
        options, parquet = self.options, target.parquet
        by_name = {name.lower(): name for name in target.schema.names}
        asked = tuple([SortField((by_name.get(name.lower(), name),)) for name in sort_within])
        return WritePlan(
            location=target.data_location,
            storage_options=dict(target.io_properties),
            schema=target.schema,
            table_format=IcebergFormat(
                target.partitioning,
                target.metrics,
                target.is_object_storage_layout,
                target.has_partition_paths,
            ),
            target_file_bytes=options.target_file_bytes or parquet.target_file_bytes or TARGET_FILE_BYTES,
            row_group_rows=options.row_group_rows or parquet.row_group_rows or ROW_GROUP_ROWS,
            row_group_bytes=parquet.row_group_bytes,
            compression=options.compression or parquet.compression or COMPRESSION,
            compression_level=None if options.compression else parquet.compression_level,
            max_open_partitions=options.max_open_partitions,
            buffer_bytes_max=options.buffer_bytes_max,
            sort=asked or target.sort_order,
            parquet=ParquetOptions(
                page_bytes=parquet.page_bytes,
                page_rows=parquet.page_rows,
                dictionary_bytes=parquet.dictionary_bytes,
                bloom_columns=parquet.bloom_columns,
            ),
        )

    def open_filesystem(self, location: str) -> tuple[FileSystem, str]:
        """A remote location is reached with what the options `catalog.*` say about files."""
        return open_iceberg_filesystem(location, dict(self.options.catalog_properties))

    def maintain(self, store: SqlManifestStore, batch_id: int) -> None:
        """Expire old snapshots, where that is wanted; only now and then, for it looks at the table."""
        if batch_id % BATCHES_PER_MAINTENANCE or self.options.expire_snapshots is False:
            return
        is_wanted = self.options.expire_snapshots is True
        if not is_wanted:
            properties = load(self._catalog, self._address).metadata.properties
            is_wanted = properties.get(EXPIRE_PROPERTY, "false").lower() == "true"
        if is_wanted:
            self._expiry(store).run()

    def _expiry(self, store: SqlManifestStore) -> SnapshotExpiry:
        return SnapshotExpiry(
            lambda: load(self._catalog, self._address),
            store.expiries,
            self.table_uri,
            ExpiryPolicy(self.options.snapshots_max, self.options.snapshot_grace_s),
            now=lambda: datetime.now(timezone.utc),
            in_short=lambda error: redacted(error, known_properties(self._catalog)),
        )
