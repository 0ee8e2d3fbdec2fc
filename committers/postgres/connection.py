"""Connections to the database of a Postgres table, and interpretation of its errors. Runs anywhere.

Only this module handles exceptions of psycopg.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ..database.server import TransactionalServer
from ..error_causes import retryable
from ..errors import NEXT_TRY, ConfigurationError, PenstockError, SchemaMismatchError
from ..postgres_timeouts import (
    IDLE_TRANSACTION_TIMEOUT_S,
    LOCK_TIMEOUT_S,
    STATEMENT_TIMEOUT_S,
    missing_settings,
    set_time_limits,
)
from ..texts.safe_text import one_line

CONFLICTS = ("40001", "40P01", "55P03")
"""SQLSTATEs of serialization failures, deadlocks and lock timeouts: conflicts with another transaction."""

_SESSION = {
    "client_encoding": "UTF8",  # of the bytes for COPY
    "datestyle": "ISO",  # the only style in which psycopg parses times
    "array_nulls": "on",
}
"""Settings that affect the text form of values. They override the url and the role."""

_COPIED_COLUMN = re.compile(r"^COPY \S+, line \d+, column (.+)$", re.MULTILINE)
"""Part of an error's context. Of a binary COPY it has no value."""

Connection = psycopg.Connection


def settings_of(url: str) -> dict[str, str]:
    """The libpq parameters of a URL or a connection string.

    Raises:
        ValueError: libpq cannot parse it, or it does not identify a database. The message does not contain
            it.
    """
    if url.startswith("postgresql+psycopg://"):  # SQLAlchemy's form
        url = url.replace("+psycopg", "", 1)
    try:
        settings = {key: str(value) for key, value in conninfo_to_dict(url).items()}
    except psycopg.Error:
        settings = {}
    if not (settings.get("host") or settings.get("hostaddr")) or not settings.get("dbname"):
        raise ValueError(
            "must contain host and database in libpq's form: postgresql://user@host:5432/database"
        )
    return {"port": "5432", **settings}


FIX_QUERY = (
    "Fix the url or the privileges of its user (docs/postgres.md lists them), then start the query again."
)


@dataclass(frozen=True, slots=True)
class PostgresServer(TransactionalServer):
    """See `TransactionalServer`."""

    errors = psycopg.Error

    settings: Mapping[str, str] = field(repr=False)
    """libpq parameters; may include the password."""
    name: str
    """Address of the table, for messages."""
    advice: str = FIX_QUERY
    """What to do if the database denies access."""
    next_try: str = NEXT_TRY
    """What to do after an outage."""

    def connect(
        self,
        statement_timeout_s: float = STATEMENT_TIMEOUT_S,
        idle_timeout_s: float = IDLE_TRANSACTION_TIMEOUT_S,
    ) -> Connection:
        """Open a connection. A transaction lasts until `commit`, or until `close`, which rolls back.

        Raises:
            RetryableError: the database cannot be reached now; `AccessRefusedError` if it denies access.
        """
        settings = dict(self.settings)
        hosts = settings.get("host", "")
        try:
            connection = psycopg.connect(**{**settings, **missing_settings(settings, hosts)})  # type: ignore[arg-type]
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            _set_up_session(connection)
            set_time_limits(
                connection, settings.get("options", ""), LOCK_TIMEOUT_S, statement_timeout_s, idle_timeout_s
            )
        except psycopg.Error as error:
            raise self.failed(error, "Nothing was changed") from None  # the cause may contain the settings
        return connection

    def savepoint(self, cursor: Any) -> AbstractContextManager[Any]:
        return cursor.connection.transaction()  # type: ignore[no-any-return]

    def failed(self, error: psycopg.Error, so: str) -> PenstockError:
        """The error to raise if nothing was changed.

        Args:
            so: the consequence for the user, as a sentence without a full stop
        """
        if self.is_about_values(error):
            return SchemaMismatchError(
                f"The Postgres table {self.name} rejected rows: {self.in_short(error)}. {so}."
            )
        if error.sqlstate == "3F000":
            return ConfigurationError(
                f"The schema of the Postgres table {self.name}, or the schema of its staging tables, does "
                f"not exist. {so}. Create it, or fix dbtable or stagingSchema."
            )
        kind = retryable(error)
        if issubclass(kind, ConfigurationError):
            return kind(
                f"The database of the Postgres table {self.name} denies access: {self.in_short(error)}. "
                f"{so}. {self.advice}"
            )
        return kind(
            f"The database of the Postgres table {self.name} failed: {self.in_short(error)}. {so}. "
            f"{self.next_step(error)} {self.next_try}"
        )

    def is_conflict(self, error: psycopg.Error) -> bool:
        return error.sqlstate in CONFLICTS

    def is_about_values(self, error: psycopg.Error) -> bool:
        """See `TransactionalServer`. A limit is such as the size of an index entry."""
        return str(error.sqlstate or "").startswith(("22", "23", "44", "54", "P0001"))

    def in_short(self, error: psycopg.Error) -> str:
        """See `TransactionalServer`. Messages of triggers may have values."""
        if str(error.sqlstate or "").startswith("22"):  # the message contains the value
            column = _COPIED_COLUMN.search(error.diag.context or "")
            where = f" in column {column[1]}" if column else ""
            return one_line(f"a value{where} is not valid: {type(error).__name__}, SQLSTATE {error.sqlstate}")
        message = error.diag.message_primary or str(error)
        constraint = error.diag.constraint_name
        return one_line(Exception(f"{message} (constraint {constraint})" if constraint else message))

    def code(self, error: psycopg.Error) -> str:
        return error.sqlstate or type(error).__name__


def _set_up_session(connection: Connection) -> None:
    settings = dict(_SESSION)
    with connection.cursor() as cursor:
        if cursor.execute("SHOW synchronous_commit").fetchone() == ("off",):
            settings["synchronous_commit"] = "on"  # a crash must not lose a successful COMMIT
        if connection.info.server_version >= 170000:
            settings["transaction_timeout"] = "0"  # one transaction per task
        cursor.execute("; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))
    connection.commit()
