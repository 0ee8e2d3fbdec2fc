"""The changes by key of DuckDB. See `KeyedChanges`."""

from __future__ import annotations

from collections.abc import Sequence

from ..contract import Changes
from ..database.contract import Cursor
from ..database.keyed_changes import TransactionalChanges
from ..database.layout import TableState
from ..errors import TableNotSupportedError
from .address import DATABASE, NAMES, DuckDbAddress
from .changes import DuckDbChanger
from .tombstones import Tombstones
from .types import widest

_REFERRING = (
    "SELECT table_name FROM duckdb_constraints() "
    f"WHERE database_name = '{DATABASE}' AND constraint_type = 'FOREIGN KEY' "
    "AND lower(schema_name) = %s AND lower(referenced_table) = %s"
)
_TABLES = (
    "SELECT table_name FROM duckdb_tables() "
    f"WHERE database_name = '{DATABASE}' AND lower(schema_name) = %s AND starts_with(table_name, %s)"
)
_TEXTS = ("VARCHAR", "UUID", "JSON")


class DuckDbChanges(TransactionalChanges):
    """See `KeyedChanges`."""

    names = NAMES
    tombstone_type = Tombstones

    def check_table(
        self, cursor: Cursor, address: DuckDbAddress, table: TableState, changes: Changes
    ) -> None:
        """A row is replaced by a deletion and an insertion. DuckDB refuses the deletion of a row to which
        another one refers, even if that is deleted before.
        """
        referring = cursor.execute(_REFERRING, (address.schema, address.table)).fetchall()
        if referring:
            raise TableNotSupportedError(
                f"The table {referring[0][0]} refers to rows of the {address.title} with a foreign key, so "
                "DuckDB refuses to replace or delete them. Nothing was written. Create that table without "
                "the foreign key, or append the changes as they are."
            )

    def mover_of(self, changes: Changes) -> type[DuckDbChanger]:
        return DuckDbChanger

    def tables_named(self, cursor: Cursor, address: DuckDbAddress, prefix: str) -> Sequence[str]:
        return [name for (name,) in cursor.execute(_TABLES, (address.schema, prefix)).fetchall()]

    # Statements -------------------------------------------------------------------------------------

    def widest(self, kind: str) -> str:
        return widest(kind)

    def compared(self, expression: str, kind: str) -> str:
        """See `KeyedChanges`. A column of the table may have a collation for which different texts are
        equal.
        """
        return f"encode(CAST({expression} AS VARCHAR))" if kind in _TEXTS else expression

    def staged_value(self, name: str, kind: str) -> str:
        """See `KeyedChanges`. A UUID is staged as the text that the query has."""
        if kind != "UUID":
            return name
        return f"coalesce(CAST(TRY_CAST({name} AS UUID) AS VARCHAR), CAST({name} AS VARCHAR)) AS {name}"

    def same(self, stored: str, given: str, kind: str) -> str:
        return f"{self.compared(stored, kind)} = {self.compared(given, kind)}"

    def told_apart(self, expression: str, kind: str) -> str:
        return f"CAST({expression} AS VARCHAR)" if kind in ("FLOAT", "DOUBLE") else expression
