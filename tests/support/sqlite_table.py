"""A table in a SQLite database that a query writes, read by DuckDB in a process of its own.

DuckDB has a SQLite of its own. Two copies of SQLite in one process release each other's locks.
"""

from __future__ import annotations

import atexit
import json
import sqlite3
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, cast

from sqlalchemy import exc
from tests.support.harness import CRASH_POINTS
from tests.support.sql_table import SqlTableHarness

from penstock.datasource.sql.stored import DESTINATION
from penstock.testing.conformance import Promises
from penstock.testing.conformance.harness import ChangedRow

_READER = """
import json, sys
import duckdb
from penstock.testing.duckdb_reader import load_extensions

connection = duckdb.connect(config={"temp_directory": ""})
load_extensions(connection, "sqlite-scanner")
for line in sys.stdin:
    path, query = json.loads(line)
    connection.execute(f"ATTACH '{path}' AS file (TYPE sqlite, READ_ONLY)")
    try:
        rows = connection.execute(query).fetchall()
    except duckdb.CatalogException:
        rows = []
    except duckdb.Error as error:
        rows = str(error)
    connection.execute("DETACH file")
    print(json.dumps(rows, default=str), flush=True)
"""


@cache
def _reader() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    reader = subprocess.Popen([sys.executable, "-c", _READER], stdin=pipe, stdout=pipe, text=True)
    atexit.register(reader.kill)
    return reader


def read(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Query the database, which is called `file`. No rows if there is no such table."""
    reader = _reader()
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write(json.dumps([str(path), query]) + "\n")
    reader.stdin.flush()
    found = json.loads(reader.stdout.readline())
    assert isinstance(found, list), found
    return [tuple(row) for row in found]


class SqliteHarness(SqlTableHarness):
    """The table `events` of a SQLite database in a folder."""

    destination = DESTINATION
    promises = Promises(
        name="Tables of SQL databases",
        payload="a staging table for each task",
        commit="one transaction that moves the rows into the table",
        token="a row of the table `penstock_fence`, changed in the same transaction",
        changes="`DELETE`, `UPDATE` and `INSERT` in its transaction",
        narrows=True,
        quarantines=True,
        reserved_columns=("penstock_row",),
        crash_points=CRASH_POINTS,
    )
    lost_connection = exc.OperationalError("COMMIT", None, sqlite3.OperationalError("disk I/O error"))

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lake.db"

    @property
    def options(self) -> dict[str, str]:
        return {"url": f"sqlite:///{self.path}", "dbtable": "events"}

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run as another writer, with the same copy of SQLite."""
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as other:
            return other.execute(statement).fetchall()

    def ids(self) -> list[int]:
        return [row[0] for row in read(self.path, "SELECT id FROM file.events")] if self.path.exists() else []

    def changed_rows(self) -> Sequence[ChangedRow]:
        return cast("Sequence[ChangedRow]", read(self.path, "SELECT id, n, text FROM file.events"))

    def uncommitted(self) -> Collection[str]:
        if not self.path.exists():
            return []
        names = self.sql(
            "SELECT name FROM sqlite_master WHERE name GLOB 'penstock_[0-9a-f]*_*_*' AND type = 'table'"
        )
        return [name for (name,) in names]
