"""Data files of a Delta table."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from ..parquet.table_format import FileStatistics, PartitionSlice, PartitionValues
from .filesystem import StorageFormat
from .partitions import directory, split
from .statistics import DeltaFileStatistics, leaves_with_statistics


@dataclass(frozen=True, slots=True)
class DeltaFormat(StorageFormat):
    """Partition columns are not stored in the files: the log has their values."""

    partition_by: tuple[str, ...] = ()
    statistics_columns: tuple[str, ...] | None = None
    """Dotted paths of the columns with statistics (a struct implies its fields); None: the first ones."""
    statistics_columns_max: int = 32
    """Number of leaf columns if `statistics_columns` is None; -1 for all."""

    @property
    def reads_delta_encoding(self) -> bool:
        return True

    def problems(self, schema: pa.Schema) -> list[str]:
        columns = ", ".join(schema.names)
        problems = [
            f"The partition column '{name}' is not in the table; its columns: {columns}."
            for name in self.partition_by
            if name not in schema.names
        ]
        if not set(schema.names) - set(self.partition_by):
            problems.append("A table needs at least one column that is not a partition column.")
        return problems

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([column for column in schema if column.name not in self.partition_by])

    def split(self, rows: pa.Table, where: str) -> Iterator[PartitionSlice]:
        return split(rows, self.partition_by, where)

    def data_path(self, values: PartitionValues, file_name: str) -> str:
        return posixpath.join(directory(values), file_name)

    def file_statistics(self, schema: pa.Schema) -> Callable[[], FileStatistics]:
        leaves = leaves_with_statistics(
            schema, self.partition_by, self.statistics_columns, self.statistics_columns_max
        )
        return lambda: DeltaFileStatistics(leaves)
