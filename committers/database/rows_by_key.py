"""The queries that find the last row of each key in the staging tables of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from ..changes.last_changes import ambiguous
from ..contract import Batch, Changes
from .content import TableContent
from .contract import Cursor
from .dialect import Dialect
from .keyed_changes import KeyedChanges
from .staging import BATCH, KEPT, NUMBER, PLACE, SOURCE, StagingTable, StagingTables, parsed_name


@dataclass(frozen=True, slots=True)
class RowsByKey:
    """The rows of a manifest, by key."""

    dialect: Dialect
    content: TableContent

    @property
    def changes(self) -> Changes:
        assert isinstance(self.content.mode, Changes)
        return self.content.mode

    @property
    def own(self) -> KeyedChanges:
        return self.dialect.keyed_changes()

    def staged(self, staged: StagingTables) -> str:
        """The query of the rows of staging tables, with where they come from."""
        ids, queries = self.dialect.row_ids, []
        for number, one in enumerate(self.content.staged):
            if one in staged:
                batch_id = f"CAST({parsed_name(one).batch_id} AS {self.own.big_type})"
                origin = f", {batch_id} AS {BATCH}, {number} AS {SOURCE}, {ids.selected()} AS {PLACE}"
                queries.append(_rows_of(self.dialect, self.content, one, origin))
        return " UNION ALL ".join(queries)

    def newest_first(self) -> list[str]:
        """The order of the rows `r` of a key, the last one first."""
        types = dict(self.content.staged_columns)
        order = [
            f"{self.own.compared(f'r.{self.dialect.quoted(name)}', types[name])} DESC"
            for name in self.changes.order_by
        ]
        latest = f"r.{BATCH} DESC"
        return [*order, latest] if self.changes.late_rows == "ignore" else [latest, *order]

    def key_of(self, row: str) -> str:
        """The columns of the key of a row, as they are compared."""
        types = dict(self.content.staged_columns)
        return ", ".join(
            self.own.compared(f"{row}.{self.dialect.quoted(name)}", types[name])
            for name in self.changes.identity
        )

    def last(self, staged: StagingTables) -> str:
        """What follows FROM to select the last row `l` of each key, with its place among those of the key in
        `NUMBER`.
        """
        number = (
            f"row_number() OVER (PARTITION BY {self.key_of('r')} ORDER BY {', '.join(self.newest_first())})"
        )
        rows = f"SELECT r.*, {number} AS {NUMBER} FROM ({self.staged(staged)}) AS r"
        return f"({rows}) AS l WHERE l.{NUMBER} = 1"


def _rows_of(dialect: Dialect, content: TableContent, staged: StagingTable, others: str = "") -> str:
    """The query of the rows of a staging table.

    Args:
        others: further columns
    """
    own = dialect.keyed_changes()
    changes = content.mode
    compared = {*changes.identity, *changes.order_by} if isinstance(changes, Changes) else set()
    names = [
        own.staged_value(dialect.quoted(name), kind) if name in compared else dialect.quoted(name)
        for name, kind in content.staged_columns
    ]
    return f"SELECT {', '.join(names)}{others} FROM {dialect.staged_sql(staged)} n"


def check_one_row(cursor: Cursor, dialect: Dialect, batch: Batch, content: TableContent) -> None:
    """
    Raises:
        SchemaMismatchError: two different rows of one key could be the last one.
    """
    changes = content.mode
    if not isinstance(changes, Changes) or not content.staged:
        return
    own, types = dialect.keyed_changes(), dict(content.staged_columns)
    by_key = ", ".join(map(dialect.quoted, changes.identity))
    order = ", ".join(
        f"{own.compared(f'r.{dialect.quoted(name)}', types[name])} DESC" for name in changes.order_by
    )
    keys = ", ".join(f"r.{dialect.quoted(name)}" for name in changes.identity)
    window = f"PARTITION BY {keys} ORDER BY {order or keys}"  # MariaDB ranks nothing without an order
    rows = " UNION ALL ".join(_rows_of(dialect, content, one) for one in content.staged)
    repeated = f"SELECT {by_key} FROM ({rows}) AS r GROUP BY {by_key} HAVING count(*) > 1"
    ranked = (
        f"SELECT r.*, rank() OVER ({window}) AS {PLACE} FROM ({rows}) AS r "
        f"JOIN ({repeated}) AS several USING ({by_key})"
    )
    counts = f"{PLACE} = 1"
    if KEPT in types:  # older rows may give a value to the last one
        keeping = f"SELECT {by_key} FROM ({ranked}) AS keeping WHERE {PLACE} = 1 AND {KEPT} <> ''"
        counts = f"({counts} OR ({by_key}) IN ({keeping}))"
    differ = own.differ([(dialect.quoted(name), kind) for name, kind in content.staged_columns])
    found = cursor.execute(
        f"SELECT 1 FROM ({ranked}) AS ranked WHERE {counts} "
        f"GROUP BY {by_key}, {PLACE} HAVING {differ} LIMIT 1"
    ).fetchall()
    if found:
        where = f"batch {batch.batch_id} of {batch.stream}"
        raise ambiguous(where, has_order=bool(changes.order_by))
