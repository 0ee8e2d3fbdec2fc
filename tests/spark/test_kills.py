"""SIGKILL to the whole driver at every named crash point, restart, and every row is there once.

One stream lives through all the kills: each start of the driver is stopped at the next crash point and
killed there, with its JVM and its Python workers. `PENSTOCK_KILLS=3` goes round three times.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.driver_process import SHORT_LIVED, DriverProcess
from tests.support.id_stream import write_ids
from tests.support.lakes import LakeTable, rows

from penstock import testing
from penstock.committers.crash_points import STREAM_POINTS

pytestmark = [pytest.mark.spark, pytest.mark.kills]

ROUNDS = int(os.environ.get("PENSTOCK_KILLS", "1"))
ROWS_PER_FILE = 200
FILES = 5

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

ONLY_DELTA = {"evolve.done"}
"""An Iceberg table gets new columns in the commit of their first batch."""


def test_the_kills_cover_every_crash_point() -> None:
    assert {*KILLS, "table.created"} == set(STREAM_POINTS)


@pytest.mark.slow
@pytest.mark.parametrize("kill_round", range(ROUNDS))
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_kill_at_every_crash_point_loses_and_doubles_nothing(
    kill_round: int, store: str, tmp_path: Path, table: LakeTable, request: pytest.FixtureRequest
) -> None:
    if ROUNDS == 1 and (store == "postgres" or table.source == "penstock.iceberg"):
        pytest.skip("one round of kills runs on Delta and SQLite only; PENSTOCK_KILLS=3 takes both of each")
    kills = ["table.created", *KILLS]
    if table.source == "penstock.iceberg":
        kills = [point for point in kills if point not in ONLY_DELTA]

    stream = KilledStream(tmp_path, table, _store_url(store, tmp_path, request), kills)
    stream.is_killed_at_every_point_and_then_runs_to_the_end()

    source = f"read_parquet('{stream.source}/*.parquet')"
    found = testing.check(table, source, store=stream.store_url)
    assert found.problems == []
    assert found.rows == FILES * ROWS_PER_FILE
    assert rows(table, "bool_and(coalesce(twice = 2 * id, true)), count(twice) > 0") == [(True, True)]
    print(f"{table.source}, {store}: {len(kills)} kills, {found}")  # noqa: T201 - shown by `make kills`


def test_a_kill_after_the_commit_and_before_the_mark_adds_no_rows(
    tmp_path: Path, table: LakeTable, request: pytest.FixtureRequest
) -> None:
    stream = KilledStream(tmp_path, table, _store_url("sqlite", tmp_path, request), ["commit.landed"])
    stream.is_killed_at_every_point_and_then_runs_to_the_end()

    found = testing.check(table, f"read_parquet('{stream.source}/*.parquet')", store=stream.store_url)
    assert found.problems == []
    assert found.rows == FILES * ROWS_PER_FILE


def _store_url(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if store == "sqlite":
        return f"sqlite:///{tmp_path}/checkpoint/penstock.sqlite"
    return str(request.getfixturevalue("new_postgres_url")())


class KilledStream:
    """A stream whose driver is killed again and again, at each of these crash points in turn.

    The next driver starts its Spark while the one before is on its way to its end, and then waits.
    """

    def __init__(self, root: Path, table: LakeTable, store_url: str, kills: Sequence[str]) -> None:
        self.source = root / "source"
        self.store_url = store_url
        self._root = root
        self._table = table
        self._kills = kills
        self.source.mkdir()
        for number in range(FILES):
            ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
            write_ids(self.source / f"{number:05}.parquet", ids, number, days=3)

    def is_killed_at_every_point_and_then_runs_to_the_end(self) -> None:
        """After any crash, restart alone is enough."""
        with ExitStack() as drivers:
            driver = drivers.enter_context(self._start(0))
            for turn in range(len(self._kills)):
                self._signal(turn).touch()
                following = drivers.enter_context(self._start(turn + 1))
                driver.wait_for(self._reached(turn))
                driver.kill()
                driver = following
            self._signal(len(self._kills)).touch()
            assert driver.wait() == 0, driver.tail()

    def _start(self, turn: int) -> DriverProcess:
        partitions = 1 + turn % 3  # replays are partitioned otherwise than the first run
        options = {**self._table.options, self._table.partitioning: "day", "store": self.store_url}
        arguments = [self._table.source, str(self.source), str(self._root / "checkpoint")]
        arguments += ["--partitions", str(partitions), "--after", str(self._signal(turn))]
        if "recover.done" in self._kills[:turn]:
            arguments += ["--column", "id * 2 AS twice"]
            options["schemaEvolution"] = "addColumns"
        for key, value in options.items():
            arguments += ["--option", f"{key}={value}"]
        for key, value in SHORT_LIVED.items():
            arguments += ["--conf", f"{key}={value}"]
        environment = {}
        if turn < len(self._kills):
            reached = str(self._reached(turn))
            environment = {"PENSTOCK_PAUSE_AT": self._kills[turn], "PENSTOCK_PAUSE_FILE": reached}
        return DriverProcess(arguments, self._root / f"driver-{turn}.log", environment)

    def _signal(self, turn: int) -> Path:
        return self._root / f"start-{turn}"

    def _reached(self, turn: int) -> Path:
        return self._root / f"reached-{turn}-{self._kills[turn]}"
