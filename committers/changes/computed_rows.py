"""Rows that only the commit can compute, from rows of the table and of its batches.

    kept values   a row that leaves columns as they are gets their values from the row that it replaces
    history       a version ends where the next one of its key begins

The commit masks the rows that it has computed anew, and writes them into files of its own. Only rows with a
key of the batches are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow_values import numeric_array
from ..contract import Changes
from .file_search import FoundRows, SearchedFile, TableSearch
from .key_files import WrittenKeys
from .last_changes import LastChanges


class RowReader(Protocol):
    """Reads rows in the columns that the table has after the commit."""

    @property
    def schema(self) -> pa.Schema: ...

    def name_of(self, planned: str) -> str | None:
        """Return the name of a column that had another one when the batch was planned; None if the table does
        not have it any more.
        """
        ...

    def read(self, path: str, rows: pa.Array) -> pa.Table:
        """Read rows of a data file of the table, or of the batch.

        Args:
            rows: their numbers (int64)
        """
        ...

    def converted(self, rows: pa.Table) -> pa.Table:
        """Return rows that have the columns of the plan."""
        ...


@dataclass(frozen=True, slots=True)
class Computed:
    """What a commit does beside replacing rows by their keys."""

    rows: pa.Table | None = None
    """Rows to write, with all columns of the table."""
    in_table: Mapping[str, pa.Array] | None = None
    """Numbers of the rows of the table that are masked, by path; None: those that have one of the keys."""
    in_new: Mapping[str, pa.Array] = field(default_factory=dict)
    """Numbers of rows in files of the batch that are masked, beside those that lose."""


@dataclass(frozen=True, slots=True)
class CommitInputs:
    """What a commit has found out."""

    changes: Changes
    planned: Sequence[str]
    """Columns of the table when the batch was planned."""
    written: Sequence[WrittenKeys]
    last: LastChanges
    new_files: Sequence[Sequence[SearchedFile]]
    """For each of `written`, its data files."""
    found: Mapping[str, FoundRows]
    """Rows of the table that have one of the keys, by path."""
    search: TableSearch

    def rows_of(self, part: int, identity: Sequence[pa.Array]) -> Iterator[tuple[str, FoundRows]]:
        """Find rows of a part of a batch in its data files.

        Args:
            identity: their columns of `Changes.identity`
        """
        if len(identity[0]):
            for file in self.new_files[part]:
                found = self.search.find_in(file, self.changes.identity, identity)
                if len(found.rows):
                    yield file.path, found


class ReadRows:
    """Rows that are read from several files, each with a number of the caller."""

    def __init__(self, schema: pa.Schema) -> None:
        self._tables = [schema.empty_table()]
        self._numbers = [numeric_array(())]

    def add(self, numbers: pa.Array, rows: pa.Table) -> None:
        self._tables.append(rows)
        self._numbers.append(numbers.cast(pa.int64()))

    def places(self, numbers: pa.Array) -> pa.Array:
        """Return where the rows with these numbers are in `table` (NULL for NULL)."""
        return pc.index_in(numbers, value_set=pa.concat_arrays(self._numbers), skip_nulls=True)

    def table(self) -> pa.Table:
        return pa.concat_tables(self._tables)


class Masks:
    """Numbers of rows by path."""

    def __init__(self) -> None:
        self._rows: dict[str, list[pa.Array]] = {}

    def add(self, path: str, rows: pa.Array) -> None:
        if len(rows):
            self._rows.setdefault(path, []).append(rows)

    def by_path(self) -> dict[str, pa.Array]:
        return {path: ascending(rows) for path, rows in self._rows.items()}


def ascending(parts: Iterable[pa.Array]) -> pa.Array:
    """Return the numbers in any of the arrays (int64), ascending."""
    numbers = pc.unique(pa.concat_arrays([numeric_array(()), *parts]))
    return numbers.take(pc.array_sort_indices(numbers))
