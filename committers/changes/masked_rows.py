"""Decides which rows a commit masks, because a batch replaces or deletes them, and which it computes.

Runs at the commit, on the files of the version that the commit is based on: other writers compact and delete
meanwhile, so positions are never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow_values import numeric_array, string_array
from ..contract import Changes
from .completed_rows import with_kept_values
from .computed_rows import CommitInputs, Computed, RowReader, ascending
from .file_search import FoundRows, Search, SearchedFile, TableSearch
from .key_files import Keys, OpenFile, WrittenKeys
from .keys import FALSE, last_rows, row_numbers
from .last_changes import last_changes
from .tombstones import Tombstones
from .versions import with_history


@dataclass(frozen=True, slots=True)
class MaskedRows:
    """The rows that a commit masks: their numbers (int64, ascending), by the path of their file."""

    in_table: Mapping[str, pa.Array]
    """Without rows that were deleted before."""
    in_new: Mapping[str, pa.Array]
    """Rows of the batch that lose against others, or that the commit computes."""
    computed: pa.Table | None = None
    """Rows to write in addition, with all columns of the table; None: there are none."""


ReadMasked: TypeAlias = Callable[[Sequence[str]], Mapping[str, pa.Array]]
"""Returns the numbers of deleted rows (int64) by path, for those of the files that have some."""


class KeySearch:
    """Finds the rows of the last changes of one manifest. Keeps what it has found, as files do not change:
    after a conflict it only reads those that are new in the table.

    Args:
        changes: names of the columns
        written: the content of the key files
        planned: columns of the table when the batch was planned
        open_file: opens a data file in this process
        search: searches the files of the table
        field_ids, other_names: see `FileSearch`
        tombstones: of the table, if late rows are ignored
    """

    def __init__(
        self,
        changes: Changes,
        written: Sequence[WrittenKeys],
        planned: Sequence[str],
        open_file: OpenFile,
        search: Search,
        field_ids: Mapping[str, int] | None = None,
        other_names: Mapping[str, Collection[str]] | None = None,
        tombstones: Tombstones | None = None,
    ) -> None:
        self._tombstones = tombstones
        self._has_added_tombstones = False
        self._changes = changes
        self._written = written
        self._planned = planned
        self._last = last_changes(written, changes)
        self._ignores_late = changes.late_rows == "ignore"
        last = self._last.keys
        keys, wanted = last.columns, dict[str, pa.DataType]()
        if self._ignores_late:
            types = [column.type for column in last.order]
            wanted = dict(zip(changes.order_by, types, strict=True))
        if changes.history is not None:
            *by_key, valid_from = last.columns
            distinct = last_rows(by_key, ()).rows
            keys = tuple([column.take(distinct) for column in by_key])
            wanted = {changes.history.valid_from: valid_from.type, changes.history.valid_to: valid_from.type}
        self._keys = keys
        self._found: Mapping[str, FoundRows] = {}
        """What the last call of `masked_rows` has found."""
        self._search = TableSearch(changes.keys, keys, wanted, open_file, search, field_ids, other_names)

    def masked_rows(
        self,
        files: Sequence[SearchedFile],
        new_files: Sequence[Sequence[SearchedFile]],
        read_masked: ReadMasked = lambda _: {},
        open_reader: Callable[[], RowReader] | None = None,
    ) -> MaskedRows:
        """
        Args:
            files: all files of the table
            new_files: for each `WrittenKeys`, its data files
            read_masked: for files without `masked`; called only for those with one of the keys
            open_reader: called if rows may have to be computed

        Raises:
            PenstockError: a file is damaged.
            RetryableError: a file cannot be read now.
        """
        found = self._found = self._in_table(files, read_masked)
        late = self._late_keys(found.values()) if self._ignores_late else _NONE
        if self._tombstones is not None:
            if not self._has_added_tombstones:
                self._tombstones.add(self._last.keys)
                self._has_added_tombstones = True
            late = pc.unique(pa.concat_arrays([late, self._tombstones.late_keys(self._last.keys)]))
        inputs = CommitInputs(
            self._changes, self._planned, self._written, self._last, new_files, found, self._search
        )
        computed = Computed()
        if self._changes.history is not None:
            assert open_reader is not None, "the committer has no reader of rows"
            computed = with_history(inputs, self._keys, open_reader)
        elif self._changes.partial_columns or any(one.keys.kept for one in self._written):
            assert open_reader is not None, "the committer has no reader of rows"
            computed = with_kept_values(inputs, late, self._tombstones, open_reader)
        in_table = computed.in_table
        if in_table is None:
            in_table = {path: _not_of(one, late) for path, one in found.items()}
        in_new = dict(self._losing_rows(late, new_files))
        for path, rows in computed.in_new.items():
            in_new[path] = ascending([rows, in_new.get(path, _NONE)])
        return MaskedRows({path: rows for path, rows in in_table.items() if len(rows)}, in_new, computed.rows)

    def _in_table(self, files: Sequence[SearchedFile], read_masked: ReadMasked) -> Mapping[str, FoundRows]:
        """Return the rows of the table that have one of the keys and are not deleted."""
        found = {path: one for path, one in self._search.find(files).items() if len(one.rows)}
        masked = {file.path: file.masked for file in files if file.masked is not None}
        masked.update(read_masked([path for path in found if path not in masked]))
        return {path: one.without(masked.get(path)) for path, one in found.items()}

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
        changed, updated = dict[str, tuple[pa.Array, pa.Array]](), _NONE
        for path, rows in masked.in_table.items():
            found = self._found[path]
            key = found.key.filter(pc.is_in(found.rows, value_set=rows))
            is_first = pc.equal(pc.index_in(key, value_set=key).cast(pa.int64()), row_numbers(len(key)))
            is_gone = pc.or_(self._last.keys.is_deleted.take(key), pc.is_in(key, value_set=updated))
            is_update = pc.and_not(is_first, is_gone)
            changed[path] = rows, pc.if_else(is_update, *_OF_OLD)
            updated = pa.concat_arrays([updated, key.filter(is_update)])
        for file in new_files:
            found = self._search.find_in(file, self._changes.keys, self._last.keys.columns)
            left = found.without(masked.in_new.get(file.path))
            kinds = pc.if_else(pc.is_in(left.key, value_set=updated), *_OF_NEW)
            changed[file.path] = left.rows, kinds
        return changed

    def _late_keys(self, found: Iterable[FoundRows]) -> pa.Array:
        """Numbers of the keys for which the table has a newer row."""
        late = []
        for one in found:
            given = [order.take(one.key) for order in self._last.keys.order]
            late.append(one.key.filter(_is_greater(one.values, given)))
        return pc.unique(pa.concat_arrays(late)) if late else _NONE

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
            for file in files:
                rows = self._search.find_in(file, self._changes.identity, of_part.columns).rows
                if len(rows):
                    masked[file.path] = rows
        return masked


_NONE = numeric_array(())
_OF_OLD = string_array(["update_preimage"])[0], string_array(["delete"])[0]
_OF_NEW = string_array(["update_postimage"])[0], string_array(["insert"])[0]


def _not_of(found: FoundRows, late: pa.Array) -> pa.Array:
    """Return the rows without those of late keys."""
    return found.rows.filter(pc.invert(pc.is_in(found.key, value_set=late))) if len(late) else found.rows


def _is_greater(some: Sequence[pa.Array], others: Sequence[pa.Array]) -> pa.Array:
    """Compare columns one after the other. NULL is smaller than everything."""
    is_greater: pa.Array | None = None
    is_equal: pa.Array | None = None
    for one, other in zip(some, others, strict=True):
        greater = pc.fill_null(pc.greater(one, other), FALSE)
        equal = pc.fill_null(pc.equal(one, other), FALSE)
        if is_greater is None or is_equal is None:
            is_greater, is_equal = greater, equal
        else:
            is_greater = pc.or_(is_greater, pc.and_(is_equal, greater))
            is_equal = pc.and_(is_equal, equal)
    assert is_greater is not None, "lateRows=ignore needs an order"
    return is_greater
