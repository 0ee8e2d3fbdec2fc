"""Decoupled streams to Redis, NATS and OpenSearch: what a delivery sends, and sends again after its death."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
from servers.lossy_tcp import LossyTcp, lossy_tcp
from servers.nats import NatsServer
from servers.opensearch import OpenSearchServer
from servers.redis import RedisServer
from tests.support.backlogs import start_cli, wait_until
from tests.support.cli import Ended

from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.nats import sink as nats_sink
from penstock.datasource.nats.source import NatsDataSource
from penstock.datasource.redis import sink as redis_sink
from penstock.datasource.redis.source import RedisDataSource
from penstock.datasource.search import opensearch
from penstock.datasource.search.sources import OpenSearchDataSource
from penstock.testing.conformance import SECRET, Query
from penstock.testing.conformance.query import ids

pytestmark = pytest.mark.slow

BATCHES, PARTS, ROWS = 3, 2, 20
ALL = BATCHES * PARTS * ROWS
SIZE = 5


@dataclass(frozen=True)
class RedisPlace:
    server: RedisServer
    data_source, destination = RedisDataSource, redis_sink.DESTINATION
    word: ClassVar[bytes] = b"rows"
    """In all requests with rows."""

    def create(self) -> None:
        self.server.add_user("writer", SECRET)

    def url(self, port: int) -> str:
        return f"redis://127.0.0.1:{port}/0"

    def ids(self) -> list[int]:
        return [row["id"] for row in self.server.rows("rows*")]


@dataclass(frozen=True)
class NatsPlace:
    server: NatsServer
    data_source, destination = NatsDataSource, nats_sink.DESTINATION
    word: ClassVar[bytes] = b"HPUB rows."

    def create(self) -> None:
        self.server.create("ROWS", "rows.*")

    def url(self, port: int) -> str:
        return f"nats://127.0.0.1:{port}"

    def ids(self) -> list[int]:
        return [row["id"] for row in self.server.rows("ROWS")]


@dataclass(frozen=True)
class OpenSearchPlace:
    """The index `flights`."""

    server: OpenSearchServer
    data_source, destination = OpenSearchDataSource, opensearch.DESTINATION
    word: ClassVar[bytes] = b"/_bulk"

    def create(self) -> None:
        self.server.delete("flights")
        self.server.create("flights", {"id": "long"})

    def url(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"

    def ids(self) -> list[int]:
        return [row["id"] for row in self.server.rows("flights")]


Place = RedisPlace | NatsPlace | OpenSearchPlace
SERVERS = {RedisPlace: "redis_service", NatsPlace: "nats_service", OpenSearchPlace: "opensearch"}


@pytest.fixture
def place(request: pytest.FixtureRequest, kind: type[Place]) -> Place:
    made = kind(request.getfixturevalue(SERVERS[kind]))
    made.create()
    return made


@pytest.fixture
def proxy(place: Place) -> Iterator[LossyTcp]:
    """Slow enough to kill a delivery in the middle."""
    port = urlsplit(place.server.url).port
    assert port is not None
    with lossy_tcp(port, delay_s=0.1) as started:
        yield started


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


class Stream:
    """A decoupled stream to the server behind the proxy."""

    def __init__(
        self, place: Place, proxy: LossyTcp, store: SqlManifestStore, folder: Path, **options: str
    ) -> None:
        self.data_source, self.destination = place.data_source, place.destination
        self.store, self.store_url = store, f"sqlite:///{folder}/store.db"
        self.options = {
            "url": place.url(proxy.port),
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
    ("kind", "options", "is_ordered"),
    [
        (RedisPlace, {"structure": "set", "key": "rows:{id}", "maxInFlightRequests": "2"}, False),
        (RedisPlace, {"structure": "stream", "key": "rows", **ONCE}, True),
        (RedisPlace, {"structure": "list", "key": "rows", **ONCE}, True),
        (NatsPlace, {"subject": "rows.{id}", "maxInFlightRequests": "2", **ONCE}, False),
        (OpenSearchPlace, {"index": "flights", "maxInFlightRequests": "2"}, False),
    ],
    ids=["redis-set", "redis-stream", "redis-list", "nats", "opensearch"],
)
def test_a_delivery_process_that_is_killed_doubles_nothing(
    place: Place,
    proxy: LossyTcp,
    store: SqlManifestStore,
    tmp_path: Path,
    options: dict[str, str],
    is_ordered: bool,
) -> None:
    """It has not recorded its progress. The next one loses requests and responses, too."""
    stream = Stream(place, proxy, store, tmp_path, **options)
    stream.prepare()
    assert place.ids() == []
    killed = start_cli("deliver", "--store", stream.store_url, *stream.storage)
    try:
        wait_until(lambda: len(place.ids()) >= 6 * SIZE)
    finally:
        killed.kill()
        killed.communicate()
    assert len(place.ids()) < ALL, "the process was killed too late"
    assert store.progress.read(stream.query.stream).in_delivery is None

    proxy.spend("request lost", "response lost", on=place.word)
    delivered = Ended("deliver", "--once", "--store", stream.store_url, *stream.storage)

    assert delivered.code == 0, delivered.err
    assert proxy.spent()
    found = place.ids()
    assert (found if is_ordered else sorted(found)) == list(range(ALL))
    assert not store.pending(stream.query.stream)
    assert SECRET not in delivered.out + delivered.err
    assert [path for path in tmp_path.glob("store.db*") if SECRET.encode() in path.read_bytes()] == []
