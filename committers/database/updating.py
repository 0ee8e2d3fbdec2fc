"""Applies the changes of a batch with UPDATE, INSERT and DELETE, for databases without a better statement.

Rows that are there are updated, so that columns which the query does not have keep their values. The others
are inserted. If another session inserts a key in between, the INSERT is refused, and the rows are moved
again.
"""

from __future__ import annotations

from typing import ClassVar

from .changing import RowChanger
from .moving import RowSource
from .staging import DELETES


class UpdatingChanger(RowChanger):
    """See `RowChanger`. The table has a unique index over the keys."""

    counts_equal_rows: ClassVar[bool] = True
    """False: an UPDATE does not count rows that have the new values already."""

    def _delete(self, source: RowSource, where: str) -> None:
        where = f"n.{DELETES} AND {where}"
        condition = self._is_row()
        if self._tombstones is not None:
            condition = f"{condition} AND {self._is_not_older('n')} AND {self._tombstones.is_not_older()}"
        table, rows = f"{self._address.sql} t", f"{source.relation} n"
        self._cursor.execute(self._own.delete_joined(table, rows, condition, where))
        if self._tombstones is not None:
            self._added += self._tombstones.add(self._cursor, source.relation, where)

    def _upsert(self, source: RowSource, where: str) -> int:
        names = [self._quoted(name) for name, _ in self._content.columns]
        keys = [self._quoted(name) for name in self._changes.keys]
        where = f"NOT n.{DELETES} AND {where}"
        condition, is_newer = where, ""
        if self._tombstones is not None:
            condition = f"{where} AND {self._tombstones.is_not_older()}"
            is_newer = f" AND {self._is_not_older('n')}"
        table, rows = f"{self._address.sql} t", f"{source.relation} n"
        others = [name for name in names if name not in keys]
        self._cursor.execute(
            self._own.update_joined(table, rows, others or keys, self._is_row(), condition + is_newer)
        )
        written = self._cursor.rowcount
        self._cursor.execute(
            f"INSERT INTO {self._address.sql} ({', '.join(names)}) "
            f"SELECT {', '.join(f'n.{name}' for name in names)} FROM {rows} "
            f"WHERE {condition} AND NOT EXISTS (SELECT 1 FROM {table} WHERE {self._is_row()}) "
            f"ORDER BY n.{self._ids.column}"
        )
        written += self._cursor.rowcount
        if self._tombstones is not None:
            self._tombstones.remove(self._cursor, source.relation, where)
        return written if self.counts_equal_rows else self._counted(source, where)[0]
