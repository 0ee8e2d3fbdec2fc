"""SIGKILL to real `penstock deliver` processes at every named crash point; the next one takes over.

The driver's part is prepared without Spark, but for the last test. `PENSTOCK_KILLS=3` goes round three times,
and with stores in Postgres too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.spark.killed_stream import as_options, start_driver
from tests.support.backlogs import QUERY, QueryBacklog, wait_until
from tests.support.driver_process import DriverProcess
from tests.support.id_stream import write_source
from tests.support.lakes import LAKES, LakeTable
from tests.support.postgres_backlog import PostgresBacklog

from penstock import testing
from penstock.committers.contract import ManifestState
from penstock.committers.crash_points import DELIVERY_POINTS
from penstock.testing.conformance import Query

pytestmark = [pytest.mark.kills, pytest.mark.slow]

ROUNDS = int(os.environ.get("PENSTOCK_KILLS", "1"))
EVOLVE = "evolve.done"
"""Only in Delta: an Iceberg table gets new columns in the commit of their first batch."""

KILLS = (
    *("deliver.start", "compact.start", "compact.done", "deliver.prepared"),
    *("commit.start", "commit.landed", EVOLVE, "deliver.done"),
)
"""In this order the delivery that `deliver.prepared` leaves is killed again on its way into the table."""

BATCHES = 3
"""New ones for each process; more than `deliverAfterBatches`, so that a delivery is due at once."""
AT_ONCE = {"deliverAfterBatches": "2"}
DELIVER = (sys.executable, "-m", "penstock.cli", "deliver", "--lease-seconds", "1")


class KilledDelivery:
    """Delivery processes that are killed one after the other, each at a crash point of its own.

    Each finds what the one before has left, and new batches. It is started before that one dies, and waits
    for its lease.
    """

    def __init__(self, lake: QueryBacklog, folder: Path, kills: Sequence[str]) -> None:
        self._lake = lake
        self._folder = folder
        self._kills = kills
        self._batches = 0

    def runs_to_the_end(self) -> None:
        with ExitStack() as processes:
            before: testing.RunningJob | None = None
            for turn, point in enumerate(self._kills):
                if point == EVOLVE:
                    self._lake.add_column()
                self._lake.fill(BATCHES, first=self._batches)
                self._batches += BATCHES
                process = processes.enter_context(self._start(turn, point))
                if before is not None:
                    before.kill()
                process.wait_for(self._reached(turn), 180)
                before = process
            last = processes.enter_context(self._start(len(self._kills), None))
            assert before is not None
            before.kill()
            wait_until(lambda: self._lake.left == 0, 120)
            assert last.is_running(), last.tail()

    def _start(self, turn: int, point: str | None) -> testing.RunningJob:
        pause: Mapping[str, str] = {}
        if point is not None:
            pause = {"PENSTOCK_PAUSE_AT": point, "PENSTOCK_PAUSE_FILE": str(self._reached(turn))}
        return testing.RunningJob(
            [*DELIVER, "--store", self._lake.store_url], self._folder / f"{turn}.log", pause
        )

    def _reached(self, turn: int) -> Path:
        return self._folder / f"reached-{turn}"


STORES = ["sqlite", pytest.param("postgres", marks=pytest.mark.campaign)]


def test_the_kills_cover_every_crash_point_of_a_delivery() -> None:
    assert set(KILLS) == {*DELIVERY_POINTS, EVOLVE, "commit.start", "commit.landed"}


@pytest.mark.parametrize("kill_round", range(ROUNDS))
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.campaign)])
def test_a_delivery_killed_at_every_crash_point_loses_and_doubles_nothing(
    kind: str, store: str, kill_round: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if store == "postgres" and ROUNDS == 1:
        pytest.skip("one round of kills runs on SQLite only; PENSTOCK_KILLS=3 takes both")
    url = request.getfixturevalue("new_postgres_url")() if store == "postgres" else None
    kills = [point for point in KILLS if kind == "delta" or point != EVOLVE]
    lake = LAKES[kind](tmp_path)
    backlog = QueryBacklog(Query(lake, QUERY, AT_ONCE), tmp_path, url)

    KilledDelivery(backlog, tmp_path, kills).runs_to_the_end()

    source = f"(SELECT range + 1 AS id FROM range({backlog.rows}))"
    found = testing.check(lake, source, store=backlog.store_url)
    deliveries = backlog.store.deliveries.recent(backlog.status.key, 100)
    backlog.store.close()
    assert found.problems == []
    assert found.rows == backlog.rows == len(kills) * BATCHES * 2
    assert any(delivery.is_compacted for delivery in deliveries)
    assert sum(delivery.batches for delivery in deliveries) == len(kills) * BATCHES
    print(f"{kind}, {store}: {len(kills)} kills of a delivery, {found}")  # noqa: T201 - shown by `make kills`


POSTGRES_KILLS = tuple(point for point in KILLS if point != EVOLVE and not point.startswith("compact."))
"""One transaction brings new columns and rows, and there are no files to compact."""


@pytest.mark.parametrize("kill_round", range(ROUNDS))
@pytest.mark.parametrize("store", STORES)
def test_a_delivery_into_a_postgres_table_killed_at_every_crash_point_loses_and_doubles_nothing(
    store: str,
    kill_round: int,
    tmp_path: Path,
    new_postgres_url: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGUSER", "postgres")
    url = new_postgres_url() if store == "postgres" else None
    backlog = PostgresBacklog(new_postgres_url(), tmp_path, url, deliverAfterBatches="2")

    KilledDelivery(backlog, tmp_path, POSTGRES_KILLS).runs_to_the_end()

    assert backlog.rows == len(POSTGRES_KILLS) * BATCHES * 2
    assert backlog.query.ids() == list(range(1, backlog.rows + 1))
    assert backlog.query.staged() == []
    assert set(backlog.states.values()) == {ManifestState.COMMITTED}
    assert sum(backlog.merged) == backlog.batches
    assert len(backlog.merged) < backlog.batches
    backlog.store.close()
    print(f"postgres, {store}: {len(POSTGRES_KILLS)} kills of a delivery, {backlog.rows} rows")  # noqa: T201


FILES = 6


@pytest.mark.spark
def test_everything_prepared_is_delivered_with_spark_dead(tmp_path: Path, table: LakeTable) -> None:
    """The driver is killed once its last batch is durable, and never comes back; so is a delivery process."""
    if table.source == "penstock.iceberg" and ROUNDS == 1:
        pytest.skip("one round of kills runs a Spark for Delta only; PENSTOCK_KILLS=3 takes both")
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    write_source(source, FILES, 100)
    deliver = [*DELIVER, "--checkpoint", str(checkpoint)]
    log = tmp_path / "deliver.log"

    with _driver(table, source, checkpoint, tmp_path, f"prepare.done@{FILES - 1}") as driver:
        killed = testing.Job([*deliver, "--wait"], log).kill_at("commit.start", timeout_s=300)
        driver.wait_for(tmp_path / "driver-paused", 300)
        driver.kill()
    assert killed
    testing.Job([*deliver, "--once"], log).run(timeout_s=180)

    found = testing.check(table, f"read_parquet('{source}/*.parquet')", store=checkpoint)
    assert found.problems == []
    assert found.rows == FILES * 100
    assert not (checkpoint / "commits" / str(FILES - 1)).exists()


def _driver(table: LakeTable, source: Path, checkpoint: Path, folder: Path, point: str) -> DriverProcess:
    delivery = {"delivery": "decoupled", "deliverAfterBatches": "2"}
    options = {**table.options, table.partitioning: "day", **delivery}
    environment = {"PENSTOCK_PAUSE_AT": point, "PENSTOCK_PAUSE_FILE": str(folder / "driver-paused")}
    arguments = [table.source, str(source), str(checkpoint), *as_options(options)]
    return start_driver(arguments, folder / "driver.log", environment)
