"""What a table format decides about data files. Delta and Iceberg each have one, in folders of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

PartitionValues: TypeAlias = tuple[tuple[str, str | None], ...]
"""What makes a table partition: (name, value as text or None for NULL), in the order of the partitioning."""


@dataclass(frozen=True, slots=True)
class PartitionSlice:
    """Rows of one table partition, with the columns that go into its files."""

    values: PartitionValues
    rows: pa.RecordBatch


class FileStatistics(Protocol):
    """Gathers the column statistics of one data file: `add` before rows are written, `to_json` at the end."""

    def add(self, rows: pa.Table) -> None:
        """Look at rows that are about to be written, for what the Parquet footer does not tell."""
        ...

    def to_json(self, footer: pq.FileMetaData) -> str:
        """The statistics of the closed file, in the table format's own form."""
        ...


class TableFormat(Protocol):
    """A frozen dataclass that pickles: made on the driver, used on executors."""

    @property
    def is_partitioned(self) -> bool:
        """False if all rows belong to one table partition: `split` is never called then."""
        ...

    @property
    def reads_delta_encoding(self) -> bool:
        """True if all its readers of recent years decode DELTA_BINARY_PACKED by default."""
        ...

    def problems(self, schema: pa.Schema) -> list[str]:
        """Why rows of this schema cannot be written, in sentences; empty if they can."""
        ...

    def open_filesystem(self, location: str, storage_options: dict[str, str]) -> tuple[FileSystem, str]:
        """The file system that holds `location`, and the location's path in it."""
        ...

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the data files of a table whose rows have `schema`."""
        ...

    def split(self, rows: pa.Table, where: str) -> Iterator[PartitionSlice]:
        """The rows by table partition, in arrival order within each, which may be slices of one copy.

        Raises:
            SchemaMismatchError: a value cannot be a partition's. `where` names the task attempt.
        """
        ...

    def data_path(self, values: PartitionValues, file_name: str) -> str:
        """Where a file of a table partition lies, relative to the location; ends in `/{file_name}`."""
        ...

    def file_statistics(self, schema: pa.Schema) -> Callable[[], FileStatistics]:
        """What makes those of one new data file of a table whose rows have `schema`."""
        ...
