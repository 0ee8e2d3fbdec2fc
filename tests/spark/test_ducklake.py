"""Streams of a real Spark into a DuckLake, read back by duckdb."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.spark import killed_stream
from tests.spark.killed_stream import KilledStream
from tests.support.ducklakes import DuckLake, duckdb_lake, sqlite_lake

pytestmark = pytest.mark.spark


@pytest.mark.kills
@pytest.mark.parametrize("new_lake", [sqlite_lake, duckdb_lake])
def test_a_driver_that_is_killed_between_the_phases_loses_and_doubles_nothing(
    new_lake: Callable[[Path], DuckLake], tmp_path: Path
) -> None:
    """SIGKILL once written, once prepared, once in the table."""
    lake = new_lake(tmp_path)
    kills = ("write.files_closed", "prepare.done", "commit.landed")
    KilledStream(tmp_path, "penstock.ducklake", lake.options, kills).run()

    found = lake.sql("SELECT count(*), count(DISTINCT id), sum(id) FROM events")
    assert found == [(killed_stream.ROWS, killed_stream.ROWS, sum(range(killed_stream.ROWS)))]
