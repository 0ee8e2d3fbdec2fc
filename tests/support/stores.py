"""What tests of the manifest store share: time by hand, other processes, old schema versions, query plans."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

import penstock
from penstock.committers.contract import StreamKey
from penstock.committers.store import database, queries
from penstock.committers.store.sql import SqlManifestStore
from penstock.committers.store.tables import SCHEMA_VERSIONS, VERSION_TABLE

START = datetime(2026, 11, 20, 12, 0, 0, 123456, tzinfo=timezone.utc)


class HandClock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def run_sql(store: SqlManifestStore, statement: str, **values: Any) -> None:
    """Behind the store's back. Not the store's own engine, whose transactions are set up otherwise."""
    engine = sa.create_engine(store.engine.url)
    with engine.begin() as connection:
        connection.execute(sa.text(statement), values)
    engine.dispose()


def create_old_store(url: str, version: str, *statements: str) -> None:
    """A store as an earlier version of Penstock has left it."""
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        config = Config(attributes={"connection": connection, "version_table": VERSION_TABLE})
        scripts = Path(penstock.__file__).parent / "committers" / "store" / "migrations"
        config.set_main_option("script_location", str(scripts).replace("%", "%%"))
        command.upgrade(config, version)
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


@contextmanager
def migrated_once() -> Iterator[None]:
    """Run the migrations for the first new SQLite store of this process. Others get the tables that they have
    made: tests create thousands of stores, and the migrations take most of that time.
    """
    migrate = database._run_migrations
    made: list[str] = []

    def run(connection: sa.Connection) -> None:
        if connection.dialect.name != "sqlite" or sa.inspect(connection).get_table_names():
            migrate(connection)
        elif made:
            for statement in made:
                connection.exec_driver_sql(statement)
        else:
            migrate(connection)
            of_tables = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%'"
            made.extend(connection.scalars(sa.text(f"{of_tables} ORDER BY rowid")))
            made.append(f"INSERT INTO {VERSION_TABLE} VALUES ('{SCHEMA_VERSIONS[-1]}')")

    with mock.patch.object(database, "_run_migrations", run):
        yield


@contextmanager
def statements_of(store: SqlManifestStore) -> Iterator[list[tuple[str, Any]]]:
    """The statements, with their parameters, that the store sends inside the block."""
    said: list[tuple[str, Any]] = []

    def listen(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        if "penstock_" in statement:
            said.append((statement, parameters))

    sa.event.listen(store.engine, "before_cursor_execute", listen)
    yield said
    sa.event.remove(store.engine, "before_cursor_execute", listen)


@dataclass
class Work:
    """What the database does for the store."""

    steps: int = 0
    """SQLite: instructions of its virtual machine, to 1 %. Postgres: rows that it returns or changes."""


@contextmanager
def work_of(store: SqlManifestStore) -> Iterator[Work]:
    """Count the work inside the block. It does not depend on time or on other processes."""
    work, is_sqlite = Work(), store.engine.dialect.name == "sqlite"
    watched: list[sqlite3.Connection] = []

    def count() -> None:
        work.steps += STEPS

    def watch(connection: sqlite3.Connection, _record: Any, _proxy: Any) -> None:
        connection.set_progress_handler(count, STEPS)
        watched.append(connection)

    def add_rows(_c: Any, cursor: Any, statement: str, _p: Any, _context: Any, _many: bool) -> None:
        work.steps += max(cursor.rowcount, 0) if "penstock_" in statement else 0

    listened = ("checkout", watch) if is_sqlite else ("after_cursor_execute", add_rows)
    sa.event.listen(store.engine, *listened)
    try:
        yield work
    finally:
        sa.event.remove(store.engine, *listened)
        for connection in watched:
            connection.set_progress_handler(None, 0)


STEPS = 10


def plans_of(store: SqlManifestStore, said: Sequence[tuple[str, Any]]) -> list[str]:
    """How the database runs these statements; but for insertions."""
    explain = "EXPLAIN QUERY PLAN " if store.engine.dialect.name == "sqlite" else "EXPLAIN "
    plans = []
    with store.engine.connect() as connection:
        for statement, parameters in said:
            if not statement.startswith("INSERT"):
                plan = connection.exec_driver_sql(explain + statement, parameters).all()
                plans.append("\n".join([statement, *(str(row[-1]) for row in plan)]))
    return plans


def reads_whole_history(plan: str) -> bool:
    plan = plan.replace("SCAN penstock_manifests USING INDEX penstock_manifests_pending", "")  # PREPARED ones
    return "SCAN penstock_manifests" in plan or "Seq Scan on penstock_manifests" in plan


@contextmanager
def holding(store: SqlManifestStore, stream: StreamKey) -> Iterator[None]:
    """Inside the block a transaction of `store` holds the stream and does not end."""
    with store._database.write() as connection:
        assert queries.lock_stream(connection, stream) is not None
        yield


class Processes:
    """Processes that run `store_process.py` and act at the same moment."""

    def __init__(self, *commands: Sequence[str]) -> None:
        script = str(Path(__file__).with_name("store_process.py"))
        self._processes = [
            subprocess.Popen([sys.executable, script, *command], stdin=-1, stdout=-1, text=True)
            for command in commands
        ]

    def results(self) -> list[Any]:
        self.start()
        return self.ended()

    def start(self) -> None:
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def ended(self) -> list[Any]:
        """What each printed; minus the signal for one that was killed."""
        ended = [(process.communicate(timeout=60)[0], process.returncode) for process in self._processes]
        return [json.loads(output) if code == 0 else code for output, code in ended]
