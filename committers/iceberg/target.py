"""The layout of an Iceberg table when a batch was planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ..contract import DataFile, Mode, PartitionField, SortField
from ..file_tables.manifest import LakeManifest

KIND = "iceberg"

NO_SNAPSHOT = -1
"""Version of a table or branch without snapshots."""


@dataclass(frozen=True, slots=True)
class ParquetSettings:
    """The table's write properties for Parquet files; None if not set."""

    target_file_bytes: int | None = None
    """`write.target-file-size-bytes`"""
    row_group_bytes: int | None = None
    """`write.parquet.row-group-size-bytes`"""
    row_group_rows: int | None = None
    """`write.parquet.row-group-limit`"""
    page_bytes: int | None = None
    """`write.parquet.page-size-bytes`"""
    page_rows: int | None = None
    """`write.parquet.page-row-limit`"""
    dictionary_bytes: int | None = None
    """`write.parquet.dict-size-bytes`"""
    compression: str | None = None
    """`write.parquet.compression-codec`, with the names of `WriteConfig.compression`."""
    compression_level: int | None = None
    """`write.parquet.compression-level`"""
    bloom_columns: tuple[tuple[str, ...], ...] = ()
    """Paths of columns with `write.parquet.bloom-filter-enabled.column.<name>=true`."""


@dataclass(frozen=True, slots=True)
class IcebergTableLayout:
    """The table layout that a batch is written for. Planned on the driver before any task starts; can be
    pickled.

    Contains no catalog, so that executors cannot commit.
    """

    table_id: str
    """The table's UUID."""
    table_version: int
    """Snapshot id of the branch's head; `NO_SNAPSHOT` if it has none."""
    schema: pa.Schema
    """All columns of the files in table order, new ones last; each field, including nested ones, has its
    field id as the metadata `PARQUET:field_id`.
    """
    schema_json: str
    """The same schema as Iceberg JSON."""
    new_columns: tuple[str, ...]
    """Columns that the commit adds to the table, with the field ids of `schema`."""
    partition_spec_id: int
    partitioning: tuple[PartitionField, ...]
    sort_order: tuple[SortField, ...]
    metrics: Mapping[int, str]
    """Column metrics by field id of the leaf column: `none`, `counts`, `truncate(16)` or `full`."""
    parquet: ParquetSettings
    data_location: str
    """Location of the data files, with the scheme."""
    is_object_storage_layout: bool
    """`write.object-storage.enabled`: hashes in the paths distribute the files over an object store."""
    has_partition_paths: bool
    """`write.object-storage.partitioned-paths`; always True without that layout."""
    io_properties: Mapping[str, str] = field(repr=False)
    """For file I/O only; may contain secrets."""
    created: bool = False
    """True if planning created the table."""
    altered: tuple[str, ...] = ()
    """Columns whose type and NOT NULL the commit changes to those of `schema`."""
    renames: tuple[tuple[str, str], ...] = ()
    """Columns that the commit renames, and their last names in the table."""

    def content(self, files: Sequence[DataFile], mode: Mode) -> LakeManifest:
        """Build the manifest content for these files."""
        return LakeManifest(
            kind=KIND,
            mode=mode,
            table_id=self.table_id,
            table_version=self.table_version,
            schema_json=self.schema_json,
            new_columns=self.new_columns,
            altered=self.altered,
            renames=self.renames,
            partition_by=tuple([partition.name for partition in self.partitioning]),
            files=tuple(files),
            location=self.data_location,
            partition_spec_id=self.partition_spec_id,
        )
