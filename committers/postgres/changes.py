"""Applies the changes of a batch to the table: the last row of each key is inserted, replaces or deletes.

Everything is SQL in the transaction of the commit. It uses `INSERT ... ON CONFLICT` and not MERGE, which
fails beside concurrent inserts of the same key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from ..changes.last_changes import ambiguous
from ..contract import Batch, Changes, DeadLetters
from ..database.content import TableContent
from ..database.contract import Cursor
from ..database.moving import RowMover, RowSource, parsed_name
from ..database.staging import DELETES, KEPT, NUMBER, StagingName, StagingTables
from .address import PostgresAddress, qualified, quoted
from .kept_values import KeptValues
from .tombstones import Tombstones, at_least
from .types import compared

_BATCH, _SOURCE, _ROW = "penstock_batch", "penstock_source", "penstock_row"
_LAST_ROWS, _ROWS = "penstock_last_rows", "penstock_batch_rows"


class RowChanger(RowMover):
    """See `RowMover`. Replaces and deletes rows of the table by key.

    The last row of each key, over all batches of the manifest, is collected in a temporary table, in the
    order of the keys, so that two commits lock rows in the same order. If the server refuses a row, the
    batches are applied one after the other.
    """

    _added = 0
    """Tombstones that were added."""

    def _sources(self) -> Iterator[RowSource]:
        if self._kept is not None:  # what a row keeps depends on the batches before
            for group in self._groups():
                yield from group
        elif self._content.staged:
            yield self._last_rows(self._content.staged)

    def _groups(self) -> Iterator[Sequence[RowSource]]:
        for _, staged in groupby(self._content.staged, lambda one: parsed_name(one).batch_id):
            yield [self._last_rows(tuple(staged))]

    def _named_by(self) -> Sequence[str]:
        return self._changes.keys

    def _origin(self, source: RowSource, row_id: Any) -> tuple[StagingName, int]:
        where = (
            f"SELECT {_SOURCE}, {_ROW}::text FROM {source.relation} AS n WHERE {self._ids.among([row_id])}"
        )
        ((index, row),) = self._cursor.execute(where).fetchall()
        staged = self._content.staged[index]
        where = f"ctid < {self._ids.literal(row)}"
        before = f"SELECT count(*) FROM {self._dialect.staged_sql(staged)} WHERE {where}"
        ((number,),) = self._cursor.execute(before).fetchall()
        return parsed_name(staged), int(number)

    def move(self) -> tuple[int, DeadLetters]:
        if self._tombstones is None:
            return super().move()
        self._tombstones.create(self._cursor)
        self._tombstones.lock(self._cursor)
        moved = super().move()
        self._tombstones.prune(self._cursor, self._added)
        return moved

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
    def _ignores_late_rows(self) -> bool:
        return self._changes.late_rows == "ignore"

    @cached_property
    def _tombstones(self) -> Tombstones | None:
        if not self._ignores_late_rows:
            return None
        content = self._content
        assert isinstance(self._address, PostgresAddress)
        return Tombstones(self._address, content.table_id, self._changes, dict(content.staged_columns))

    @cached_property
    def _kept(self) -> KeptValues | None:
        return KeptValues.of(self._content)

    # The last rows ----------------------------------------------------------------------------------

    def _last_rows(self, staged: StagingTables) -> RowSource:
        """Collect the last row of each key. Drops what was collected before."""
        self._check_counts(staged)
        changes, types = self._changes, dict(self._content.staged_columns)
        keys = ", ".join(compared(f"r.{quoted(name)}", types[name]) for name in changes.identity)
        order = [f"{compared(f'r.{quoted(name)}', types[name])} DESC" for name in changes.order_by]
        latest = f"r.{_BATCH} DESC"
        order = [*order, latest] if self._ignores_late_rows else [latest, *order]
        if self._kept is None:
            count = self._collect(
                _LAST_ROWS,
                f"SELECT DISTINCT ON ({keys}) r.* FROM ({self._staged_rows(staged)}) AS r "
                f"ORDER BY {keys}, {', '.join(order)}",
            )
        else:
            ascending = ", ".join(one.removesuffix(" DESC") for one in order)
            number = f"row_number() OVER (PARTITION BY {keys} ORDER BY {ascending}) AS {NUMBER}"
            self._collect(_ROWS, f"SELECT r.*, {number} FROM ({self._staged_rows(staged)}) AS r")
            by_key = ", ".join(map(quoted, changes.keys))
            self._cursor.execute(f"CREATE INDEX ON {temporary(_ROWS)} ({by_key}, {NUMBER})")
            self._cursor.execute(f"ANALYZE {temporary(_ROWS)}")
            others = (_BATCH, _SOURCE, _ROW)
            completed = self._kept.completed(list(types), temporary(_ROWS), others)
            count = self._collect(_LAST_ROWS, completed)
            self._cursor.execute(f"CREATE UNIQUE INDEX ON {temporary(_LAST_ROWS)} ({by_key})")
        names = ", ".join(one.path for one in staged[:3])
        return RowSource(temporary(_LAST_ROWS), names, count)

    def _collect(self, name: str, query: str) -> int:
        """Collect rows in a temporary table; return their number."""
        self._cursor.execute(f"DROP TABLE IF EXISTS {temporary(name)}")
        self._cursor.execute(f"CREATE TEMPORARY TABLE {name} ON COMMIT DROP AS {query}")
        return self._cursor.rowcount

    def _staged_rows(self, staged: StagingTables) -> str:
        names = ", ".join(quoted(name) for name, _ in self._content.staged_columns)
        place = {one: number for number, one in enumerate(self._content.staged)}
        return " UNION ALL ".join(
            f"SELECT {names}, {parsed_name(one).batch_id}::bigint AS {_BATCH}, {place[one]} AS {_SOURCE}, "
            f"ctid AS {_ROW} FROM {self._dialect.staged_sql(one)}"
            for one in staged
        )

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
        ((upserts, deletes),) = self._cursor.execute(
            f"SELECT count(*) FILTER (WHERE NOT n.{DELETES}), count(*) FILTER (WHERE n.{DELETES}) "
            f"FROM {source.relation} AS n WHERE {where}"
        ).fetchall()
        return upserts, deletes

    # Their effect -----------------------------------------------------------------------------------

    def _delete(self, source: RowSource, where: str) -> None:
        """Delete rows by the index over the keys: the server does not know the size of the temporary table,
        and would often read all rows of the table.
        """
        where = f"n.{DELETES} AND {where}"
        is_row = " AND ".join(f"t.{quoted(name)} = n.{quoted(name)}" for name in self._changes.identity)
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

    def _is_not_older(self, new: str) -> str:
        """The condition that a row is not older than that of the table."""
        names, types = self._changes.order_by, dict(self._content.staged_columns)
        given, stored = ([f"{side}.{quoted(name)}" for name in names] for side in (new, "t"))
        return at_least(given, stored, [types[name] for name in names])


def temporary(name: str) -> str:
    return f"pg_temp.{name}"


def check_one_row(cursor: Cursor, batch: Batch, content: TableContent) -> None:
    """Check that each key of a batch has one last row, before the batch is prepared.

    Raises:
        SchemaMismatchError: two different rows of one key could be the last one.
    """
    changes = content.mode
    if not isinstance(changes, Changes) or not content.staged:
        return
    types = dict(content.staged_columns)
    names = ", ".join(map(quoted, types))
    by_key = ", ".join(map(quoted, changes.identity))
    order = ", ".join(f"{compared(f'r.{quoted(name)}', types[name])} DESC" for name in changes.order_by)
    window = f"PARTITION BY {by_key}{f' ORDER BY {order}' if order else ''}"
    rows = " UNION ALL ".join(
        f"SELECT {names} FROM {qualified(one.schema, one.name)}" for one in content.staged
    )
    text = f'ROW({names})::text COLLATE "C"'
    counts = f"{_ROW} = 1"
    if KEPT in types:  # older rows may give a value to the last one
        keeping = f"SELECT {by_key} FROM ranked WHERE {_ROW} = 1 AND {KEPT} <> ''"
        counts = f"({counts} OR ({by_key}) IN ({keeping}))"
    ((is_ambiguous,),) = cursor.execute(
        f"WITH r AS NOT MATERIALIZED ({rows}), "
        f"repeated AS (SELECT {by_key} FROM r GROUP BY {by_key} HAVING count(*) > 1), "
        f"ranked AS (SELECT r.*, rank() OVER ({window}) AS {_ROW} FROM r JOIN repeated USING ({by_key})) "
        f"SELECT EXISTS (SELECT FROM ranked WHERE {counts} GROUP BY {by_key}, {_ROW} "
        f"HAVING min({text}) <> max({text}))"
    ).fetchall()
    if is_ambiguous:
        where = f"batch {batch.batch_id} of {batch.stream}"
        raise ambiguous(where, has_order=bool(changes.order_by))
