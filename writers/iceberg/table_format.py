"""Data files of an Iceberg table."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow.fs import FileSystem

from ...committers.contract import PartitionField
from ..parquet.table_format import FileStatistics, PartitionSlice, PartitionValues
from .filesystem import open_iceberg_filesystem
from .partitions import directory, hash_directories, partition_problems, split
from .statistics import IcebergFileStatistics, statistics_columns, statistics_problems


@dataclass(frozen=True, slots=True)
class IcebergFormat:
    """All columns are stored in the files. Each field of the config's schema, including nested ones, has its
    field id as the metadata `PARQUET:field_id`, which is written into the files.
    """

    partitioning: tuple[PartitionField, ...] = ()
    metrics: Mapping[int, str] = field(default_factory=dict)
    """Column metrics by field id of the leaf column: `none`, `counts`, `truncate(16)` or `full`; default
    `truncate(16)`, as in Iceberg.
    """
    is_object_storage_layout: bool = False
    """Hashes in the paths distribute the files over an object store."""
    has_partition_paths: bool = True
    """False: only hashes, without partition directories."""

    @property
    def is_partitioned(self) -> bool:
        return bool(self.partitioning)

    @property
    def reads_delta_encoding(self) -> bool:
        return False

    def problems(self, schema: pa.Schema) -> list[str]:
        problems = [
            *statistics_problems(schema, self.metrics),
            *partition_problems(schema, self.partitioning),
        ]
        if not schema.names:
            problems.append("A table needs at least one column.")
        return problems

    def open_filesystem(self, location: str, storage_options: dict[str, str]) -> tuple[FileSystem, str]:
        return open_iceberg_filesystem(location, storage_options)

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def split(self, rows: pa.Table, where: str) -> Iterator[PartitionSlice]:
        return split(rows, self.partitioning, where)

    def data_path(self, values: PartitionValues, file_name: str) -> str:
        partition = directory(values, self.partitioning) if self.has_partition_paths else ""
        path = posixpath.join(partition, file_name)
        return f"{hash_directories(path)}/{path}" if self.is_object_storage_layout else path

    def file_statistics(self, schema: pa.Schema) -> Callable[[], FileStatistics]:
        columns = statistics_columns(schema, self.metrics)
        return lambda: IcebergFileStatistics(columns)
