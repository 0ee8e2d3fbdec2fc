"""Data files that a Delta table and an Iceberg table share.

Iceberg reads columns by the field ids in the files, Delta by their names. The files have all columns, with
those that the tables are partitioned by: Iceberg wants them there, and Delta ignores them. The directories
are Delta's, because Iceberg does not interpret them.

The data files of a task carry what both formats need. `files_of_delta` and `files_of_iceberg` return what
each of them commits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ...committers.arrow_values import string_array
from ...committers.contract import DataFiles
from ...committers.errors import SchemaMismatchError
from ..delta.partitions import format_values
from ..delta.statistics import DeltaFileStatistics, leaves_with_statistics
from ..delta.table_format import DeltaFormat
from ..iceberg.table_format import IcebergFormat
from ..parquet.table_format import FileStatistics, PartitionSlice, PartitionValues

_FORMATS = ("delta", "iceberg")


@dataclass(frozen=True, slots=True)
class LakeFormat:
    """See `TableFormat`. Partition values are those of Delta, then those of Iceberg."""

    delta: DeltaFormat
    iceberg: IcebergFormat

    @property
    def is_partitioned(self) -> bool:
        return self.delta.is_partitioned

    @property
    def reads_delta_encoding(self) -> bool:
        return self.delta.reads_delta_encoding and self.iceberg.reads_delta_encoding

    def problems(self, schema: pa.Schema) -> list[str]:
        return [*self.delta.problems(schema), *self.iceberg.problems(schema)]

    def open_filesystem(self, location: str, storage_options: dict[str, str]) -> tuple[FileSystem, str]:
        return self.delta.open_filesystem(location, storage_options)

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def split(self, rows: pa.Table, where: str) -> Iterator[PartitionSlice]:
        names = self.delta.partition_by
        for name in names:
            _check_no_empty_text(name, rows.column(name), where)
        for part in self.iceberg.split(rows, where):
            first = [part.rows.column(name).slice(0, 1) for name in names]
            yield PartitionSlice((*format_values(names, first, 0, where), *part.values), part.rows)

    def data_path(self, values: PartitionValues, file_name: str) -> str:
        return self.delta.data_path(values[: len(values) // 2], file_name)

    def file_statistics(self, schema: pa.Schema) -> Callable[[], FileStatistics]:
        # Delta counts its columns without those of the partitions, which these files have
        columns = {leaf.path: leaf.parquet_column for leaf in leaves_with_statistics(schema, (), None, -1)}
        leaves = [
            replace(leaf, parquet_column=columns[leaf.path])
            for leaf in leaves_with_statistics(
                schema,
                self.delta.partition_by,
                self.delta.statistics_columns,
                self.delta.statistics_columns_max,
            )
        ]
        new_of_iceberg = self.iceberg.file_statistics(schema)
        return lambda: _Statistics(DeltaFileStatistics(leaves), new_of_iceberg())


class _Statistics:
    """See `FileStatistics`."""

    def __init__(self, *formats: FileStatistics) -> None:
        self._formats = formats

    def add(self, rows: pa.Table) -> None:
        for one in self._formats:
            one.add(rows)

    def to_json(self, footer: pq.FileMetaData) -> str:
        return json.dumps([one.to_json(footer) for one in self._formats])


def _check_no_empty_text(name: str, column: pa.ChunkedArray, where: str) -> None:
    """
    Raises:
        SchemaMismatchError: the column has an empty string. As a partition value, Delta reads it as NULL.
    """
    if pa.types.is_string(column.type) and pc.any(pc.equal(column, string_array([""])[0])).as_py():
        raise SchemaMismatchError(
            f"Empty string in the partition column {name} ({where}): Delta would read it as NULL, and "
            f"Iceberg as an empty string. Give these rows another value, such as nullif({name}, '')."
        )


def files_of_delta(files: DataFiles) -> DataFiles:
    """Return the files with the partition values and the statistics of Delta."""
    return _files_of(files, "delta")


def files_of_iceberg(files: DataFiles) -> DataFiles:
    """Return the files with the partition values and the metrics of Iceberg."""
    return _files_of(files, "iceberg")


def _files_of(files: DataFiles, format_name: str) -> DataFiles:
    index = _FORMATS.index(format_name)
    return tuple(
        replace(
            file,
            partition_values=file.partition_values[index * count : (index + 1) * count],
            statistics=json.loads(file.statistics)[index] if file.statistics else "",
        )
        for file in files
        for count in (len(file.partition_values) // 2,)
    )
