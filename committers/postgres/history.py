"""Changes of a Postgres table that keeps all versions of a row. See `committers.changes.history`.

The points in time of each key of a batch are collected in a temporary table: the versions that the table has,
the end of those that no other one follows, and the changes of the batch. A version ends at the next point.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..contract import DeadLetters, History
from ..database.moving import RowSource
from ..database.staging import DELETES
from .address import quoted
from .changes import RowChanger, temporary
from .types import compared

_VERSIONS = "penstock_versions"
_BEGINS, _ENDS = "penstock_begins", "penstock_ends"


class HistoryChanger(RowChanger):
    """See `RowMover`. Batches are applied one after the other: a deletion that ends no version is forgotten
    with its batch.
    """

    def _sources(self) -> Iterator[RowSource]:
        for group in self._groups():
            yield from group

    def move(self) -> tuple[int, DeadLetters]:
        """Wait for other queries that change the table: each of them must see the versions of the others."""
        lock = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))"
        self._cursor.execute(lock, (self._address.sql,))
        return super().move()

    def _apply(self, source: RowSource, where: str) -> int:
        upserts, deletes = self._counted(source, where)
        self._collect_versions(source, where)
        if deletes:
            self._delete(source, where)
        self._end()
        return deletes + (self._insert(source, where) if upserts else 0)

    @property
    def _history(self) -> History:
        assert self._changes.history is not None
        return self._changes.history

    def _collect_versions(self, source: RowSource, where: str) -> None:
        """Collect the points in time of the keys, each with the next one."""
        types = dict(self._content.staged_columns)
        keys = [quoted(name) for name in self._changes.keys]
        begin, end = quoted(self._history.valid_from), quoted(self._history.valid_to)
        by_key, event_keys = ", ".join(keys), ", ".join(f"n.{key}" for key in keys)
        is_key = " AND ".join(f"t.{key} = k.{key}" for key in keys)
        mine = f"SELECT DISTINCT {event_keys} FROM {source.relation} AS n WHERE {where}"
        self._cursor.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        self._cursor.execute(
            f"SELECT FROM {self._address.sql} AS t WHERE EXISTS "
            f"(SELECT FROM {source.relation} AS n WHERE {where} AND "
            f"{' AND '.join(f't.{key} = n.{key}' for key in keys)}) FOR UPDATE OF t"
        )
        of_table = f"FROM (SELECT t.* FROM ({mine}) AS k JOIN {self._address.sql} AS t ON {is_key}) AS t"
        kind = types[self._history.valid_from]
        # of the points at one time, the change of the batch counts, then a version, then an end
        points = (
            f"SELECT {event_keys}, n.{begin} AS {_BEGINS}, NOT n.{DELETES} AS is_version, 1 AS place "
            f"FROM {source.relation} AS n WHERE {where} "
            f"UNION ALL SELECT {by_key}, {begin}, true, 2 {of_table} "
            f"UNION ALL SELECT {by_key}, {end}, false, 3 {of_table} WHERE {end} IS NOT NULL"
        )
        ordered = ", ".join(
            [
                *(compared(f"p.{key}", types[name]) for key, name in self._key_pairs()),
                compared(f"p.{_BEGINS}", kind),
            ]
        )
        distinct = f"SELECT DISTINCT ON ({ordered}) p.* FROM ({points}) AS p ORDER BY {ordered}, p.place"
        window = f"PARTITION BY {by_key} ORDER BY {compared(_BEGINS, kind)}"
        self._collect(
            _VERSIONS,
            f"SELECT {by_key}, {_BEGINS}, is_version, lead({_BEGINS}) OVER ({window}) AS {_ENDS} "
            f"FROM ({distinct}) AS d",
        )
        relation = temporary(_VERSIONS)
        self._cursor.execute(f"CREATE UNIQUE INDEX ON {relation} ({by_key}, {_BEGINS})")
        self._cursor.execute(f"ANALYZE {relation}")
        self._cursor.execute("SET LOCAL enable_hashjoin TO DEFAULT; SET LOCAL enable_mergejoin TO DEFAULT")

    def _key_pairs(self) -> list[tuple[str, str]]:
        return [(quoted(name), name) for name in self._changes.keys]

    def _is_version(self, row: str) -> str:
        pairs = [
            *((f"{row}.{key}", f"v.{key}") for key, _ in self._key_pairs()),
            (f"{row}.{quoted(self._history.valid_from)}", f"v.{_BEGINS}"),
        ]
        return " AND ".join(f"{one} = {other}" for one, other in pairs)

    def _end(self) -> None:
        """End the versions of the table at their next point. First, as there may be an index over what is
        current.
        """
        end, is_current = quoted(self._history.valid_to), quoted(self._history.is_current)
        self._cursor.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        self._cursor.execute(
            f"UPDATE {self._address.sql} AS t SET {end} = v.{_ENDS}, {is_current} = v.{_ENDS} IS NULL "
            f"FROM {temporary(_VERSIONS)} AS v WHERE v.is_version AND {self._is_version('t')} "
            f"AND t.{end} IS DISTINCT FROM v.{_ENDS}"
        )
        self._cursor.execute("SET LOCAL enable_hashjoin TO DEFAULT; SET LOCAL enable_mergejoin TO DEFAULT")

    def _insert(self, source: RowSource, where: str) -> int:
        history, identity = self._history, [quoted(name) for name in self._changes.identity]
        ends = {history.valid_to: f"v.{_ENDS}", history.is_current: f"v.{_ENDS} IS NULL"}
        names = [name for name, _ in self._content.columns]
        columns = ", ".join(map(quoted, names))
        values = ", ".join(ends.get(name, f"n.{quoted(name)}") for name in names)
        others = [quoted(name) for name in names if quoted(name) not in identity]
        self._cursor.execute(
            f"INSERT INTO {self._address.sql} AS t ({columns}) SELECT {values} "
            f"FROM {source.relation} AS n JOIN {temporary(_VERSIONS)} AS v ON {self._is_version('n')} "
            f"WHERE NOT n.{DELETES} AND {where} ON CONFLICT ({', '.join(identity)}) "
            f"DO UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in others)}"
        )
        return self._cursor.rowcount
