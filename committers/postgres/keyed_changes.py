"""The changes by key of Postgres. See `KeyedChanges`."""

from __future__ import annotations

from ..contract import Batch, Changes
from ..database.content import TableContent
from ..database.contract import Cursor
from ..database.keyed_changes import KeyedChanges
from ..database.layout import TableMatch, TableState
from ..database.moving import RowMover
from . import tombstones
from .address import PostgresAddress
from .tombstones import Tombstones
from .unique_keys import check_unique


class PostgresChanges(KeyedChanges):
    """See `KeyedChanges`."""

    computes_rows = True

    def prepare(
        self,
        cursor: Cursor,
        address: PostgresAddress,
        table: TableState,
        changes: Changes,
        match: TableMatch,
    ) -> None:
        check_unique(cursor, table, address, changes.identity)
        if deleted := tombstones_of(address, table, changes, match):
            deleted.create(cursor)

    def check_table(
        self, cursor: Cursor, address: PostgresAddress, table: TableState, changes: Changes
    ) -> None:
        check_unique(cursor, table, address, changes.identity)

    def check_one_row(self, cursor: Cursor, batch: Batch, content: TableContent) -> None:
        from .changes import check_one_row

        check_one_row(cursor, batch, content)

    def mover_of(self, changes: Changes) -> type[RowMover]:
        from .changes import RowChanger
        from .history import HistoryChanger

        return RowChanger if changes.history is None else HistoryChanger

    def accept(self, cursor: Cursor, address: PostgresAddress, before: str, now: str) -> None:
        tombstones.accept(cursor, address, before, now)


def tombstones_of(
    address: PostgresAddress, table: TableState, changes: Changes, match: TableMatch
) -> Tombstones | None:
    if changes.late_rows != "ignore":
        return None
    types_of = {column.name: column.sql_type for column in match.columns}
    return Tombstones(address, table.table_id, changes, types_of)
