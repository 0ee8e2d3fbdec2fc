"""The changes by key of Postgres. See `KeyedChanges`."""

from __future__ import annotations

from collections.abc import Sequence

from ..contract import Changes
from ..database.contract import Cursor
from ..database.keyed_changes import TransactionalChanges
from ..database.layout import TableState
from ..database.moving import RowMover
from .address import NAMES, PostgresAddress
from .tombstones import Tombstones
from .types import compared, widest
from .unique_keys import check_unique

_TABLES = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND starts_with(c.relname, %s) AND c.relkind = 'r'
"""


class PostgresChanges(TransactionalChanges):
    """See `KeyedChanges`."""

    computes_rows = True
    id_column = "table_oid"
    names = NAMES
    tombstone_type = Tombstones

    def check_table(
        self, cursor: Cursor, address: PostgresAddress, table: TableState, changes: Changes
    ) -> None:
        check_unique(cursor, table.table_id, address, changes.identity)

    def mover_of(self, changes: Changes) -> type[RowMover]:
        from .changes import RowChanger
        from .history import HistoryChanger

        return RowChanger if changes.history is None else HistoryChanger

    def tables_named(self, cursor: Cursor, address: PostgresAddress, prefix: str) -> Sequence[str]:
        return [name for (name,) in cursor.execute(_TABLES, (address.schema, prefix)).fetchall()]

    # Statements -------------------------------------------------------------------------------------

    def widest(self, kind: str) -> str:
        return widest(kind)

    def compared(self, expression: str, kind: str) -> str:
        return compared(expression, kind)

    def differ(self, columns: Sequence[tuple[str, str]]) -> str:
        text = f'ROW({", ".join(name for name, _ in columns)})::text COLLATE "C"'
        return f"min({text}) <> max({text})"
