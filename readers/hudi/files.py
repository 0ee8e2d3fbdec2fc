"""The data files of a Hudi table. A file has all rows of its slice, so nothing is deleted in it. Streams read
those that a commit has added.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...committers.arrow_values import null_scalar, numeric_array, numeric_scalar, string_array
from ...committers.changes.keys import row_numbers
from ...committers.cleaning.regular_files import open_input
from ...committers.errors import PenstockError
from ...committers.hudi.names import COMMIT_TIME
from ...writers.delta.filesystem import open_filesystem
from ...writers.parquet.columns import without_views
from ..scan import ScanFile
from ..values import microseconds
from .commits import AddedRows


@dataclass(frozen=True, slots=True)
class RowNumbers:
    """See `ScanFile.only`."""

    numbers: pa.Array
    """Of rows of the file (int64, ascending)."""


@dataclass(frozen=True, slots=True)
class HudiFiles:
    """See `DataFiles`."""

    table_uri: str
    storage_options: Mapping[str, str] = field(repr=False)

    def open(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        """
        Args:
            path: below the table
        """
        filesystem, folder = open_filesystem(self.table_uri, dict(self.storage_options))
        opened: AbstractContextManager[pa.NativeFile] = open_input(filesystem, posixpath.join(folder, path))
        return opened

    def deleted_rows(self, file: ScanFile) -> pa.Array | None:
        """See `DataFiles`."""
        return None

    def only_rows(self, file: ScanFile) -> pa.Array | None:
        """See `DataFiles`. `ScanFile.only` is `AddedRows` or `RowNumbers`.

        Raises:
            PenstockError: there are not as many as the commit says.
        """
        added = file.only
        if isinstance(added, RowNumbers):
            return added.numbers
        if not isinstance(added, AddedRows):
            return None
        with self.open(file.path) as stream:
            parquet = pq.ParquetFile(stream)
            found = None if _are_all_of(parquet.metadata, added.instant) else _rows_of(parquet, added.instant)
        count = parquet.metadata.num_rows if found is None else len(found)
        if count != added.rows:
            raise PenstockError(
                f"The data file {file.path} of the Hudi table {self.table_uri} has {count:,} rows of the "
                f"commit {added.instant}, which says that it has added {added.rows:,}. Which rows are new "
                "cannot be told. Nothing of the file was read. Begin with a later commit (startingVersion, "
                "with a new checkpoint)."
            )
        return found

    def value(self, name: str, value: Any, data_type: pa.DataType) -> pa.Scalar:
        """See `DataFiles`. Only columns of a change feed have values that files do not have."""
        if isinstance(value, datetime):
            return numeric_array([microseconds(value)])[0].cast(data_type)
        if isinstance(value, str):
            return string_array([value])[0].cast(data_type)
        return null_scalar(data_type) if value is None else numeric_scalar(value).cast(data_type)


def _are_all_of(metadata: pq.FileMetaData, instant: str) -> bool:
    """Return True if all rows certainly are of a commit."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    own = (next(_columns_named(group, COMMIT_TIME), None) for group in groups)
    found = (None if column is None else column.statistics for column in own)
    return all(
        one is not None
        and one.has_min_max
        and not one.null_count
        and (one.min, one.max) == (instant, instant)
        for one in found
    )


def _columns_named(group: pq.RowGroupMetaData, name: str) -> Iterator[pq.ColumnChunkMetaData]:
    columns = (group.column(number) for number in range(group.num_columns))
    return (column for column in columns if column.path_in_schema == name)


def _rows_of(parquet: pq.ParquetFile, instant: str) -> pa.Array:
    """Return the numbers of the rows of a commit."""
    found, first = [], 0
    for batch in parquet.iter_batches(columns=[COMMIT_TIME], use_threads=False):
        own = pc.equal(without_views(batch).column(0).cast(pa.string()), string_array([instant])[0])
        numbers = pc.add(row_numbers(batch.num_rows), numeric_scalar(first))
        found.append(numbers.filter(own))
        first += batch.num_rows
    return pa.concat_arrays(found) if found else numeric_array(())
