"""Applies the changes of a batch to a MySQL table.

Rows that are there are updated, the others are inserted: `ON DUPLICATE KEY UPDATE` would also replace the row
of another key that has the same value in any other unique index, and REPLACE would delete rows. If another
session inserts a key in between, the INSERT is refused, and the rows are moved again.
"""

from __future__ import annotations

from ..database.changing import LAST_ROWS, RowChanger
from ..database.moving import RowSource
from ..database.staging import BATCH, DELETES, PLACE, SOURCE, StagingTables
from .address import quoted


class MySqlChanger(RowChanger):
    """See `RowChanger`."""

    def _last_rows(self, staged: StagingTables) -> RowSource:
        self._check_counts(staged)
        self._cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {self._relation}")
        names = [*(quoted(name) for name, _ in self._content.staged_columns), BATCH, SOURCE, PLACE]
        number = f"{self._ids.column} bigint NOT NULL AUTO_INCREMENT PRIMARY KEY"
        self._cursor.execute(
            f"CREATE TEMPORARY TABLE {self._relation} ({number}) "
            "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 AS "
            f"SELECT {', '.join(f'l.{name}' for name in names)} FROM {self._ranked(staged)} "
            f"ORDER BY {self._by_key('l')}"
        )
        count = self._cursor.rowcount
        return RowSource(self._relation, ", ".join(one.path for one in staged[:3]), count)

    @property
    def _relation(self) -> str:
        return self._dialect.qualified(self._address.schema, LAST_ROWS)

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
        """See `RowChanger`. A trigger cannot drop a row, so all of them are written."""
        names = [quoted(name) for name, _ in self._content.columns]
        keys = {quoted(name) for name in self._changes.keys}
        where = f"NOT n.{DELETES} AND {where}"
        upserts, _ = self._counted(source, where)
        condition, is_newer = where, ""
        if self._tombstones is not None:
            condition = f"{where} AND {self._tombstones.is_not_older()}"
            is_newer = f" AND {self._is_not_older('n')}"
        if values := ", ".join(f"t.{name} = n.{name}" for name in names if name not in keys):
            self._cursor.execute(
                f"UPDATE {self._address.sql} t JOIN {source.relation} n ON {self._is_row()} "
                f"SET {values} WHERE {condition}{is_newer}"
            )
        self._cursor.execute(
            f"INSERT INTO {self._address.sql} ({', '.join(names)}) "
            f"SELECT {', '.join(f'n.{name}' for name in names)} FROM {source.relation} n "
            f"WHERE {condition} AND NOT EXISTS (SELECT 1 FROM {self._address.sql} t WHERE {self._is_row()}) "
            f"ORDER BY n.{self._ids.column}"
        )
        if self._tombstones is not None:
            self._tombstones.remove(self._cursor, source.relation, where)
        return upserts
