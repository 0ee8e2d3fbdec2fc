"""A Postgres store that restarts or fails over while a decoupled stream is prepared and delivered."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest
from servers.postgres import Postgres, postgres
from tests.support.backlogs import QUERY, SOON, DecoupledLake, start_cli, wait_until
from tests.support.stored_lake import YOUNG

from penstock.committers.contract import StreamKey
from penstock.committers.errors import CheckpointMismatchError, RetryableError
from penstock.committers.protocol.decoupled import DecoupledCommitter
from penstock.committers.store.sql import open_store

BATCHES = 12
STREAM = StreamKey(QUERY, "/lake/events")


@pytest.fixture
def primary() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture
def standby(primary: Postgres) -> Iterator[Postgres]:
    with postgres(primary) as server:
        yield server


def url_of(*servers: Postgres) -> str:
    hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in servers)
    return f"postgresql+psycopg://postgres@/postgres?{hosts}"


def lake_of(folder: Path, kind: str, url: str) -> DecoupledLake:
    lake = DecoupledLake(folder, url, QUERY, kind)
    lake.decouple(**SOON)
    lake.store.close()
    lake.store = open_store(url, wait_s=60)  # as a query does by default
    return lake


def prepare(lake: DecoupledLake, first: int, end: int) -> None:
    for batch_id in range(first, end):
        lake.prepare(batch_id, lake.write(batch_id, YOUNG))


def delivering(lake: DecoupledLake) -> subprocess.Popen[str]:
    """A process that has delivered two batches, while two more wait."""
    process = start_cli("deliver", "--store", lake.store_url, "--lease-seconds", "2")
    prepare(lake, 0, 2)
    wait_until(lambda: lake.left == 0)
    prepare(lake, 2, 4)
    return process


def check_each_row_is_there_once(lake: DecoupledLake, process: subprocess.Popen[str]) -> None:
    """By the process that ran before the outage."""
    wait_until(lambda: lake.left == 0)
    assert lake.row_ids() == list(range(1, 2 * BATCHES + 1))
    process.terminate()
    _, log = process.communicate(timeout=30)
    assert process.returncode == 0, log


@pytest.mark.parametrize(("kind", "how"), [("delta", "kill"), ("iceberg", "stop")])
def test_a_restart_of_postgres_loses_nothing(tmp_path: Path, primary: Postgres, kind: str, how: str) -> None:
    lake = lake_of(tmp_path, kind, url_of(primary))
    process = delivering(lake)
    prepare(lake, 4, 5)
    primary.kill() if how == "kill" else primary.stop()
    start = Timer(3, primary.start)
    start.start()
    prepare(lake, 5, BATCHES)
    start.join()
    check_each_row_is_there_once(lake, process)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_synchronous_standby_loses_nothing(
    tmp_path: Path, primary: Postgres, standby: Postgres, kind: str
) -> None:
    primary.wait_for_standbys()
    lake = lake_of(tmp_path, kind, url_of(standby, primary))  # the first host is not the one to write to
    process = delivering(lake)
    primary.kill()
    promote = Timer(3, standby.promote)  # until then it refuses to write
    promote.start()
    prepare(lake, 4, BATCHES)
    promote.join()
    check_each_row_is_there_once(lake, process)


def test_a_batch_missing_on_a_standby_stops_the_query(
    tmp_path: Path, primary: Postgres, standby: Postgres
) -> None:
    """The query does not go on with the next batch, and what was delivered stays as it is."""
    lake = lake_of(tmp_path, "delta", url_of(primary, standby))
    process = delivering(lake)
    wait_until(lambda: lake.left == 0)
    process.terminate()
    process.communicate(timeout=30)
    wait_until(lambda: standby.has_all_of(primary))
    standby.stop()
    prepare(lake, 4, 5)
    primary.kill()
    standby.start()
    standby.promote()
    wait_until(lambda: not standby.is_standby)
    with open_store(lake.store_url) as store:
        assert store.record(lake.stream, 3) is not None
        assert store.record(lake.stream, 4) is None
        with pytest.raises(CheckpointMismatchError, match="batch"):
            DecoupledCommitter(store, lake.committer()).begin(lake.batch(5))
    assert lake.row_ids() == list(range(1, 9))


def test_a_standby_that_is_not_promoted_yet_is_an_outage(primary: Postgres, standby: Postgres) -> None:
    """If one address leads to either server, as a virtual address or a pooler does."""
    with open_store(url_of(primary)) as store:
        assert store.streams() == []
    wait_until(lambda: standby.has_all_of(primary))
    with open_store(url_of(standby)) as store:
        with pytest.raises(RetryableError, match="read-only transaction"):
            store.register_stream(STREAM, "test")
        standby.promote()
        store.register_stream(STREAM, "test")
