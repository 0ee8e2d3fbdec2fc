"""Prepared transactions in MySQL and MariaDB. See `PreparedTransactions`.

`XA RECOVER` lists those of the whole server, also of other applications. An identifier has three parts: the
query id, the name that a staging table would have, and a number, in which Penstock notes the time in minutes.
The name depends on query and table, so a query finds its own ones in this list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from ..database.contract import Cursor
from ..database.prepared import PREPARED_TABLE, PreparedTransaction, PreparedTransactions
from ..database.staging import StagingName
from ..errors import AccessRefusedError, ConfigurationError
from .address import MySqlAddress, qualified

_IS_THERE = "SELECT count(*) FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
_NOT_FOUND = 1397
_NO_ADMIN = 1401
"""How MySQL refuses XA RECOVER without XA_RECOVER_ADMIN."""
_DETACH_S = 5
"""When a session ends whose client is silent after it has prepared a transaction. Shorter than `BUSY_S`."""
_OLDEST = {True: (10, 5), False: (8, 0)}
"""Versions of MariaDB, or of MySQL, in which a prepared transaction outlasts its connection."""
_VERSION = re.compile(r"(?:5\.5\.5-)?(\d+)\.(\d+)")


class MySqlPrepared(PreparedTransactions):
    """See `PreparedTransactions`. XA PREPARE, XA COMMIT and XA ROLLBACK."""

    ddl = """
CREATE TABLE IF NOT EXISTS {table} (
    transaction_id varchar(255) NOT NULL,
    is_written tinyint(1) NOT NULL,
    commits tinyint(1) NOT NULL,
    query_id varchar(191) NOT NULL,
    table_name varchar(64) NOT NULL,
    PRIMARY KEY (transaction_id, is_written)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT 'penstock, transactions of tasks'
"""

    def check_server(self, cursor: Cursor, address: MySqlAddress) -> None:
        is_mariadb, version = cursor.connection.is_mariadb, cursor.connection.get_server_info()
        found = _VERSION.match(version)
        if found is not None and (int(found[1]), int(found[2])) < _OLDEST[is_mariadb]:
            raise ConfigurationError(
                f"commit=prepared: the server of the {address.title} has version {version}. Only since "
                "MariaDB 10.5 and MySQL 8.0 a prepared transaction outlasts its connection. Remove the "
                "option."
            )
        if ("wsrep_on", "ON") in cursor.execute("SHOW VARIABLES LIKE 'wsrep_on'").fetchall():
            raise ConfigurationError(
                f"commit=prepared: the server of the {address.title} is part of a Galera cluster, which has "
                "no prepared transactions. Remove the option."
            )
        self.kept(cursor)  # whether the user may list them

    def is_there(self, cursor: Cursor, address: MySqlAddress) -> bool:
        ((count,),) = cursor.execute(_IS_THERE, (address.schema, PREPARED_TABLE)).fetchall()
        return bool(count)

    def check_rights(self, cursor: Cursor, address: MySqlAddress) -> None:
        """See `PreparedTransactions`. These statements do nothing; the server names what the user may not."""
        table = qualified(address.schema, PREPARED_TABLE)
        cursor.execute(f"INSERT INTO {table} SELECT * FROM {table} WHERE 1 = 0")
        cursor.execute(f"DELETE FROM {table} WHERE 1 = 0")

    def table_sql(self, address: MySqlAddress) -> str:
        return qualified(address.schema, PREPARED_TABLE).replace("%", "%%")

    def kept(self, cursor: Cursor) -> Sequence[PreparedTransaction]:
        return [
            PreparedTransaction(one, datetime.fromtimestamp(minutes * 60, timezone.utc))
            for one, minutes in _kept(cursor)
        ]

    def begin(self, cursor: Cursor, transaction_id: str) -> None:
        ((minutes,),) = cursor.execute("SELECT UNIX_TIMESTAMP() DIV 60").fetchall()
        cursor.connection.xid = _xid(transaction_id, minutes)
        cursor.execute(f"XA START {cursor.connection.xid}")

    def prepare(self, cursor: Cursor, transaction_id: str) -> None:
        """See `PreparedTransactions`. Nobody else can end the transaction while this session lasts."""
        cursor.execute(f"SET SESSION wait_timeout = {_DETACH_S}")
        cursor.execute(f"XA END {cursor.connection.xid}")
        cursor.execute(f"XA PREPARE {cursor.connection.xid}")

    def end(self, connection: Any, transaction_id: str, *, commits: bool) -> None:
        connection.autocommit(True)
        cursor = connection.cursor()
        minutes = next((minutes for one, minutes in _kept(cursor) if one == transaction_id), 0)
        cursor.execute(f"XA {'COMMIT' if commits else 'ROLLBACK'} {_xid(transaction_id, minutes)}")

    def finds_none(self, error: Any) -> bool:
        from .connection import code_of

        return code_of(error) == _NOT_FOUND


def _xid(transaction_id: str, minutes: int) -> str:
    """A query id of Spark has 36 characters; each of the two parts may have 64 bytes."""
    query_id, _, name = transaction_id.partition("/")
    return f"X'{query_id.encode().hex()}', X'{name.encode().hex()}', {minutes}"


def _kept(cursor: Cursor) -> Iterator[tuple[str, int]]:
    """Yield the id and the minutes of each transaction that Penstock has prepared."""
    for minutes, length, _, data in _recovered(cursor):
        raw = bytes.fromhex(data.removeprefix("0x")) if isinstance(data, str) else data
        try:
            query_id, name = raw[:length].decode(), raw[length:].decode()
        except UnicodeDecodeError:
            continue
        if query_id and "/" not in query_id and StagingName.parse(name) is not None:
            yield f"{query_id}/{name}", minutes


def _recovered(cursor: Cursor) -> Sequence[tuple[int, int, int, Any]]:
    from .connection import DatabaseError, code_of

    connection = cursor.connection
    try:
        listed = "XA RECOVER" if connection.is_mariadb else "XA RECOVER CONVERT XID"
        found: Sequence[tuple[int, int, int, Any]] = cursor.execute(listed).fetchall()
    except DatabaseError as error:
        if code_of(error) != _NO_ADMIN:
            raise
        raise AccessRefusedError(
            f"The user of the MySQL server {connection.host}:{connection.port} lacks the privilege "
            "XA_RECOVER_ADMIN, which commit=prepared needs. Nothing was changed. Grant it "
            "(docs/destinations/mysql.md), or use another user in url."
        ) from None
    return found
