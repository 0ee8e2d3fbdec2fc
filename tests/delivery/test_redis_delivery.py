"""Decoupled streams to Redis: what a delivery process sends, and sends again after its death."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.lossy_tcp import LossyTcp, lossy_tcp
from servers.redis import RedisServer
from tests.support.backlogs import start_cli, wait_until
from tests.support.cli import Ended

from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.redis.sink import DESTINATION
from penstock.datasource.redis.source import RedisDataSource
from penstock.testing.conformance import SECRET, Query
from penstock.testing.conformance.query import ids

pytestmark = pytest.mark.slow

BATCHES, PARTS, ROWS = 3, 2, 20
ALL = BATCHES * PARTS * ROWS
SIZE = 5


@pytest.fixture
def proxy(redis_service: RedisServer) -> Iterator[LossyTcp]:
    """Slow enough to kill a delivery in the middle."""
    redis_service.add_user("writer", SECRET)
    with lossy_tcp(redis_service.port, delay_s=0.1) as started:
        yield started


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


class Stream:
    """A decoupled stream to the server behind the proxy."""

    data_source, destination = RedisDataSource, DESTINATION

    def __init__(self, proxy: LossyTcp, store: SqlManifestStore, folder: Path, **options: str) -> None:
        self.store, self.store_url = store, f"sqlite:///{folder}/store.db"
        self.options = {
            "url": f"redis://127.0.0.1:{proxy.port}/0",
            "delivery": "decoupled",
            "deliverAfterSeconds": "1",
            "maxBatchSize": str(SIZE),
            "progressEverySeconds": "300",
            "checkpointLocation": str(folder / "checkpoint"),
            **options,
        }
        credentials = {"url": self.options["url"], "username": "writer", "password": SECRET}
        self.storage = [part for one in credentials.items() for part in ("--storage", "=".join(one))]
        self.query = Query(self, options={"username": "writer", "password": SECRET}, store=store)

    def prepare(self) -> None:
        for batch_id in range(BATCHES):
            first = batch_id * PARTS * ROWS
            tables = [ids(*range(first + part * ROWS, first + (part + 1) * ROWS)) for part in range(PARTS)]
            self.query.run(self.store, self.query.batch(batch_id), *tables)


ONCE = {"exactlyOnce": "true"}


@pytest.mark.parametrize(
    "options",
    [
        {"structure": "set", "key": "rows:{id}", "maxInFlightRequests": "2"},
        {"structure": "stream", "key": "rows", **ONCE},
        {"structure": "list", "key": "rows", **ONCE},
    ],
    ids=["set", "stream", "list"],
)
def test_a_delivery_process_that_is_killed_doubles_nothing(
    redis_service: RedisServer,
    proxy: LossyTcp,
    store: SqlManifestStore,
    tmp_path: Path,
    options: dict[str, str],
) -> None:
    """It has not recorded its progress. The next one loses requests and responses, too."""
    stream = Stream(proxy, store, tmp_path, **options)
    stream.prepare()
    assert redis_service.rows("rows*") == []
    killed = start_cli("deliver", "--store", stream.store_url, *stream.storage)
    try:
        wait_until(lambda: len(redis_service.rows("rows*")) >= 6 * SIZE)
    finally:
        killed.kill()
        killed.communicate()
    assert len(redis_service.rows("rows*")) < ALL, "the process was killed too late"
    assert store.progress.read(stream.query.stream).in_delivery is None

    proxy.spend("request lost", "response lost", on=b"rows")
    delivered = Ended("deliver", "--once", "--store", stream.store_url, *stream.storage)

    assert delivered.code == 0, delivered.err
    assert proxy.spent()
    found = [row["id"] for row in redis_service.rows("rows*")]
    assert (sorted(found) if options["structure"] == "set" else found) == list(range(ALL))
    assert not store.pending(stream.query.stream)
    assert SECRET not in delivered.out + delivered.err
    assert [path for path in tmp_path.glob("store.db*") if SECRET.encode() in path.read_bytes()] == []
