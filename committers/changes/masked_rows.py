"""Finds the rows of a table that a commit masks, because a batch replaces or deletes them.

Runs at the commit, on the files of the version that the commit is based on: other writers compact and delete
meanwhile, so positions are never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow_values import numeric_scalar, string_array
from ..contract import Changes
from .file_search import NONE, FileSearch, FoundRows, SearchedFile
from .key_files import Keys, OpenFile
from .keys import row_numbers
from .last_changes import LastChanges
from .tombstones import Tombstones


@dataclass(frozen=True, slots=True)
class MaskedRows:
    """The rows that a commit masks: their numbers (int64, ascending), by the path of their file."""

    in_table: Mapping[str, pa.Array]
    """Without rows that were deleted before."""
    in_new: Mapping[str, pa.Array]
    """Rows of the batch that lose against others."""


ReadMasked: TypeAlias = Callable[[Sequence[str]], Mapping[str, pa.Array]]
"""Returns the numbers of deleted rows (int64) by path, for those of the files that have some."""

Search: TypeAlias = Callable[[FileSearch, Sequence[SearchedFile], OpenFile], Sequence[FoundRows]]
"""A `SearchFiles` for one manifest."""


class KeySearch:
    """Finds the rows of the last changes of one manifest. Keeps what it has found, as files do not change:
    after a conflict it only reads those that are new in the table.

    Args:
        changes: names of the columns
        last: see `LastChanges`
        open_file: opens a data file in this process
        search: searches the files of the table
        field_ids: ids that identify the columns in files, in formats where their names may change
        other_names: with `field_ids`: names of columns in files that have no ids
        tombstones: of the table, if late rows are ignored
    """

    def __init__(
        self,
        changes: Changes,
        last: LastChanges,
        open_file: OpenFile,
        search: Search,
        field_ids: Mapping[str, int] | None = None,
        other_names: Mapping[str, Collection[str]] | None = None,
        tombstones: Tombstones | None = None,
    ) -> None:
        self._tombstones = tombstones
        self._has_added_tombstones = False
        self._changes = changes
        self._last = last
        self._ignores_late = changes.late_rows == "ignore"
        self._open_file = open_file
        self._search_files = search
        self._file_search = partial(FileSearch, field_ids=field_ids, other_names=other_names)
        order = (
            (changes.order_by, [column.type for column in last.keys.order])
            if self._ignores_late
            else ((), ())
        )
        self._search = self._file_search([*changes.keys, *order[0]], last.keys.columns, order[1])
        self._found: dict[str, FoundRows] = {}

    def masked_rows(
        self,
        files: Sequence[SearchedFile],
        new_files: Sequence[Sequence[SearchedFile]],
        read_masked: ReadMasked = lambda _: {},
    ) -> MaskedRows:
        """
        Args:
            files: all files of the table
            new_files: for each `WrittenKeys`, its data files
            read_masked: for files without `masked`; called only for those with one of the keys

        Raises:
            PenstockError: a file is damaged.
            RetryableError: a file cannot be read now.
        """
        files = [file for file in files if self._search.may_have_key(file)]
        unknown = [file for file in files if file.path not in self._found]
        rows = self._search_files(self._search, unknown, self._open_file)
        self._found.update((file.path, one) for file, one in zip(unknown, rows, strict=True))
        masked = {file.path: file.masked for file in files if file.masked is not None}
        with_key = [file.path for file in files if len(self._found[file.path].rows)]
        masked.update(read_masked([path for path in with_key if path not in masked]))
        found = {path: _without(self._found[path], masked.get(path)) for path in with_key}
        late = self._late_keys(found.values()) if self._ignores_late else NONE
        if self._tombstones is not None:
            if not self._has_added_tombstones:
                self._tombstones.add(self._last.keys)
                self._has_added_tombstones = True
            late = pc.unique(pa.concat_arrays([late, self._tombstones.late_keys(self._last.keys)]))
        in_table = {}
        for path, one in found.items():
            rows = one.rows.filter(pc.invert(pc.is_in(one.key, value_set=late))) if len(late) else one.rows
            if len(rows):
                in_table[path] = rows
        return MaskedRows(in_table, self._losing_rows(late, new_files))

    def change_kinds(
        self, masked: MaskedRows, new_files: Sequence[SearchedFile]
    ) -> Mapping[str, tuple[pa.Array, pa.Array]]:
        """Return the numbers of the rows that a commit deletes, updates and inserts, and the kind of each, as
        in a change data feed, by the path of their file.

        Of several rows of the table with one key one is updated, and the others are deleted.

        Args:
            masked: the last result of `masked_rows`
            new_files: all data files of the manifest
        """
        changed, updated = dict[str, tuple[pa.Array, pa.Array]](), NONE
        for path, rows in masked.in_table.items():
            found = self._found[path]
            key = found.key.filter(pc.is_in(found.rows, value_set=rows))
            is_first = pc.equal(pc.index_in(key, value_set=key).cast(pa.int64()), row_numbers(len(key)))
            is_gone = pc.or_(self._last.keys.is_deleted.take(key), pc.is_in(key, value_set=updated))
            is_update = pc.and_not(is_first, is_gone)
            changed[path] = rows, pc.if_else(is_update, *_OF_OLD)
            updated = pa.concat_arrays([updated, key.filter(is_update)])
        search = self._file_search(self._changes.keys, self._last.keys.columns)
        for file in new_files:
            left = _without(search(file, self._open_file), masked.in_new.get(file.path))
            kinds = pc.if_else(pc.is_in(left.key, value_set=updated), *_OF_NEW)
            changed[file.path] = left.rows, kinds
        return changed

    def _late_keys(self, found: Iterable[FoundRows]) -> pa.Array:
        """Numbers of the keys for which the table has a newer row."""
        late = []
        for one in found:
            given = [order.take(one.key) for order in self._last.keys.order]
            late.append(one.key.filter(_is_greater(one.order, given)))
        return pc.unique(pa.concat_arrays(late)) if late else NONE

    def _losing_rows(
        self, late: pa.Array, new_files: Sequence[Sequence[SearchedFile]]
    ) -> Mapping[str, pa.Array]:
        """The rows of the batch that lose against other rows of the batch, or of the table."""
        last = self._last
        masked: dict[str, pa.Array] = {}
        lost_late = [last.written_in.take(late), last.keys.take(late)] if len(late) else None
        for number, (keys, files) in enumerate(zip(last.losing, new_files, strict=True)):
            lost = [keys]
            if lost_late is not None:
                lost.append(lost_late[1].take(pc.indices_nonzero(pc.equal(lost_late[0], number))))
            of_part = Keys.concat(lost)
            of_part = of_part.take(pc.indices_nonzero(pc.invert(of_part.is_deleted)))
            if not len(of_part):
                continue
            search = self._file_search(self._changes.keys, of_part.columns)
            for file in files:
                rows = search(file, self._open_file).rows
                if len(rows):
                    masked[file.path] = rows
        return masked


def _without(found: FoundRows, masked: pa.Array | None) -> FoundRows:
    if masked is None or not len(found.rows):
        return found
    return found.filter(pc.invert(pc.is_in(found.rows, value_set=masked)))


def _is_greater(some: Sequence[pa.Array], others: Sequence[pa.Array]) -> pa.Array:
    """Compare columns one after the other. NULL is smaller than everything."""
    is_greater: pa.Array | None = None
    is_equal: pa.Array | None = None
    for one, other in zip(some, others, strict=True):
        greater = pc.fill_null(pc.greater(one, other), _FALSE)
        equal = pc.fill_null(pc.equal(one, other), _FALSE)
        if is_greater is None or is_equal is None:
            is_greater, is_equal = greater, equal
        else:
            is_greater = pc.or_(is_greater, pc.and_(is_equal, greater))
            is_equal = pc.and_(is_equal, equal)
    assert is_greater is not None, "lateRows=ignore needs an order"
    return is_greater


_OF_OLD = string_array(["update_preimage"])[0], string_array(["delete"])[0]
_OF_NEW = string_array(["update_postimage"])[0], string_array(["insert"])[0]
_FALSE = pc.equal(numeric_scalar(0), numeric_scalar(1))
