"""Applies the changes of a batch to the table: the last row of each key is inserted, replaces or deletes.

Everything is SQL in the transaction of the commit. It uses `INSERT ... ON CONFLICT` and not MERGE, which
fails beside concurrent inserts of the same key.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from ..database import changing
from ..database.changing import LAST_ROWS
from ..database.moving import RowSource
from ..database.staging import BATCH, DELETES, NUMBER, PLACE, SOURCE, StagingTables
from .address import quoted
from .kept_values import KeptValues

_ROWS = "penstock_batch_rows"


class RowChanger(changing.RowChanger):
    """See `changing.RowChanger`."""

    def _sources(self) -> Iterator[RowSource]:
        if self._kept is not None:  # what a row keeps depends on the batches before
            for group in self._groups():
                yield from group
        else:
            yield from super()._sources()

    @cached_property
    def _kept(self) -> KeptValues | None:
        return KeptValues.of(self._content)

    # The last rows ----------------------------------------------------------------------------------

    def _last_rows(self, staged: StagingTables) -> RowSource:
        self._check_counts(staged)
        changes, types = self._changes, dict(self._content.staged_columns)
        keys, order = self._rows.key_of("r"), self._rows.newest_first()
        if self._kept is None:
            count = self._collect(
                LAST_ROWS,
                f"SELECT DISTINCT ON ({keys}) r.* FROM ({self._rows.staged(staged)}) AS r "
                f"ORDER BY {keys}, {', '.join(order)}",
            )
        else:
            ascending = ", ".join(one.removesuffix(" DESC") for one in order)
            number = f"row_number() OVER (PARTITION BY {keys} ORDER BY {ascending}) AS {NUMBER}"
            self._collect(_ROWS, f"SELECT r.*, {number} FROM ({self._rows.staged(staged)}) AS r")
            by_key = ", ".join(map(quoted, changes.keys))
            self._cursor.execute(f"CREATE INDEX ON {temporary(_ROWS)} ({by_key}, {NUMBER})")
            self._cursor.execute(f"ANALYZE {temporary(_ROWS)}")
            others = (BATCH, SOURCE, PLACE)
            completed = self._kept.completed(list(types), temporary(_ROWS), others)
            count = self._collect(LAST_ROWS, completed)
            self._cursor.execute(f"CREATE UNIQUE INDEX ON {temporary(LAST_ROWS)} ({by_key})")
        names = ", ".join(one.path for one in staged[:3])
        return RowSource(temporary(LAST_ROWS), names, count)

    def _collect(self, name: str, query: str) -> int:
        """Collect rows in a temporary table; return their number."""
        self._cursor.execute(f"DROP TABLE IF EXISTS {temporary(name)}")
        self._cursor.execute(f"CREATE TEMPORARY TABLE {name} ON COMMIT DROP AS {query}")
        return self._cursor.rowcount

    # Their effect -----------------------------------------------------------------------------------

    def _delete(self, source: RowSource, where: str) -> None:
        """Delete rows by the index over the keys: the server does not know the size of the temporary table,
        and would often read all rows of the table.
        """
        where = f"n.{DELETES} AND {where}"
        is_row = self._is_row()
        if self._tombstones is not None:
            is_row = f"{is_row} AND {self._is_not_older('n')} AND {self._tombstones.is_not_older()}"
        self._cursor.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        self._cursor.execute(
            f"DELETE FROM {self._address.sql} AS t USING {source.relation} AS n WHERE {where} AND {is_row}"
        )
        self._cursor.execute("SET LOCAL enable_hashjoin TO DEFAULT; SET LOCAL enable_mergejoin TO DEFAULT")
        if self._tombstones is not None:
            self._added += self._tombstones.add(self._cursor, source.relation, where)

    def _upsert(self, source: RowSource, where: str) -> int:
        columns = [quoted(name) for name, _ in self._content.columns]
        keys = [quoted(name) for name in self._changes.keys]
        others = [column for column in columns if column not in keys]
        values = ", ".join(f"{column} = excluded.{column}" for column in others or keys)
        if self._kept is not None and others:
            names = [name for name, _ in self._content.columns if name not in self._changes.keys]
            values = self._kept.assigned(names, source.relation)
        where, condition = f"NOT n.{DELETES} AND {where}", ""
        if self._tombstones is not None:
            where = f"{where} AND {self._tombstones.is_not_older()}"
            condition = f" WHERE {self._is_not_older('excluded')}"
        self._cursor.execute(
            f"INSERT INTO {self._address.sql} AS t ({', '.join(columns)}) "
            f"SELECT {', '.join(f'n.{column}' for column in columns)} "
            f"FROM {source.relation} AS n WHERE {where} "
            f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {values}{condition}"
        )
        written = self._cursor.rowcount
        if self._tombstones is not None:
            self._tombstones.remove(self._cursor, source.relation, where)
        return written


def temporary(name: str) -> str:
    return f"pg_temp.{name}"
