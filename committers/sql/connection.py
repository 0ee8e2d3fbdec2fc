"""Connections that SQLAlchemy opens to the database of a table, and the meaning of their errors.

Runs anywhere. Only this module handles exceptions of SQLAlchemy and of its drivers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, Connection, Engine

from ..database.contract import Cursor
from ..database.files import FileServer
from ..database.server import COMMIT_TIMEOUT_S
from ..error_causes import ErrorCause, cause_of
from ..errors import (
    NEXT_TRY,
    AccessRefusedError,
    ConfigurationError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
)
from ..postgres_timeouts import connection_settings, set_time_limits
from ..texts.safe_text import one_line
from .backends import BACKENDS, Backend

LOCK_TIMEOUT_S = 30.0
"""How long a transaction waits for another one."""
IDLE_TIMEOUT_S = 15.0
"""How long a server lets a transaction do nothing, as far as it has such a limit."""

_CONFLICTS = ("40001", "40P01", "55P03", "HYT00")
"""SQLSTATE: serialization failure, deadlock, a lock that is not available, a time-out."""
_VALUES = ("P0001", "22", "23", "44")
"""Beginnings of SQLSTATE: a trigger's own error, data, constraints, WITH CHECK OPTION."""
_BUSY = re.compile(r"database (table )?is locked|database schema is locked")
_READ_ONLY = re.compile(r"readonly database|unable to open database file")
_NO_DATABASE = re.compile(r"file is not a database|malformed")
_CONSTRAINT = re.compile(r"(UNIQUE|NOT NULL|CHECK|FOREIGN KEY) constraint failed(: .+)?", re.DOTALL)
_DENIED_TEXT = re.compile(r"permission was denied|login failed", re.IGNORECASE)
_STATE = re.compile(r"[0-9A-Z]{5}")

FIX_QUERY = (
    "Fix the url or the privileges of its user (docs/destinations/sql.md lists them), then start the query "
    "again."
)


@dataclass(frozen=True, slots=True)
class SqlServer(FileServer):
    """See `DatabaseServer`."""

    errors = exc.SQLAlchemyError
    file_title = ("SQLite", "url")

    url: URL = field(repr=False)
    """From `parse_url`; may include the password."""
    name: str
    """Address of the table, for messages."""
    may_create: bool = False
    advice: str = FIX_QUERY
    """What to do if the database denies access."""

    def connect(
        self, statement_timeout_s: float = COMMIT_TIMEOUT_S, idle_timeout_s: float = IDLE_TIMEOUT_S
    ) -> SqlConnection:
        """See `DatabaseServer`. Only PostgreSQL gets the time limits."""
        self.check_file()
        try:
            connection = _engine(self.url).connect()
        except (ImportError, exc.NoSuchModuleError):
            raise ConfigurationError(
                f"{self.url.drivername} needs a package that is not installed. Install the one that the "
                "documentation of SQLAlchemy names, on the driver, the executors and where commands and "
                "delivery processes run."
            ) from None
        except exc.SQLAlchemyError as error:
            raise self.failed(error, "Nothing was changed") from None  # the cause may contain the settings
        if self._backend.driver == "psycopg":
            self._limit(connection, statement_timeout_s, idle_timeout_s)
        return SqlConnection(connection)

    def _limit(self, connection: Connection, statement_timeout_s: float, idle_timeout_s: float) -> None:
        given, own = str(self.url.query.get("options", "")), connection.connection.driver_connection
        try:
            set_time_limits(own, given, LOCK_TIMEOUT_S, statement_timeout_s, idle_timeout_s)
        except connection.dialect.loaded_dbapi.Error as error:
            connection.close()
            raise self.failed(error, "Nothing was changed") from None

    @property
    def path(self) -> str:  # type: ignore[override]
        """See `FileServer`."""
        return (self.url.database or "") if self._backend.is_file else ""

    @property
    def _backend(self) -> Backend:
        return BACKENDS[self.url.get_backend_name()]

    @contextmanager
    def savepoint(self, cursor: Cursor) -> Iterator[None]:
        nested = cursor.connection.begin_nested()
        try:
            yield
        except exc.SQLAlchemyError as error:
            if not self.is_conflict(error):
                nested.rollback()
            raise
        nested.commit()

    def failed(self, error: Exception, so: str) -> PenstockError:
        what, of = self.in_short(error), f"the {self._backend.title} table {self.name}"
        if self.is_about_values(error):
            return SchemaMismatchError(f"T{of[1:]} rejected rows: {what}. {so}.")
        is_file = self._backend.is_file
        if not is_file and (cause_of(error) is ErrorCause.REFUSED or _DENIED_TEXT.search(what)):
            return AccessRefusedError(f"The database of {of} denies access: {what}. {so}. {self.advice}")
        if is_file and _READ_ONLY.search(what):
            return AccessRefusedError(
                f"This user must not write the SQLite database {self.path}: {what}. {so}. Create its "
                "folder, and let the user write both."
            )
        if is_file and _NO_DATABASE.search(what):
            return ConfigurationError(
                f"{self.path} is no SQLite database: {what}. {so}. Give another path, or restore it."
            )
        return RetryableError(
            f"The database of {of} failed: {what}. {so}. {self.next_step(error)} {NEXT_TRY}"
        )

    def is_conflict(self, error: Exception) -> bool:
        if self._backend.is_file:
            return _BUSY.search(str(error)) is not None
        return _state(error) in _CONFLICTS

    def is_about_values(self, error: Exception) -> bool:
        is_values = isinstance(error, exc.IntegrityError | exc.DataError)
        return is_values or (not self._backend.is_file and _state(error).startswith(_VALUES))

    def in_short(self, error: Exception) -> str:
        """See `DatabaseServer`. Messages about values may have the values, except those of constraints in
        SQLite.
        """
        text = str(_orig(error))
        if self.is_about_values(error):
            found = _CONSTRAINT.fullmatch(text) if self._backend.is_file else None
            if found is None:
                name = getattr(getattr(_orig(error), "diag", None), "constraint_name", None)
                of = f" {name}" if name else ""
                return one_line(Exception(f"a value or a constraint{of} ({self.code(error)})"))
        return one_line(Exception(text.partition("\n")[0]))

    def code(self, error: Exception) -> str:
        orig = _orig(error)
        return _state(error) or getattr(orig, "sqlite_errorname", "") or type(orig).__name__


class SqlConnection:
    """A connection of the Python DB-API over one of SQLAlchemy. The first statement begins a transaction."""

    def __init__(self, own: Connection) -> None:
        self.own = own

    def cursor(self) -> SqlCursor:
        return SqlCursor(self)

    def begin_nested(self) -> Any:
        """Make a savepoint."""
        return self.own.begin_nested()

    def commit(self) -> None:
        self.own.commit()

    def rollback(self) -> None:
        self.own.rollback()

    def close(self) -> None:
        self.own.close()


class SqlCursor:
    """See `Cursor`."""

    def __init__(self, connection: SqlConnection) -> None:
        self.connection = connection
        self._result: Any = None

    @property
    def rowcount(self) -> int:
        return int(self._result.rowcount)

    def execute(self, statement: Any, parameters: Any = None, /) -> SqlCursor:
        own = self.connection.own
        if parameters is None:
            self._result = own.exec_driver_sql(statement, execution_options={"no_parameters": True})
        else:
            self._result = own.exec_driver_sql(self._translated(statement), tuple(parameters))
        return self

    def executemany(self, statement: Any, parameters: Iterable[Any], /) -> None:
        rows = [tuple(row) for row in parameters]
        if rows:
            self._result = self.connection.own.exec_driver_sql(self._translated(statement), rows)

    def fetchone(self) -> Any:
        return self._result.fetchone()

    def fetchall(self) -> Any:
        return self._result.fetchall()

    def _translated(self, statement: str) -> str:
        if self.connection.own.dialect.paramstyle != "qmark":
            return statement
        return statement.replace("%s", "?").replace("%%", "%")


@lru_cache(maxsize=16)
def _engine(url: URL) -> Engine:
    """No connection is kept, so a process that was forked from this one shares none."""
    backend = BACKENDS[url.get_backend_name()]
    settings: dict[str, Any] = {}
    if backend.is_file:
        settings = {"timeout": LOCK_TIMEOUT_S, "isolation_level": None, "check_same_thread": False}
    elif backend.driver == "psycopg":
        settings = connection_settings(url)
    engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args=settings, hide_parameters=True)
    if backend.is_file:
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_writing)
    return engine


def _configure_sqlite(connection: Any, _record: Any) -> None:
    for setting in ("synchronous = FULL", "fullfsync = ON", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {setting}")


def _begin_writing(connection: Connection) -> None:
    """Take the write lock at once. A transaction that reads first fails if another one writes in between."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _orig(error: Exception) -> Any:
    """The error of the driver."""
    return getattr(error, "orig", None) or error


def _state(error: Exception) -> str:
    """The SQLSTATE of an error; empty if it has none."""
    orig = _orig(error)
    first = orig.args[0] if orig.args else ""
    for given in (getattr(orig, "sqlstate", None), getattr(orig, "pgcode", None), first):
        if isinstance(given, str) and _STATE.fullmatch(given):
            return given
    return ""
