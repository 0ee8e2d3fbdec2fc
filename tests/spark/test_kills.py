"""SIGKILL to the whole driver at every named crash point, restart, and every row is there once.

One stream lives through all the kills: each start of the driver is stopped at the next crash point and
killed there, with its JVM and its Python workers. `PENSTOCK_KILLS=3` goes round three times.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.invariants import check
from tests.spark.processes import DriverProcess

from penstock.committers.crash_points import CRASH_POINTS

pytestmark = [pytest.mark.spark, pytest.mark.kills, pytest.mark.slow]

ROUNDS = int(os.environ.get("PENSTOCK_KILLS", "1"))
ROWS_PER_FILE = 500
FILES = 12

KILLS = (
    "write.file_open",
    "write.files_closed",
    "prepare.start",
    "prepare.done",
    "recover.start",
    "commit.start",
    "commit.landed",
    "recover.done",
    "evolve.done",
    "mark.done",
)
"""In this order the pending batch that `prepare.done` leaves is killed again and again in its recovery.

`table.created` can happen only once, so each round begins a new table with it.
"""


def test_the_kills_cover_every_crash_point() -> None:
    assert {*KILLS, "table.created"} == set(CRASH_POINTS)


@pytest.mark.parametrize("kill_round", range(ROUNDS))
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_kill_at_every_crash_point_loses_and_doubles_nothing(
    kill_round: int, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if store == "postgres" and ROUNDS == 1:
        pytest.skip("one round of kills runs on SQLite only; PENSTOCK_KILLS=3 takes both")
    stream = KilledStream(tmp_path, _store_url(store, tmp_path, request))

    stream.killed_at("table.created")
    for point in KILLS:
        stream.killed_at(point)
    stream.runs_to_the_end()

    findings = check(stream.table, f"read_parquet('{stream.source}/*.parquet')", stream.store_url)
    assert findings.problems == []
    assert findings.rows == FILES * ROWS_PER_FILE
    print(f"{store}: {1 + len(KILLS)} kills, {findings}")  # noqa: T201 - shown by `make kills`


def _store_url(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if store == "sqlite":
        return f"sqlite:///{tmp_path}/checkpoint/penstock.sqlite"
    return str(request.getfixturevalue("new_postgres_url")())


class KilledStream:
    """A stream whose driver is killed again and again."""

    def __init__(self, root: Path, store_url: str) -> None:
        self.source = root / "source"
        self.table = root / "table"
        self.store_url = store_url
        self._root = root
        self._kills = 0
        self._evolves = False
        self.source.mkdir()
        for number in range(FILES):
            ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
            rows = pa.table({"id": pa.array(ids, pa.int64()), "day": [f"d{i % 3}" for i in ids]})
            path = self.source / f"{number:05}.parquet"
            pq.write_table(rows, path)
            os.utime(path, (1_700_000_000 + number,) * 2)

    def killed_at(self, point: str) -> None:
        """Start the driver, wait until it reaches the crash point, and kill it there."""
        self._kills += 1
        self._evolves = self._evolves or point == "evolve.done"
        reached = self._root / f"reached-{self._kills}-{point}"
        driver = self._start({"PENSTOCK_PAUSE_AT": point, "PENSTOCK_PAUSE_FILE": str(reached)})
        try:
            driver.wait_for(reached)
        finally:
            driver.kill()

    def runs_to_the_end(self) -> None:
        """After any crash, restart alone is enough."""
        driver = self._start({})
        assert driver.wait() == 0, driver.tail()

    def _start(self, environment: dict[str, str]) -> DriverProcess:
        partitions = 1 + self._kills % 3  # replays are partitioned otherwise than the first run
        arguments = [str(self.source), str(self.table), str(self._root / "checkpoint")]
        arguments += ["--option", f"store={self.store_url}", "--partitions", str(partitions)]
        if self._evolves:
            arguments += ["--column", "id * 2 AS twice", "--option", "schemaEvolution=addColumns"]
        return DriverProcess(arguments, self._root / "driver.log", environment)
