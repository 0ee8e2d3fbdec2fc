"""A DuckDB table that a query writes, read by another process that knows nothing of the writer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import duckdb
from tests.support.harness import CRASH_POINTS
from tests.support.sql_table import SqlTableHarness

from penstock.datasource.duckdb.stored import DESTINATION
from penstock.testing.conformance import Promises

_RUN = """
import json, sys, duckdb
with duckdb.connect(sys.argv[1]) as connection:
    try:
        found = connection.execute(sys.argv[2])
        print(json.dumps(found.fetchall() if found.description else [], default=str))
    except duckdb.CatalogException:  # there is no such table
        print("[]")
"""


class DuckDbHarness(SqlTableHarness):
    """The table `events` of a database in a folder."""

    destination = DESTINATION
    promises = Promises(
        name="DuckDB tables",
        payload="Parquet files in a folder beside the database",
        commit="one transaction that loads the files into the table",
        token="a row of the table `penstock_fence`, changed in the same transaction",
        changes="`DELETE` and `INSERT` in its transaction",
        narrows=True,
        evolves=True,
        quarantines=True,
        reserved_columns=("penstock_row",),
        crash_points=CRASH_POINTS,
    )
    lost_connection = duckdb.IOException("the disk was lost")

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lake.duckdb"

    @property
    def options(self) -> dict[str, str]:
        return {"path": str(self.path), "dbtable": "events"}

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run in a process of its own. Without the table, nothing happens."""
        command = [sys.executable, "-c", _RUN, str(self.path), statement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [tuple(row) for row in json.loads(done.stdout)]

    def ids(self) -> list[int]:
        return [row[0] for row in self.sql("SELECT id FROM events")] if self.path.exists() else []

    def uncommitted(self) -> Collection[str]:
        folder = Path(f"{self.path}.staging")
        return {str(path.relative_to(folder)) for path in folder.glob("*/*")}

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            Path(f"{self.path}.staging", name).unlink()

    def recreate(self) -> None:
        self.sql("CREATE OR REPLACE TABLE events (id bigint)")
