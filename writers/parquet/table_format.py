"""What a table format decides about data files. Delta and Iceberg have one each, in their own folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

PartitionValues: TypeAlias = tuple[tuple[str, str | None], ...]
"""A table partition: (name, value as string or None for NULL), in the order of the partitioning."""


@dataclass(frozen=True, slots=True)
class PartitionSlice:
    """Rows of one table partition, with the columns that its files have."""

    values: PartitionValues
    rows: pa.RecordBatch


class FileStatistics(Protocol):
    """Collects the column statistics of one data file: `add` before rows are written, `to_json` at the
    end.
    """

    def add(self, rows: pa.Table) -> None:
        """Called with rows that are about to be written, for statistics that the Parquet footer does not
        have.
        """
        ...

    def to_json(self, footer: pq.FileMetaData) -> str:
        """The statistics of the closed file, in the table format's own form."""
        ...


class NoStatistics:
    """See `FileStatistics`. Of formats whose commits have none."""

    def add(self, rows: pa.Table) -> None:
        """Do nothing."""

    def to_json(self, footer: pq.FileMetaData) -> str:
        return ""


class TableFormat(Protocol):
    """A frozen dataclass that can be pickled: created on the driver, used on executors."""

    @property
    def is_partitioned(self) -> bool:
        """False if all rows belong to one table partition: then `split` is never called."""
        ...

    @property
    def reads_delta_encoding(self) -> bool:
        """True if all recent readers of the format decode DELTA_BINARY_PACKED by default."""
        ...

    def problems(self, schema: pa.Schema) -> list[str]:
        """Sentences that say why rows of this schema cannot be written; empty if they can."""
        ...

    def open_filesystem(self, location: str, storage_options: dict[str, str]) -> tuple[FileSystem, str]:
        """The file system of `location`, and the location's path in it."""
        ...

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the data files of a table whose rows have `schema`."""
        ...

    def split(self, rows: pa.Table, where: str) -> Iterator[PartitionSlice]:
        """Split the rows by table partition, keeping the order within each. The results may be slices of one
        copy.

        Raises:
            SchemaMismatchError: a value is not allowed as a partition value. `where` names the task attempt.
        """
        ...

    def data_path(self, values: PartitionValues, file_name: str) -> str:
        """The path of a table partition's file, relative to the location; ends in `/{file_name}`."""
        ...

    def file_statistics(self, schema: pa.Schema) -> Callable[[], FileStatistics]:
        """Collects the statistics of one new data file of a table whose rows have `schema`."""
        ...


@runtime_checkable
class StoresFileNames(Protocol):
    """A format whose files have columns that depend on the file, in addition to those of its rows."""

    def stored_rows(self, rows: pa.Table, path: str, first: int) -> pa.Table:
        """Return the rows as they are stored in the file at `path`.

        Args:
            first: number of the first row in the file

        Raises:
            SchemaMismatchError: a value is not allowed.
        """
        ...


class OpenDataFile(Protocol):
    """One data file that is being written."""

    @property
    def size_bytes(self) -> int:
        """Bytes so far; of a closed file, its size."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory between two row groups."""
        ...

    def write_row_group(self, rows: pa.Table) -> None: ...

    def close(self) -> pq.FileMetaData:
        """Close the file; return its Parquet footer, None if it is not Parquet."""
        ...

    def discard(self) -> None:
        """Close the file in any state; it is about to be deleted. Never raises."""
        ...


@runtime_checkable
class OpensFiles(Protocol):
    """A format whose data files are not Parquet."""

    def open_file(self, sink: pa.NativeFile, schema: pa.Schema) -> OpenDataFile: ...


@runtime_checkable
class ChecksValues(Protocol):
    """A format that does not have all values of its columns' types."""

    def check_values(self, rows: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaMismatchError: the format does not have a value.
        """
        ...
