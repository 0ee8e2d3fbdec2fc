"""Data files of a DuckLake table. DuckLake takes partition values from the folders `name=value`."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.ducklake.values import partition_value_problem
from ...committers.errors import SchemaMismatchError
from ..delta.filesystem import StorageFormat
from ..delta.partitions import directory, format_values
from ..delta.statistics import DeltaFileStatistics
from ..parquet.columns import leaf_arrays
from ..parquet.partition_check import bad_partition_value
from ..parquet.splitting import split_by
from ..parquet.table_format import FileStatistics, PartitionSlice, PartitionValues

_TIMESTAMPS = (pa.timestamp("us"), pa.timestamp("us", "UTC"))
_FIRST_US = -9223372022400000000
"""290309-12-22 (BC) in microseconds since 1970. duckdb reads an earlier value as an error or as -infinity."""


@dataclass(frozen=True, slots=True)
class DuckLakeFormat(StorageFormat):
    """Files have all columns. Their statistics are read from them when they are registered."""

    partition_by: tuple[str, ...] = ()

    @property
    def reads_delta_encoding(self) -> bool:
        return True

    def problems(self, schema: pa.Schema) -> list[str]:
        return [f"There is no column '{name}'." for name in self.partition_by if name not in schema.names]

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def split(self, rows: pa.Table, where: str) -> Iterator[PartitionSlice]:
        keys = [rows.column(name).combine_chunks() for name in self.partition_by]
        for row, own in split_by(keys, rows):
            values = format_values(self.partition_by, keys, row, where)
            for name, value in values:
                if problem := partition_value_problem(value):
                    raise bad_partition_value(name, problem, where)
            yield PartitionSlice(values, own)

    def check_values(self, rows: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaMismatchError: a timestamp is before the first one of duckdb, which reads the statistics of
                the files in the commit.
        """
        for field, column in zip(rows.schema, rows.columns, strict=True):
            for leaf in leaf_arrays(column):
                if leaf.type not in _TIMESTAMPS:
                    continue
                first = pc.min(leaf.cast(pa.int64()))
                if first.is_valid and first.as_py() < _FIRST_US:
                    raise SchemaMismatchError(
                        f"Column {field.name} has a timestamp before 290309-12-22 (BC), the first one of "
                        "duckdb. Filter these rows."
                    )

    def data_path(self, values: PartitionValues, file_name: str) -> str:
        return posixpath.join(directory(values), file_name)

    def file_statistics(self, schema: pa.Schema) -> Callable[[], FileStatistics]:
        return lambda: DeltaFileStatistics([])


def check_partition_names(names: Iterable[str]) -> None:
    """Reject partition columns whose names duckdb would read differently from a folder. Runs on the driver.

    Raises:
        SchemaMismatchError: lists every such column.
    """
    refused = [name for name in names if directory(((name, ""),)) != f"{name}="]
    if refused:
        raise SchemaMismatchError(
            f"Cannot partition by {', '.join(map(repr, refused))}: folders have special characters in an "
            "escaped form, and duckdb takes the name of the column as it is in the folder. Rename the "
            "column. Nothing was written."
        )
