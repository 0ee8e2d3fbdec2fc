"""The engines of the manifest store: settings of the connections to each kind of database."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine

from ..errors import ConfigurationError
from ..postgres_timeouts import LOCK_TIMEOUT_S, connection_settings, set_timeouts
from .urls import file_of, without_secrets

FILE_MODE = 0o600
"""File mode of a new SQLite store. Manifests contain minimum and maximum values of columns, which are user
data.
"""


def sqlite_engine(url: URL, in_memory: bool) -> Engine:
    # isolation_level None: the driver starts no transactions itself, `begin` below does.
    connect_args: dict[str, Any] = {"timeout": LOCK_TIMEOUT_S, "isolation_level": None}
    if in_memory:
        connect_args["check_same_thread"] = False
        engine = sa.create_engine(url, poolclass=sa.StaticPool, connect_args=connect_args)
    else:
        _make_file_of(url)
        engine = sa.create_engine(url, connect_args=connect_args, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: Any) -> None:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA fullfsync=ON")
        connection.execute("PRAGMA foreign_keys=ON")
        # Stored in the database file. It fails while another process uses the file, and the next connection
        # tries again. Until then the store is as durable, but readers wait for writers.
        with suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode=WAL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        """Take the write lock at once. A transaction that reads first and writes later fails if another one
        writes in between.
        """
        writes = connection.get_execution_options().get("penstock_writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _make_file_of(url: URL) -> None:
    """Create the file of a new store. SQLite gives its other files the same mode."""
    if url.database in (None, "", ":memory:") or "mode" in url.query:
        raise ConfigurationError(
            f"The store {without_secrets(url)} is not a file, but manifests must survive this process. Use "
            "sqlite:////path/to/store.db"
        )
    path = file_of(url)
    assert path is not None
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"The directory {folder} of the manifest store cannot be created: {error.strerror}. Choose "
            "another directory with the option `store`, or give this user write permission."
        ) from error
    # An existing file is not opened here: to close it would end the locks of this process's other
    # connections, and another process could then delete the write-ahead log that they use.
    with suppress(OSError):  # it exists, or SQLite reports the error
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY, FILE_MODE))


def postgres_engine(url: URL) -> Engine:
    name = {} if "application_name" in url.query else {"application_name": "penstock"}
    engine = sa.create_engine(
        url,
        # `prepare` takes a lock and then reads what earlier holders of the lock wrote: this needs READ
        # COMMITTED.
        isolation_level="READ COMMITTED",
        connect_args={**connection_settings(url), **name},
        pool_size=1,
        max_overflow=4,
        pool_pre_ping=True,
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        set_timeouts(connection, url, LOCK_TIMEOUT_S)

    return engine
