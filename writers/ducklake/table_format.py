"""Data files of a DuckLake table: on a disk, without partitions. DuckLake reads the statistics itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, LocalFileSystem

from ..parquet.table_format import FileStatistics, PartitionSlice, PartitionValues


class _NoStatistics:
    def add(self, rows: pa.Table) -> None:
        """See `FileStatistics`."""

    def to_json(self, footer: pq.FileMetaData) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class DuckLakeFormat:
    """See `TableFormat`."""

    @property
    def is_partitioned(self) -> bool:
        return False

    @property
    def reads_delta_encoding(self) -> bool:
        return True

    def problems(self, schema: pa.Schema) -> list[str]:
        return []

    def open_filesystem(self, location: str, storage_options: dict[str, str]) -> tuple[FileSystem, str]:
        return LocalFileSystem(), location

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def split(self, rows: pa.Table, where: str) -> Iterator[PartitionSlice]:
        raise NotImplementedError("not partitioned")

    def data_path(self, values: PartitionValues, file_name: str) -> str:
        return file_name

    def file_statistics(self, schema: pa.Schema) -> Callable[[], FileStatistics]:
        return _NoStatistics
