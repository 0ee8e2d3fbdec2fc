"""Connections to the database of a MySQL table, and the meaning of its errors. Runs anywhere.

Only this module handles exceptions of PyMySQL and reads its private members: PyMySQL has no interface for
`LOAD DATA LOCAL` from memory. With its own, a server could ask for any file of this machine.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pymysql
from pymysql.connections import MySQLResult

from ..database.contract import Cursor
from ..database.server import TransactionalServer
from ..errors import (
    NEXT_TRY,
    AccessRefusedError,
    ConfigurationError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
)
from ..texts.safe_text import one_line

DatabaseError = pymysql.MySQLError

CONNECT_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 30
"""How long a transaction waits for a lock of another process."""
STATEMENT_TIMEOUT_S = 120
IDLE_TRANSACTION_TIMEOUT_S = 15
"""Shorter than LOCK_TIMEOUT_S: a driver that is paused inside a transaction loses it before others time
out.
"""
ANSWER_TIMEOUT_S = 60
"""How long the client waits longer than a statement may take."""
SENT_BYTES = 256 * 1024
"""Rows that are sent in one packet."""

_SESSION = {
    "sql_mode": "'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO'",
    "time_zone": "'+00:00'",
    "autocommit": "0",
    "foreign_key_checks": "1",
    "unique_checks": "1",
    "innodb_lock_wait_timeout": str(LOCK_TIMEOUT_S),
    "lock_wait_timeout": str(LOCK_TIMEOUT_S),
    "max_sort_length": "4096",
    "sort_buffer_size": "4194304",
    "net_read_timeout": "120",
    "net_write_timeout": "120",
}
"""Settings that decide what values mean, and what is refused. They override those of the server. Longer texts
are sorted by their first `max_sort_length` bytes; keys have at most 3,072.
"""

CONFLICTS = (1020, 1205, 1213, 3572)
"""Record has changed, lock wait timeout, deadlock, NOWAIT: another transaction was in the way."""
_DENIED = (1044, 1045, 1095, 1142, 1143, 1227, 1370, 1698, 1251, 2026, 3118, 3159)
_MISSING = (1049, 1102)
_READ_ONLY = (1290, 1792, 1836)
_COLUMNS = (1059, 1060, 1074, 1113, 1117, 1118, 1166)
"""Columns that no table can have: names, number, size of a row."""
_VALUES = (
    1048, 1062, 1169, 1216, 1217, 1264, 1265, 1292, 1301, 1364, 1366, 1406, 1411, 1416, 1441, 1451, 1452,
    1467, 1526, 1557, 1586, 1644, 1690, 1761, 1762, 3140, 3141, 3156, 3819, 4025, 4078,
)  # fmt: skip
_SHOWN = (1048, 1264, 1265, 1301, 1364, 1406, 1451, 1452, 1644, 3819, 4025)
"""Errors whose messages have no values of rows, except of triggers."""
_CHANGED = 1265
_NO_PRIMARY_KEY = 3750
_LOCAL_IS_OFF = (1148, 3948, 4166)
_NAMED = re.compile(r"for (key|column) [`']([^']*?)[`'](?: at row|$)")


class LoadResult(MySQLResult):  # type: ignore[misc]
    """Answers the server's request for a local file with the rows of the statement, and with nothing else."""

    def _read_load_local_packet(self, first_packet: Any) -> None:
        connection = self.connection
        rows, connection.local_rows = connection.local_rows, None
        try:
            if rows is not None:
                view = memoryview(rows)
                for first in range(0, len(view), SENT_BYTES):
                    connection.write_packet(bytes(view[first : first + SENT_BYTES]))
        finally:
            connection.write_packet(b"")
        packet = connection._read_packet()
        if not packet.is_ok_packet():
            raise pymysql.err.OperationalError(2027, "Malformed packet")
        self._read_ok_packet(packet)


class Connection(pymysql.connections.Connection):  # type: ignore[misc]
    """A connection of PyMySQL whose cursor is a `Cursor`."""

    local_rows: Any = None
    """The rows of the next LOAD DATA LOCAL."""
    loads_rows = True
    """False if the server refuses LOAD DATA LOCAL."""
    xid = ""
    """The XA transaction that is open, as statements name it."""

    @property
    def is_mariadb(self) -> bool:
        return "MariaDB" in self.get_server_info()

    @property
    def text_collation(self) -> str:
        """A collation for which only equal texts are equal. `utf8mb4_bin` ignores spaces at the end."""
        return "utf8mb4_nopad_bin" if self.is_mariadb else "utf8mb4_0900_bin"

    def _read_query_result(self, unbuffered: bool = False) -> int:
        self._result = None
        result = LoadResult(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return int(result.affected_rows)

    def cursor(self, cursor: Any = None) -> Any:
        return super().cursor() if cursor is not None else MySqlCursor(self)

    def close(self) -> None:
        if self.open:
            super().close()

    def load(self, statement: str, rows: Any) -> int:
        """Run a LOAD DATA LOCAL with these rows. Return the number of rows that were loaded without a
        warning: the server changes values that do not fit, and only warns.
        """
        self.local_rows = rows
        rows_loaded = self.query(statement)
        if self._result is not None and self._result.warning_count:
            shown = self.show_warnings()  # none if the server has max_error_count=0
            code, message = shown[0][1:] if shown else (_CHANGED, "A value was changed to fit its column")
            raise pymysql.err.DataError(code, message)
        return int(rows_loaded)


class MySqlCursor:
    """See `Cursor`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cursor = pymysql.cursors.Cursor(connection)

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def rowcount(self) -> int:
        return int(self._cursor.rowcount)

    def execute(self, statement: Any, parameters: Any = None, /) -> MySqlCursor:
        self._cursor.execute(statement, parameters)
        return self

    def executemany(self, statement: Any, parameters: Iterable[Any], /) -> None:
        for values in parameters:  # not joined: a packet has a maximum size
            self._cursor.execute(statement, values)

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchall(self) -> Any:
        return self._cursor.fetchall()


FIX_QUERY = (
    "Fix the url or the privileges of its user (docs/destinations/mysql.md lists them), then start the query "
    "again."
)


@dataclass(frozen=True, slots=True)
class MySqlServer(TransactionalServer):
    """See `TransactionalServer`."""

    errors = DatabaseError

    settings: Mapping[str, str] = field(repr=False)
    """From `settings_of`; may include the password."""
    name: str
    """Address of the table, for messages."""
    advice: str = FIX_QUERY
    """What to do if the database denies access."""

    def connect(
        self,
        statement_timeout_s: float = STATEMENT_TIMEOUT_S,
        idle_timeout_s: float = IDLE_TRANSACTION_TIMEOUT_S,
    ) -> Connection:
        """See `TransactionalServer`."""
        given = self.settings
        session = {**_SESSION, "wait_timeout": str(int(idle_timeout_s))}
        try:
            connection = Connection(
                host=given["host"],
                port=int(given["port"]),
                user=given.get("user"),
                password=given.get("password", ""),
                database=given["database"],
                charset="utf8mb4",
                local_infile=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=statement_timeout_s + ANSWER_TIMEOUT_S,
                write_timeout=statement_timeout_s + ANSWER_TIMEOUT_S,
                program_name="penstock",
                **_tls(given),
            )
            if connection.is_mariadb:
                session["max_statement_time"] = str(statement_timeout_s)
            settings = ", ".join(f"SESSION {name} = {value}" for name, value in session.items())
            connection.query(f"SET {settings}")
            connection.query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        except (pymysql.MySQLError, OSError) as error:
            raise self.failed(error, "Nothing was changed") from None  # the cause may contain the settings
        return connection

    @contextmanager
    def savepoint(self, cursor: Cursor) -> Iterator[None]:
        cursor.execute("SAVEPOINT penstock")
        try:
            yield
        except pymysql.MySQLError as error:
            if not self.is_conflict(error) and cursor.connection.open:
                cursor.execute("ROLLBACK TO SAVEPOINT penstock")
            raise
        cursor.execute("RELEASE SAVEPOINT penstock")

    def failed(self, error: Exception, so: str) -> PenstockError:
        """See `TransactionalServer`."""
        code = code_of(error)
        what = self.in_short(error)
        if self.is_about_values(error):
            return SchemaMismatchError(f"The MySQL table {self.name} rejected rows: {what}. {so}.")
        if code in _COLUMNS:
            return SchemaMismatchError(
                f"The MySQL table {self.name} cannot have the columns of the query: {what}. {so}. Rename or "
                "leave out columns."
            )
        if code == _NO_PRIMARY_KEY:
            return ConfigurationError(
                f"The database of the MySQL table {self.name} creates no table without a primary key "
                f"(sql_require_primary_key=ON). {so}. Create the table with one, and start the query again."
            )
        if code in _MISSING:
            return ConfigurationError(
                f"The database of the MySQL table {self.name}, or that of its staging tables, does not "
                f"exist: {what}. {so}. Create it, or fix url, dbtable or stagingSchema."
            )
        if is_denied(error) or "CERTIFICATE_VERIFY_FAILED" in what:
            is_plain = self.settings.get("ssl_mode", "").lower() == "disabled"
            tls = "The url has ssl_mode=disabled: does the server require TLS? " if is_plain else ""
            return AccessRefusedError(
                f"The database of the MySQL table {self.name} denies access: {what}. {so}. {tls}{self.advice}"
            )
        return RetryableError(
            f"The database of the MySQL table {self.name} failed: {what}. {so}. {self.next_step(error)} "
            f"{NEXT_TRY}"
        )

    def is_conflict(self, error: Exception) -> bool:
        return code_of(error) in CONFLICTS

    def is_about_values(self, error: Exception) -> bool:
        return code_of(error) in _VALUES

    def is_answer(self, error: Exception) -> bool:
        return self.is_about_values(error) or self.is_conflict(error) or code_of(error) in _READ_ONLY

    def in_short(self, error: Exception) -> str:
        """See `TransactionalServer`. Messages of triggers may have values."""
        code, message = code_of(error), str(error.args[1] if len(error.args) > 1 else error)
        if self.is_about_values(error) and code not in _SHOWN:
            named = _NAMED.search(message)
            where = f" for {named[1]} {named[2]}" if named else ""
            what = "duplicate entry" if code in (1062, 1586, 1761, 1762) else "a value is not valid"
            return one_line(f"{what}{where}: error {code}")
        return one_line(f"{message} (error {code})" if code else message)

    def code(self, error: Exception) -> str:
        return str(code_of(error) or type(error).__name__)


def code_of(error: Exception) -> int:
    """The number of the error; 0 if it has none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def is_denied(error: Exception) -> bool:
    """Return True if the user may not do this."""
    return code_of(error) in _DENIED


def is_without_local(error: Exception) -> bool:
    """Return True if the server does not allow LOAD DATA LOCAL."""
    return code_of(error) in _LOCAL_IS_OFF


def _tls(settings: Mapping[str, str]) -> dict[str, Any]:
    mode = settings.get("ssl_mode", "preferred").lower()
    authority = settings.get("ssl_ca")
    if mode == "disabled":
        return {"ssl_disabled": True}
    if mode == "preferred" and authority is None and "ssl_cert" not in settings:
        return {}
    context = ssl.create_default_context(cafile=authority)
    context.check_hostname = mode == "verify_identity"
    is_verified = mode in ("verify_ca", "verify_identity") or (mode == "preferred" and authority is not None)
    context.verify_mode = ssl.CERT_REQUIRED if is_verified else ssl.CERT_NONE
    if "ssl_cert" in settings:
        context.load_cert_chain(settings["ssl_cert"], settings.get("ssl_key"))
    return {"ssl": context}
