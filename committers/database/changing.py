"""Applies the changes of a batch to the table: the last row of each key is inserted, replaces or deletes.

Everything is SQL in the transaction of the commit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from ..contract import Changes, DeadLetters
from .keyed_changes import TransactionalChanges
from .moving import RowMover, RowSource
from .rows_by_key import RowsByKey
from .staging import DELETES, PLACE, SOURCE, StagingName, StagingTables, parsed_name
from .tombstones import Tombstones

LAST_ROWS = "penstock_last_rows"
"""The temporary table with the last row of each key."""


class RowChanger(RowMover):
    """See `RowMover`. Replaces and deletes rows of the table by key.

    The last row of each key, over all batches of the manifest, is collected in a temporary table, in the
    order of the keys, so that two commits lock rows in the same order. If the server refuses a row, the
    batches are applied one after the other.
    """

    _added = 0
    """Tombstones that were added."""

    @abstractmethod
    def _last_rows(self, staged: StagingTables) -> RowSource:
        """Collect the last row of each key. Drops what was collected before."""

    @abstractmethod
    def _delete(self, source: RowSource, where: str) -> None:
        """Delete the keys of those rows that delete. With late rows ignored, not if they are late; then add
        tombstones.
        """

    @abstractmethod
    def _upsert(self, source: RowSource, where: str) -> int:
        """Insert or replace the other rows, and remove their tombstones; return their number. With late rows
        ignored, late ones change nothing, and the number does not matter.
        """

    def move(self) -> tuple[int, DeadLetters]:
        if self._tombstones is None:
            return super().move()
        self._tombstones.begin(self._cursor)
        moved = super().move()
        self._tombstones.prune(self._cursor, self._added)
        return moved

    def _sources(self) -> Iterator[RowSource]:
        if self._content.staged:
            yield self._last_rows(self._content.staged)

    def _groups(self) -> Iterator[Sequence[RowSource]]:
        for _, staged in groupby(self._content.staged, lambda one: parsed_name(one).batch_id):
            yield [self._last_rows(tuple(staged))]

    def _named_by(self) -> Sequence[str]:
        return self._changes.keys

    def _origin(self, source: RowSource, row_id: Any) -> tuple[StagingName, int]:
        where = f"SELECT {SOURCE}, {PLACE} FROM {source.relation} n WHERE {self._ids.among([row_id])}"
        ((index, place),) = self._cursor.execute(where).fetchall()
        staged = self._content.staged[index]
        where = f"n.{self._ids.column} < {self._ids.literal(place)}"
        before = f"SELECT count(*) FROM {self._dialect.staged_sql(staged)} n WHERE {where}"
        ((number,),) = self._cursor.execute(before).fetchall()
        return parsed_name(staged), int(number)

    def _apply(self, source: RowSource, where: str) -> int:
        """Delete first: another row may take a value that is unique in the table."""
        upserts, deletes = self._counted(source, where)
        if deletes:
            self._delete(source, where)
        if not upserts:
            return deletes
        written = self._upsert(source, where)
        return deletes + (upserts if self._ignores_late_rows else written)

    @property
    def _changes(self) -> Changes:
        assert isinstance(self._content.mode, Changes)
        return self._content.mode

    @property
    def _own(self) -> TransactionalChanges:
        return self._dialect.keyed_changes()

    @property
    def _rows(self) -> RowsByKey:
        return RowsByKey(self._dialect, self._content)

    @property
    def _ignores_late_rows(self) -> bool:
        return self._changes.late_rows == "ignore"

    @cached_property
    def _tombstones(self) -> Tombstones | None:
        """Those of the table; None if late rows are applied."""
        if not self._ignores_late_rows:
            return None
        content, types = self._content, dict(self._content.staged_columns)
        return self._own.tombstones(self._address, content.table_id, self._changes, types)

    # Rows -------------------------------------------------------------------------------------------

    def _check_counts(self, staged: StagingTables) -> None:
        counts = (
            f"SELECT {number}, count(*) FROM {self._dialect.staged_sql(one)}"
            for number, one in enumerate(staged)
        )
        for number, count in self._cursor.execute(" UNION ALL ".join(counts)).fetchall():
            one = staged[number]
            self._check_moved(self._source_of(one), count)

    def _counted(self, source: RowSource, where: str) -> tuple[int, int]:
        """Return how many of these rows are no deletions, and how many are."""
        ((rows, deletes),) = self._cursor.execute(
            f"SELECT count(*), sum(CASE WHEN n.{DELETES} THEN 1 ELSE 0 END) "
            f"FROM {source.relation} n WHERE {where}"
        ).fetchall()
        deletes = int(deletes or 0)
        return int(rows) - deletes, deletes

    def _is_row(self) -> str:
        """The condition that a row `t` of the table has the key of `n`."""
        types = dict(self._content.staged_columns)
        pairs = ((self._quoted(name), types[name]) for name in self._changes.identity)
        return " AND ".join(self._own.same(f"t.{name}", f"n.{name}", kind) for name, kind in pairs)

    def _is_not_older(self, new: str) -> str:
        """The condition that a row is not older than that of the table."""
        names, types = self._changes.order_by, dict(self._content.staged_columns)
        given, stored = ([f"{side}.{self._quoted(name)}" for name in names] for side in (new, "t"))
        return self._own.at_least(given, stored, [types[name] for name in names])

    def _quoted(self, name: str) -> str:
        return self._dialect.quoted(name)
