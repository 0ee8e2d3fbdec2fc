"""Connections to the file of a DuckDB database, and the meaning of DuckDB's errors. Runs anywhere.

One process has the file open, and within a process one instance of DuckDB. So Penstock opens it only for a
transaction, waits while another process has it, and all connections of a process are to one instance. Only
this module handles exceptions of duckdb.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import duckdb

from ..database.files import FileServer
from ..error_causes import retryable
from ..errors import (
    NEXT_TRY,
    AccessRefusedError,
    ConfigurationError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
)
from ..texts.safe_text import one_line
from .address import DATABASE, STAGING, literal, staging_folder

LOCK_WAIT_S = 30.0
"""How long a connection waits for a process that has the file open."""

_POLL_S = 0.05
_HELD = re.compile(r"Could not set lock on file")
_IN_THIS_PROCESS = re.compile(r"Unique file handle conflict")
_HOLDER = re.compile(r"lock is held in (.+?) \(PID (\d+)\)")
_CONSTRAINT = re.compile(r"(NOT NULL constraint failed: .+|CHECK constraint failed on table .+)")
_NO_FILE = re.compile(r"No such file or directory|Not a directory")
_DENIED = re.compile(r"Permission denied|Read-only file system|read-only mode")
_NO_DATABASE = re.compile(r"not a valid DuckDB database file|Trying to read a database file with version")


@dataclass(frozen=True, slots=True)
class DuckDbServer(FileServer):
    """See `DatabaseServer`."""

    errors = duckdb.Error
    file_title = ("DuckDB", "path")

    path: str
    lock_wait_s: float = LOCK_WAIT_S
    may_create: bool = False

    def connect(self, statement_timeout_s: float = 0, idle_timeout_s: float = 0) -> DuckDbConnection:
        """Open the file, and create it if it does not exist. A transaction lasts until `commit`, or until
        `close`, which rolls back. DuckDB has no time limits of statements.

        Raises:
            RetryableError: another process has it open; `AccessRefusedError` if this user must not write it.
            ConfigurationError: it is no database of DuckDB, or it or its folder does not exist.
        """
        self.check_file()
        deadline = time.monotonic() + self.lock_wait_s
        while True:
            connection = _instance(self.path)
            try:
                connection.execute(f"ATTACH IF NOT EXISTS {literal(self.path)} AS {DATABASE}")
                connection.execute(f"USE {DATABASE}")
                connection.execute(f"SET VARIABLE {STAGING} = {literal(staging_folder(self.path))}")
                connection.execute("SET TimeZone = 'UTC'")
                connection.execute("BEGIN")
            except duckdb.Error as error:
                connection.close()
                if not _is_held(error) or time.monotonic() > deadline:
                    raise self.failed(error, "Nothing was changed") from None
                time.sleep(_POLL_S)
            else:
                return DuckDbConnection(connection, staging_folder(self.path))

    @contextmanager
    def savepoint(self, cursor: Any) -> Iterator[None]:
        """DuckDB has none: after an error the transaction can only be rolled back. See `rows`."""
        yield

    def failed(self, error: duckdb.Error, so: str) -> PenstockError:
        text = self.in_short(error)
        if _is_held(error):
            return RetryableError(f"{self._held_by(str(error))} {so}. {NEXT_TRY}")
        if self.is_about_values(error):
            return SchemaMismatchError(f"A table of {self.path} rejected rows: {text}. {so}.")
        if _NO_FILE.search(text):
            return ConfigurationError(
                f"The folder of the DuckDB database {self.path} does not exist. {so}. Create it, or fix path."
            )
        if _DENIED.search(text):
            return AccessRefusedError(
                f"This user must not write the DuckDB database {self.path}: {text}. {so}. Let it write "
                "the file and its folder."
            )
        if _NO_DATABASE.search(text):
            return ConfigurationError(
                f"{self.path} is no database that this DuckDB ({duckdb.__version__}) can open: {text}. {so}. "
                "Give another path, or write it with this version of DuckDB."
            )
        if isinstance(error, duckdb.CatalogException) and "Schema with name" in text:
            return ConfigurationError(
                f"A schema is missing in the DuckDB database {self.path}: {text}. {so}. Run CREATE SCHEMA, "
                "or fix dbtable."
            )
        return retryable(Exception(text))(
            f"The DuckDB database {self.path} failed: {text}. {so}. Check the file and the free space of its "
            f"disk. {NEXT_TRY}"
        )

    def _held_by(self, text: str) -> str:
        if _IN_THIS_PROCESS.search(text):
            return (
                f"This process has the DuckDB database {self.path} open in a connection of its own. DuckDB "
                "opens a file once. Close the connection, con.close(), while Penstock writes."
            )
        found = _HOLDER.search(text)
        process = f"process {found[2]} ({found[1]})" if found else "another process"
        return (
            f"The DuckDB database {self.path} is open in {process}, since more than {self.lock_wait_s:g} s. "
            "DuckDB lets one process write, also while others only read. Close its connections, "
            "con.close(), or end it."
        )

    def is_conflict(self, error: duckdb.Error) -> bool:
        return isinstance(error, duckdb.TransactionException) or _is_held(error)

    def is_about_values(self, error: duckdb.Error) -> bool:
        return isinstance(
            error,
            (duckdb.ConstraintException, duckdb.ConversionException, duckdb.OutOfRangeException),
        )

    def in_short(self, error: duckdb.Error) -> str:
        """See `DatabaseServer`. Messages about values have the values."""
        text = str(error).partition("\n\n")[0]
        if isinstance(error, duckdb.ConstraintException):
            found = _CONSTRAINT.search(text)
            if found is None:
                kind = "FOREIGN KEY" if "foreign key" in text else "PRIMARY KEY or UNIQUE"
                return f"a row violates a {kind} constraint"
            return one_line(Exception(found[1]))
        if self.is_about_values(error):
            return f"a value does not fit its column ({self.code(error)})"
        return one_line(Exception(text))

    def code(self, error: duckdb.Error) -> str:
        return type(error).__name__


class DuckDbConnection:
    """A connection of the Python DB-API. DuckDB's own cursors are other connections."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, staging: str) -> None:
        self.staging = staging
        """The folder of the rows that tasks have written."""
        self._connection = connection

    def cursor(self) -> DuckDbCursor:
        return DuckDbCursor(self, self._connection)

    def accepts(self, statement: str) -> bool:
        """Return True if DuckDB would run a statement, as far as its names and types tell."""
        try:
            self._connection.execute(f"EXPLAIN {statement}")
        except duckdb.BinderException:
            return False
        return True

    def problem(self, statements: Iterable[str]) -> str:
        """Run statements in a transaction of their own, and roll it back; return the problem if one fails."""
        other = self._connection.cursor()
        try:
            for statement in (f"USE {DATABASE}", "BEGIN", *statements):
                other.execute(statement)
        except duckdb.Error as error:
            return one_line(Exception(str(error).partition("\n\n")[0].rstrip("!.")))
        finally:
            other.close()
        return ""

    def commit(self) -> None:
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN")

    def rollback(self) -> None:
        with suppress(duckdb.TransactionException):  # there is none after an error of COMMIT
            self._connection.execute("ROLLBACK")
        self._connection.execute("BEGIN")

    def close(self) -> None:
        """Roll back, and close the file if this is the last connection of the process."""
        self._connection.close()


class DuckDbCursor:
    """See `Cursor`."""

    def __init__(self, connection: DuckDbConnection, own: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        self._own = own

    @property
    def rowcount(self) -> int:
        """Of the last INSERT, UPDATE or DELETE, whose result is the number."""
        (count,) = self._own.fetchone() or (0,)
        return int(count)

    def execute(self, statement: str, parameters: Any = None) -> DuckDbCursor:
        if parameters is None:
            self._own.execute(statement)
        else:
            self._own.execute(_translated(statement), list(parameters))
        return self

    def executemany(self, statement: str, parameters: Iterable[Any]) -> None:
        self._own.executemany(_translated(statement), [list(row) for row in parameters])

    def fetchone(self) -> Any:
        return self._own.fetchone()

    def fetchall(self) -> Any:
        return self._own.fetchall()

    def arrow(self, statement: str) -> Any:
        """The result as an Arrow table."""
        return self._own.execute(statement).to_arrow_table()


def _translated(statement: str) -> str:
    return statement.replace("%s", "?").replace("%%", "%")


def _instance(path: str) -> duckdb.DuckDBPyConnection:
    """Connect to this process's instance of DuckDB for the file, which ends with its last connection.

    No extension is downloaded.
    """
    name = hashlib.sha256(f"{os.getpid()} {path}".encode()).hexdigest()
    off = ("autoinstall_known_extensions", "autoload_known_extensions")
    config: dict[str, Any] = dict.fromkeys(off, "false")
    config["temp_directory"] = f"{path}.tmp"
    return duckdb.connect(f":memory:{name}", config=config)


def _is_held(error: Exception) -> bool:
    text = str(error)
    return _HELD.search(text) is not None or _IN_THIS_PROCESS.search(text) is not None
