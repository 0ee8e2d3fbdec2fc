"""The database of the manifest store: connecting, schema version, transactions, errors.

Runs on the driver, in the delivery process and in the command line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Row

from ..dry_runs import NotCreatedError, before_creating
from ..error_causes import ErrorCause, cause_of
from ..errors import (
    NEXT_TRY,
    AccessRefusedError,
    CommitStateUnknownError,
    ConfigurationError,
    ManifestCorruptError,
    PenstockError,
    RetryableError,
    StoreFailedError,
    StoreMissingError,
    StoreUnreachableError,
)
from .engines import postgres_engine, sqlite_engine
from .tables import SCHEMA_VERSIONS, VERSION_TABLE
from .urls import file_of, has_file, parsed_url, without_secrets
from .waiting import Patience

Clock = Callable[[], datetime]
"""Returns the current time, with a time zone."""

_FAILURES = (exc.DBAPIError, exc.TimeoutError)
_TRANSIENT_SQLITE_ERRORS = ("database is locked", "disk I/O error", "database or disk is full")
_UPGRADE_LOCK_KEY = 0x70656E73746F636B  # "penstock" in ASCII: the key of the Postgres advisory lock
_SERVER_TIME = sa.select(sa.func.clock_timestamp())  # unlike `now`, also behind a lock that it waited for
_upgrade_lock = threading.Lock()  # Alembic's `op` and `context` are global to the process


class Database:
    """One database with the store's tables in the newest schema version. Safe to share among threads."""

    def __init__(
        self, url: str, *, must_exist: bool = False, in_memory: bool = False, patience: Patience | None = None
    ) -> None:
        """Connect, and create or upgrade the tables if needed.

        Args:
            must_exist: raise an error, and create nothing, if the database has no store
            in_memory: accept the URL of an in-memory SQLite database
            patience: how long calls wait for the database; None never waits

        Raises:
            ConfigurationError: the URL is wrong, the driver is missing, the server is unreachable,
                permissions are missing, or the tables were created by a newer version of Penstock.
        """
        parsed = parsed_url(url)
        self.name = without_secrets(parsed)
        self.patience = patience or Patience()
        self._must_exist = must_exist
        self._is_sqlite = parsed.get_backend_name() == "sqlite"
        if must_exist and not has_file(parsed):
            raise self._no_store()
        try:
            self.engine = sqlite_engine(parsed, in_memory) if self._is_sqlite else postgres_engine(parsed)
        except ImportError as error:
            raise ConfigurationError(
                f"The manifest store {self.name} needs a database driver that is not installed ({error}). "
                "Run: pip install 'penstock[postgres]'"
            ) from error
        self._writer = self.engine.execution_options(penstock_writes=True)
        self._file = self._file_now()
        self.patience.call(self._ensure_schema)

    def close(self) -> None:
        self.engine.dispose()

    @property
    def file(self) -> Path | None:
        """The file of a SQLite store."""
        return file_of(self.engine.url)

    @property
    def has_same_file(self) -> bool:
        """False if the file of a SQLite store was deleted or replaced since it was opened.

        Open connections keep using the deleted file. The inode number of an open file is not reused.
        """
        return self._file is not None and self._file == self._file_now()

    def _file_now(self) -> tuple[int, int] | None:
        """Device and inode of the SQLite file; None if the file does not exist, zeros if the store is not a
        file.
        """
        path = file_of(self.engine.url)
        if path is None:
            return 0, 0
        with suppress(OSError):
            found = path.stat()
            return found.st_dev, found.st_ino
        return None

    def time(self, connection: Connection, clock: Clock) -> datetime:
        """Return the time on which all processes agree: that of the server, as the clocks of their hosts may
        differ. Processes that share a SQLite file run on one machine, and share its clock.
        """
        if self._is_sqlite:
            return clock()
        time: datetime | None = connection.scalar(_SERVER_TIME)
        assert time is not None
        return time

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a read-only transaction.

        Raises:
            StoreFailedError: the database did not answer.
            ManifestCorruptError: the database itself is damaged.
        """
        try:
            with self.engine.connect() as connection:
                yield connection
        except _FAILURES as error:
            self._raise_for(error, RetryableError)
            raise

    def rows(self, query: sa.Executable) -> Sequence[Any]:
        """Read the rows of a query in a transaction of their own."""
        with self.read() as connection:
            return connection.execute(query).all()

    def row(self, query: sa.Executable) -> Row[Any] | None:
        """Read the row of a query that finds at most one."""
        with self.read() as connection:
            return connection.execute(query).one_or_none()

    def scalar(self, query: sa.Executable) -> Any:
        """Read the first value of the first row; None if there is no row."""
        with self.read() as connection:
            return connection.scalar(query)

    @contextmanager
    def write(self, unless_committed: type[PenstockError] = RetryableError) -> Iterator[Connection]:
        """Open a transaction that is committed if the block ends without an exception.

        Raises:
            RetryableError: nothing was written. `unless_committed` replaces this class for callers that
                cannot be sure of that.
            CommitStateUnknownError: the database did not answer the COMMIT.
            ManifestCorruptError: the database itself is damaged.
        """
        kind = unless_committed
        try:
            with self._writer.connect() as connection, connection.begin():
                yield connection
                kind = CommitStateUnknownError
        except _FAILURES as error:
            self._raise_for(error, kind)
            raise

    def _raise_for(self, error: exc.DBAPIError | exc.TimeoutError, kind: type[PenstockError]) -> None:
        """Raise the Penstock error for a database error. Return if the error is a bug in our own SQL."""
        if type(error) is exc.DatabaseError:
            raise ManifestCorruptError(
                f"The manifest store {self.name} is damaged: {_message(error)}. "
                "Restore it from a backup, then start the query again."
            ) from error
        is_outage = (
            isinstance(error, (exc.OperationalError, exc.InterfaceError, exc.TimeoutError))
            or cause_of(error) is ErrorCause.OUTAGE  # for example a standby that is not promoted yet
            or error.connection_invalidated
        )
        if not is_outage:
            return
        wrote = (
            "Nothing was written" if kind is RetryableError else "The last step may or may not be recorded"
        )
        if kind is RetryableError:
            is_refused = cause_of(error) is ErrorCause.REFUSED
            kind = AccessRefusedError if is_refused else StoreFailedError
        raise kind(
            f"The manifest store {self.name} failed: {_message(error)}. {wrote}. Check that the store can be "
            f"reached. {NEXT_TRY}"
        ) from error

    # Schema -----------------------------------------------------------------------------------------

    def _ensure_schema(self) -> None:
        try:
            with self.engine.connect() as connection:
                version = self._schema_version(connection)
            if version is None and self._must_exist:
                raise self._no_store()
            if version != SCHEMA_VERSIONS[-1]:
                self._upgrade(is_new=version is None)
        except (*_FAILURES, OSError) as error:
            self.close()
            if self._is_sqlite and any(passing in str(error) for passing in _TRANSIENT_SQLITE_ERRORS):
                raise StoreFailedError(
                    f"The manifest store {self.name} cannot be opened now: {_message(error)}. The disk is "
                    "full, or another process holds a lock on the store, for example a driver that was "
                    f"stopped inside a transaction. Free disk space or end that process. {NEXT_TRY}"
                ) from error
            is_outage = not self._is_sqlite and cause_of(error) is ErrorCause.OUTAGE
            raise (StoreUnreachableError if is_outage else ConfigurationError)(
                f"The manifest store {self.name} cannot be opened: {_message(error)}. {self._hint()}"
            ) from error
        except (PenstockError, NotCreatedError):
            self.close()
            raise

    def _no_store(self) -> StoreMissingError:
        return StoreMissingError(
            f"There is no manifest store at {self.name}. Check the name. A store is created by the first "
            "start of a query that uses it."
        )

    def _hint(self) -> str:
        if self._is_sqlite:
            return (
                "Check that this is a Penstock store, and that this user may write to the file and "
                "its directory."
            )
        return (
            "Check host, port, database, user and password, and that the user may create tables "
            "(GRANT CREATE ON SCHEMA public TO the user)."
        )

    def _schema_version(self, connection: Connection) -> str | None:
        """Return the schema version; None if the tables do not exist yet. Raise an error for an unknown
        version.
        """
        if not sa.inspect(connection).has_table(VERSION_TABLE):
            return None
        version = connection.scalar(sa.select(sa.column("version_num")).select_from(sa.table(VERSION_TABLE)))
        if version not in SCHEMA_VERSIONS:
            raise ConfigurationError(
                f"The manifest store {self.name} has schema version {version}, which is newer than this "
                f"version of Penstock knows ({SCHEMA_VERSIONS[-1]}). Run: pip install --upgrade penstock"
            )
        return str(version)

    def _upgrade(self, *, is_new: bool) -> None:
        """Upgrade the tables to the newest version. Other processes wait until the upgrade is done.

        A dry run creates the tables of a new store, and rolls back.

        Raises:
            NotCreatedError: this is a dry run.
        """
        if not is_new:
            before_creating(f"version {SCHEMA_VERSIONS[-1]} of the tables", is_new=False)
        with _upgrade_lock, self._writer.begin() as connection:
            if not self._is_sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_UPGRADE_LOCK_KEY)))
            if self._schema_version(connection) != SCHEMA_VERSIONS[-1]:
                _run_migrations(connection)
            before_creating("the manifest store")


def _run_migrations(connection: Connection) -> None:
    """Run Alembic on a copy of the scripts: it needs a real directory, and the package may be inside a zip
    file.
    """
    from alembic import command
    from alembic.config import Config

    with TemporaryDirectory(prefix="penstock-migrations-") as folder:
        source = files(__package__).joinpath("migrations")
        for name in ("", "versions"):
            Path(folder, name).mkdir(exist_ok=True)
            for script in source.joinpath(name).iterdir() if name else source.iterdir():
                if script.name.endswith(".py"):
                    Path(folder, name, script.name).write_bytes(script.read_bytes())
        config = Config(attributes={"connection": connection, "version_table": VERSION_TABLE})
        config.set_main_option("script_location", folder.replace("%", "%%"))
        command.upgrade(config, "head")


def _message(error: Exception) -> str:
    """The driver's message on one line, without the statement and its parameters."""
    original = error.orig if isinstance(error, exc.DBAPIError) else error
    return " ".join(str(original).split()).rstrip(".?")
