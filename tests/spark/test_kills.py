"""SIGKILL to the whole driver at every named crash point, restart, and every row is there once.

All kills hit one stream: each driver waits at the next crash point and is killed there, with its JVM and its
Python workers. `PENSTOCK_KILLS=3` repeats that three times.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.spark.killed_stream import ROWS, KilledDriver, KilledStream
from tests.support.lakes import LAKES, LakeTable, rows

from penstock import testing
from penstock.committers.crash_points import STREAM_POINTS

pytestmark = [pytest.mark.spark, pytest.mark.kills]

ROUNDS = int(os.environ.get("PENSTOCK_KILLS", "1"))

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

    found = _run_with_kills(tmp_path, table, _store_url(store, tmp_path, request), kills)

    assert rows(table, "bool_and(coalesce(twice = 2 * id, true)), count(twice) > 0") == [(True, True)]
    print(f"{table.source}, {store}: {len(kills)} kills, {found}")  # noqa: T201 - shown by `make kills`


def test_a_kill_after_the_commit_and_before_the_mark_adds_no_rows(tmp_path: Path) -> None:
    """Into both formats, with one driver."""
    tables, streams = [], []
    for name, new_table in LAKES.items():
        (folder := tmp_path / name).mkdir()
        table = new_table(folder)
        options = {**table.options, table.partitioning: "day"}
        tables.append(table)
        streams.append(KilledStream(folder, table.source, options, ["commit.landed"]))
    KilledDriver(tmp_path, streams).run()
    for table, stream in zip(tables, streams, strict=True):
        _check(table, tmp_path, f"sqlite:///{stream.checkpoint}/penstock.sqlite")


def _run_with_kills(
    tmp_path: Path, table: LakeTable, store_url: str, kills: Sequence[str]
) -> testing.Observation:
    """Kill a stream at every point, and check that each row is in the table once."""
    options = {**table.options, table.partitioning: "day", "store": store_url}
    stream = KilledStream(tmp_path, table.source, options, kills)
    stream.run()
    return _check(table, tmp_path, store_url)


def _check(table: LakeTable, root: Path, store_url: str) -> testing.Observation:
    found = testing.check(table, f"read_parquet('{root}/source/*.parquet')", store=store_url)
    assert found.problems == []
    assert found.rows == ROWS
    return found


def _store_url(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if store == "sqlite":
        return f"sqlite:///{tmp_path}/checkpoint/penstock.sqlite"
    return str(request.getfixturevalue("new_postgres_url")())
