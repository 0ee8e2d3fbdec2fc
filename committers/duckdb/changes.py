"""Applies the changes of a batch to a DuckDB table.

Rows are deleted and inserted again, which DuckDB does many times faster than UPDATE and MERGE. A column that
the query does not have keeps its value.
"""

from __future__ import annotations

from functools import cached_property

from ..contract import DeadLetters
from ..database.changing import LAST_ROWS, RowChanger
from ..database.moving import RowSource
from ..database.staging import DELETES, ROW, StagingTables
from .address import quoted
from .fence import DuckDbFence
from .rows import RowsByQueries

_REPLACED = "temp.penstock_replaced"
"""A temporary table: the rows that are replaced, if the table has columns that the query does not have."""


class DuckDbChanger(RowChanger, RowsByQueries):
    """See `RowChanger`."""

    def move(self) -> tuple[int, DeadLetters]:
        """Of two commits at once one fails, and is tried again: each must see the rows of the other."""
        DuckDbFence().touch(self._cursor, self._address)
        return super().move()

    def _last_rows(self, staged: StagingTables) -> RowSource:
        self._check_counts(staged)
        self._cursor.execute(
            f"CREATE OR REPLACE TEMP TABLE {LAST_ROWS} AS "
            f"SELECT l.*, row_number() OVER (ORDER BY {self._rows.key_of('l')}) - 1 AS {ROW} "
            f"FROM {self._rows.last(staged)}"
        )
        names = ", ".join(one.path for one in staged[:3])
        source = RowSource(f"temp.{LAST_ROWS}", names, 0)
        if self._others_kept:
            self._keep_others(source)
        return RowSource(source.relation, names, sum(self._counted(source, "1 = 1")))

    def _delete(self, source: RowSource, where: str) -> None:
        where = f"n.{DELETES} AND {where}"
        self._remove(source, where)
        if self._tombstones is not None:
            self._added += self._tombstones.add(self._cursor, source.relation, where)

    def _upsert(self, source: RowSource, where: str) -> int:
        where = f"NOT n.{DELETES} AND {where}"
        self._remove(source, where)
        names = [name for name, _ in self._content.columns]
        columns = ", ".join(map(quoted, [*names, *self._others_kept]))
        values = ", ".join([*(f"n.{quoted(name)}" for name in names), *self._others().values()])
        is_late = ""
        if self._tombstones is not None:
            there = f"SELECT 1 FROM {self._address.sql} t WHERE {self._is_row()}"
            is_late = f" AND NOT EXISTS ({there}) AND {self._tombstones.is_not_older()}"
        self._cursor.execute(
            f"INSERT INTO {self._address.sql} ({columns}) SELECT {values} FROM {self._written(source)} "
            f"WHERE {where}{is_late}"
        )
        written = self._cursor.rowcount
        if self._tombstones is not None:
            self._tombstones.remove(self._cursor, source.relation, where)
        return written

    def _remove(self, source: RowSource, where: str) -> None:
        """Delete the rows of the table that are older than those of the batch."""
        is_row = self._is_row()
        if self._tombstones is not None:
            is_row = f"{is_row} AND {self._is_not_older('n')} AND {self._tombstones.is_not_older()}"
        self._cursor.execute(
            f"DELETE FROM {self._address.sql} t USING {source.relation} n WHERE {where} AND {is_row}"
        )

    # Columns that the query does not have -----------------------------------------------------------

    @cached_property
    def _others_kept(self) -> dict[str, str]:
        """Their names, with their defaults in SQL."""
        table = self._dialect.load(self._cursor, self._address)
        assert table is not None
        staged, defaults = {name for name, _ in self._content.columns}, self._defaults()
        return {
            column.name: defaults.get(column.name) or "NULL"
            for column in table.columns
            if column.name not in staged and not column.is_computed
        }

    def _keep_others(self, source: RowSource) -> None:
        """Collect the rows that are replaced, before they are deleted; one of each key."""
        self._cursor.execute(
            f"CREATE OR REPLACE TEMP TABLE penstock_replaced AS "
            f"SELECT DISTINCT ON ({self._rows.key_of('t')}) t.* "
            f"FROM {self._address.sql} t JOIN {source.relation} n ON {self._is_row()}"
        )

    def _written(self, source: RowSource) -> str:
        rows = f"(SELECT * FROM {source.relation} WHERE NOT {DELETES}) n"
        return f"{rows} LEFT JOIN {_REPLACED} t ON {self._is_row()}" if self._others_kept else rows

    def _others(self) -> dict[str, str]:  # type: ignore[override]
        key = quoted(self._changes.keys[0])
        return {
            name: f"CASE WHEN t.{key} IS NULL THEN {default} ELSE t.{quoted(name)} END"
            for name, default in self._others_kept.items()
        }

    @property
    def _stays(self) -> str:  # type: ignore[override]
        """See `RowsByQueries`. A row of the batch that is refused replaces none."""
        is_row = self._is_row()
        replaced = f"SELECT 1 FROM temp.penstock_now n WHERE {is_row}"
        deleted = f"SELECT 1 FROM temp.{LAST_ROWS} n WHERE n.{DELETES} AND {is_row}"
        return f"NOT EXISTS ({replaced}) AND NOT EXISTS ({deleted})"
