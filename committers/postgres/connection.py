"""Connections to the database of a Postgres table, and what its errors mean. Runs anywhere.

Nobody but this module reads what psycopg raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ..error_causes import retryable
from ..errors import NEXT_TRY, ConfigurationError, PenstockError, SchemaMismatchError
from ..postgres_timeouts import (
    IDLE_TRANSACTION_TIMEOUT_S,
    LOCK_TIMEOUT_S,
    STATEMENT_TIMEOUT_S,
    missing_settings,
    set_time_limits,
)
from ..safe_text import one_line

COMMIT_TIMEOUT_S = 3600.0
"""For a statement that moves rows: `INSERT ... SELECT` of a whole task."""
IDLE_TASK_TIMEOUT_S = 86_400.0
"""How long a task may wait for its next rows inside its transaction."""

CONFLICTS = ("40001", "40P01", "55P03")
"""SQLSTATE of serialization failures, deadlocks and lock time-outs: another transaction was in the way."""

_SESSION = {
    "client_encoding": "UTF8",  # of the bytes for COPY
    "datestyle": "ISO",  # the only one that psycopg reads times in
    "array_nulls": "on",
}
"""What texts mean depends on these settings, so neither the url nor the role changes them."""

_COPIED_COLUMN = re.compile(r"^COPY \S+, line \d+, column (.+?): ", re.MULTILINE)
"""In the context of an error; the value follows."""

Connection = psycopg.Connection
Cursor = psycopg.Cursor
DatabaseError = psycopg.Error


def settings_of(url: str) -> dict[str, str]:
    """The parameters of libpq in a URL or a connection string.

    Raises:
        ValueError: libpq cannot parse it, or it leaves out what says which database it is. The message does
            not show it.
    """
    if url.startswith("postgresql+psycopg://"):  # as SQLAlchemy has it
        url = url.replace("+psycopg", "", 1)
    try:
        settings = {key: str(value) for key, value in conninfo_to_dict(url).items()}
    except psycopg.Error:
        settings = {}
    if not (settings.get("host") or settings.get("hostaddr")) or not settings.get("dbname"):
        raise ValueError(
            "must name host and database, as libpq takes them: postgresql://user@host:5432/database"
        )
    return {"port": "5432", **settings}


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """How the database is reached. Pickled with the plan of a batch: tasks connect, too."""

    settings: Mapping[str, str] = field(repr=False)
    """Parameters of libpq; the password may be one of them."""
    name: str
    """The table's address, for messages."""

    def connect(
        self,
        statement_timeout_s: float = STATEMENT_TIMEOUT_S,
        idle_timeout_s: float = IDLE_TRANSACTION_TIMEOUT_S,
    ) -> Connection:
        """A connection whose transactions last until `commit`, or `close`, which rolls back.

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
            raise self.failed(error, "Nothing was changed") from None  # the cause may show the settings
        return connection

    @contextmanager
    def transaction(self, so: str) -> Iterator[Cursor]:
        """A short transaction on a connection of its own, committed if the block ends without an exception.

        Args:
            so: see `failed`

        Raises:
            RetryableError: the database failed, or does not answer.
        """
        with closing(self.connect()) as connection:
            try:
                yield connection.cursor()
                connection.commit()
            except psycopg.Error as error:
                raise self.failed(error, so) from None  # its details show values of rows

    def failed(self, error: psycopg.Error, so: str) -> PenstockError:
        """The error to raise where nothing was changed.

        Args:
            so: what the user has to know, as a sentence without its stop
        """
        if is_about_values(error):
            return SchemaMismatchError(
                f"The Postgres table {self.name} refused rows: {in_short(error)}. {so}."
            )
        if error.sqlstate == "3F000":
            return ConfigurationError(
                f"The schema of the Postgres table {self.name}, or the one for its staging tables, does not "
                f"exist. {so}. Create it, or correct dbtable or stagingSchema."
            )
        kind = retryable(error)
        if issubclass(kind, ConfigurationError):
            return kind(
                f"The database of the Postgres table {self.name} refuses access: {in_short(error)}. {so}. "
                "Correct the url or the rights of its user (docs/postgres.md lists them), then start the "
                "query again."
            )
        return kind(
            f"The database of the Postgres table {self.name} failed: {in_short(error)}. {so}. Check that it "
            f"can be reached. {NEXT_TRY}"
        )


def _set_up_session(connection: Connection) -> None:
    settings = dict(_SESSION)
    with connection.cursor() as cursor:
        if cursor.execute("SHOW synchronous_commit").fetchone() == ("off",):
            settings["synchronous_commit"] = "on"  # a crash must not take back what COMMIT has promised
        if connection.info.server_version >= 170000:
            settings["transaction_timeout"] = "0"  # a task is one transaction
        cursor.execute("; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))
    connection.commit()


def is_conflict(error: psycopg.Error) -> bool:
    """True if another transaction was in the way, and the server has refused this one."""
    return error.sqlstate in CONFLICTS


def is_about_values(error: psycopg.Error) -> bool:
    """True if a value was refused: by its type, a constraint, a limit such as the size of an index entry, or
    a trigger that raises.
    """
    return str(error.sqlstate or "").startswith(("22", "23", "44", "54", "P0001"))


def is_answer(error: psycopg.Error) -> bool:
    """True if the server has refused the COMMIT and said so: deferred constraints, serialization failures."""
    return is_about_values(error) or is_conflict(error)


def in_short(error: psycopg.Error) -> str:
    """One line, without values of rows, but for what a trigger says."""
    if str(error.sqlstate or "").startswith("22"):  # the message itself shows the value
        column = _COPIED_COLUMN.search(error.diag.context or "")
        where = f" in column {column[1]}" if column else ""
        return one_line(f"a value{where} is not valid: {type(error).__name__}, SQLSTATE {error.sqlstate}")
    said = error.diag.message_primary or str(error)
    constraint = error.diag.constraint_name
    return one_line(Exception(f"{said} (constraint {constraint})" if constraint else said))
