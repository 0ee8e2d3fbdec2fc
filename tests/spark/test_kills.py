"""SIGKILL to the whole driver at every named crash point, restart, and every row is there once.

A driver has several streams. Each of them waits at its next crash point, and then the driver is killed with
its JVM and its Python workers. `PENSTOCK_KILLS=3` repeats that three times.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.spark.killed_stream import ROWS, KilledDriver, KilledStream
from tests.support.lakes import LAKES, LakeTable, rows

from penstock import testing
from penstock.committers.crash_points import STREAM_POINTS

pytestmark = [pytest.mark.spark, pytest.mark.kills]

ROUNDS = int(os.environ.get("PENSTOCK_KILLS", "1"))

CHAINS = (
    ("table.created", "write.file_open", "write.files_closed"),
    ("prepare.start", "prepare.done", "recover.start"),
    ("commit.start", "commit.landed", "mark.done"),
    ("prepare.done", "recover.done", "evolve.done"),
)
"""What one stream each is killed at, in this order. Pending batches are killed again in their recovery."""

ONLY_DELTA = {"evolve.done"}
"""An Iceberg table gets new columns in the commit of their first batch."""


def test_the_kills_cover_every_crash_point() -> None:
    assert {point for chain in CHAINS for point in chain} == set(STREAM_POINTS)


@pytest.mark.campaign
@pytest.mark.parametrize("kill_round", range(ROUNDS))
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("lake", LAKES)
def test_a_kill_at_every_crash_point_loses_and_doubles_nothing(
    kill_round: int, store: str, lake: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if ROUNDS == 1 and (store == "postgres" or lake == "iceberg"):
        pytest.skip("one round of kills runs on Delta and SQLite only; PENSTOCK_KILLS=3 takes both of each")
    tables, streams, stores = [], [], []
    for number, chain in enumerate(CHAINS):
        (folder := tmp_path / str(number)).mkdir()
        kills = [point for point in chain if lake == "delta" or point not in ONLY_DELTA]
        stores.append(_store_url(store, folder, request))
        tables.append(table := LAKES[lake](folder))
        options = {**table.options, table.partitioning: "day", "store": stores[-1]}
        streams.append(KilledStream(folder, table.source, options, kills))
    KilledDriver(tmp_path, streams).run()

    for table, store_url, chain in zip(tables, stores, CHAINS, strict=True):
        found = _check(table, tmp_path, store_url)
        print(f"{table.source}, {store}: killed at {', '.join(chain)}, {found}")  # noqa: T201 - for `make kills`
    assert rows(tables[-1], "bool_and(coalesce(twice = 2 * id, true)), count(twice) > 0") == [(True, True)]


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


def _check(table: LakeTable, root: Path, store_url: str) -> testing.Observation:
    found = testing.check(table, f"read_parquet('{root}/source/*.parquet')", store=store_url)
    assert found.problems == []
    assert found.rows == ROWS
    return found


def _store_url(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if store == "sqlite":
        return f"sqlite:///{tmp_path}/checkpoint/penstock.sqlite"
    return str(request.getfixturevalue("new_postgres_url")())
