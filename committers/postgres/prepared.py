"""Prepared transactions in Postgres. See `PreparedTransactions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..database.contract import Cursor
from ..database.prepared import PREPARED_TABLE, PreparedTransaction, PreparedTransactions
from ..errors import AccessRefusedError, ConfigurationError
from .address import PostgresAddress, literal, qualified

_KEPT = """
SELECT gid, prepared FROM pg_prepared_xacts
WHERE database = current_database() AND gid ~ '^[^/]+/penstock_[0-9a-f]{12}_'
"""
_LIMIT = "max_prepared_transactions"
_NOT_FOUND = ("42704", "55000")
"""SQLSTATEs: undefined_object, object_not_in_prerequisite_state."""


class PostgresPrepared(PreparedTransactions):
    """See `PreparedTransactions`. PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED."""

    ddl = """
CREATE TABLE IF NOT EXISTS {table} (
    transaction_id text NOT NULL,
    is_written boolean NOT NULL,
    commits boolean NOT NULL,
    query_id text NOT NULL,
    table_name text NOT NULL,
    PRIMARY KEY (transaction_id, is_written)
)
"""

    def is_there(self, cursor: Cursor, address: PostgresAddress) -> bool:
        name = qualified(address.schema, PREPARED_TABLE)
        row = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone()
        return row is not None and bool(row[0])

    def table_sql(self, address: PostgresAddress) -> str:
        return qualified(address.schema, PREPARED_TABLE).replace("%", "%%")

    def kept(self, cursor: Cursor) -> Sequence[PreparedTransaction]:
        return [PreparedTransaction(*row) for row in cursor.execute(_KEPT).fetchall()]

    def prepare(self, cursor: Cursor, transaction_id: str) -> None:
        cursor.execute(f"PREPARE TRANSACTION {literal(transaction_id)}")

    def end(self, connection: Any, transaction_id: str, *, commits: bool) -> None:
        connection.autocommit = True
        connection.execute(f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED {literal(transaction_id)}")

    def finds_none(self, error: Any) -> bool:
        return error.sqlstate in _NOT_FOUND

    def check_server(self, cursor: Cursor, address: PostgresAddress) -> None:
        if cursor.execute(f"SHOW {_LIMIT}").fetchone() == ("0",):
            raise ConfigurationError(
                f"commit=prepared: the server of the {address.title} has {_LIMIT} = 0, its default. Set it "
                "to more than the tasks of all batches that are written at a time, and restart the server; "
                "or remove the option."
            )

    def check_rights(self, cursor: Cursor, address: PostgresAddress) -> None:
        name, rights = qualified(address.schema, PREPARED_TABLE), ("SELECT", "INSERT", "DELETE")
        row = cursor.execute(
            f"SELECT {', '.join(f'has_table_privilege(%s, {literal(right)})' for right in rights)}",
            [name] * len(rights),
        ).fetchone()
        assert row is not None
        missing = [right for right, has in zip(rights, row, strict=True) if not has]
        if missing:
            raise AccessRefusedError(
                f"The user of the {address.title} lacks privileges: {', '.join(missing)} on {name}. Nothing "
                "was written. Grant them (docs/postgres.md), or use another user in url."
            )
