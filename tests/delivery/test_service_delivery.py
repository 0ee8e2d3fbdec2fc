"""Decoupled streams to AWS, Redis, NATS and OpenSearch: what a delivery sends again after its death."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
from servers.aws import KEY, AwsServer, aws_server
from servers.aws import SECRET as AWS_SECRET
from servers.lossy_proxy import LossyProxy, lossy_proxy
from servers.lossy_tcp import LossyTcp, lossy_tcp
from servers.nats import NatsServer
from servers.opensearch import OpenSearchServer
from servers.redis import RedisServer
from tests.support.aws import AwsPlace
from tests.support.backlogs import start_cli, wait_until
from tests.support.request_streams import ROWS, RequestStream, Service, request_stream

from penstock.datasource.nats import sink as nats_sink
from penstock.datasource.nats.source import NatsDataSource
from penstock.datasource.redis import sink as redis_sink
from penstock.datasource.redis.source import RedisDataSource
from penstock.datasource.search import opensearch
from penstock.datasource.search.sources import OpenSearchDataSource
from penstock.testing.conformance import SECRET

pytestmark = pytest.mark.slow

SIZE = 5
SOON = {"deliverAfterSeconds": "1", "maxBatchSize": str(SIZE)}
ONCE = {"exactlyOnce": "true"}


def check_secret_is_not_stored(stream: RequestStream, secret: str) -> None:
    store = Path(stream.store_url.removeprefix("sqlite:///"))
    assert [path for path in store.parent.glob("store.db*") if secret.encode() in path.read_bytes()] == []


# AWS -------------------------------------------------------------------------------------------------

IN_FLIGHT = 4


@pytest.fixture(scope="module")
def server() -> Iterator[AwsServer]:
    with aws_server() as started:
        yield started


@pytest.fixture(scope="module")
def slow_server(server: AwsServer) -> Iterator[LossyProxy]:
    """Slow enough to kill a delivery in the middle."""
    with Path(os.devnull).open("wb") as errors, lossy_proxy(server.url, errors, delay_ms=200) as started:
        yield started


@pytest.mark.parametrize(
    ("kind", "suffix", "options", "doubles"),
    [
        ("kinesis", "", {}, True),
        ("firehose", "", {}, True),
        ("dynamodb", "", {}, False),
        ("sqs", "", {}, True),
        ("sqs", ".fifo", {"messageGroupId": "id", "idColumn": "id"}, False),
    ],
    ids=["kinesis", "firehose", "dynamodb", "sqs", "sqs-fifo"],
)
def test_a_delivery_process_that_is_killed_sends_again_only_what_was_in_flight(
    server: AwsServer,
    slow_server: LossyProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    suffix: str,
    options: dict[str, str],
    doubles: bool,
) -> None:
    """Where the service knows keys or ids, no row is doubled. The service throttles meanwhile."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", AWS_SECRET)
    server.throttle()
    place = AwsPlace.new(server, kind, slow_server.url, suffix)
    secrets = {"accessKeyId": KEY, "secretAccessKey": AWS_SECRET}
    service = Service(place.kind.data_source, place.kind.destination, place.options(**options))
    more = {**SOON, "maxInFlightRequests": str(IN_FLIGHT), "progressEverySeconds": "0"}
    with request_stream(tmp_path, service, secrets, **more) as stream:
        stream.prepare()
        assert place.ids() == []
        killed = start_cli("deliver", "--store", stream.store_url)
        try:
            wait_until(lambda: server.refused()["writes"] >= 6)
        finally:
            killed.kill()
            killed.communicate()
        time.sleep(0.5)  # the service takes what it has received
        before = place.ids()
        assert 0 < len(before) < ROWS, "the process was killed at the wrong time"

        server.throttle(requests=2, entries_of=3)
        delivered = stream.deliver()
        assert delivered.code == 0, delivered.err
        assert server.refused()["requests"] == 2
        assert server.refused()["entries"] == 3
        found = Counter(before if kind == "sqs" else ())
        found.update(place.ids())  # messages are read once
        assert sorted(found) == list(range(ROWS)), "nothing is lost"
        twice = sum(found.values()) - ROWS
        assert (twice == 0) if not doubles else twice <= 2 * IN_FLIGHT * SIZE
        assert stream.left == 0
        check_secret_is_not_stored(stream, AWS_SECRET)


# Redis, NATS and OpenSearch --------------------------------------------------------------------------


@dataclass(frozen=True)
class RedisPlace:
    server: RedisServer
    data_source, destination = RedisDataSource, redis_sink.DESTINATION
    url: ClassVar[str] = "redis://127.0.0.1:{}/0"
    word: ClassVar[bytes] = b"rows"
    """In all requests with rows."""

    def create(self) -> None:
        self.server.add_user("writer", SECRET)

    def ids(self) -> list[int]:
        return [row["id"] for row in self.server.rows("rows*")]


@dataclass(frozen=True)
class NatsPlace:
    server: NatsServer
    data_source, destination = NatsDataSource, nats_sink.DESTINATION
    url: ClassVar[str] = "nats://127.0.0.1:{}"
    word: ClassVar[bytes] = b"HPUB rows."

    def create(self) -> None:
        self.server.create("ROWS", "rows.*")

    def ids(self) -> list[int]:
        return [row["id"] for row in self.server.rows("ROWS")]


@dataclass(frozen=True)
class OpenSearchPlace:
    """The index `flights`."""

    server: OpenSearchServer
    data_source, destination = OpenSearchDataSource, opensearch.DESTINATION
    url: ClassVar[str] = "http://127.0.0.1:{}"
    word: ClassVar[bytes] = b"/_bulk"

    def create(self) -> None:
        self.server.delete("flights")
        self.server.create("flights", {"id": "long"})

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
    place: Place, proxy: LossyTcp, tmp_path: Path, options: dict[str, str], is_ordered: bool
) -> None:
    """It has not recorded its progress. The next one loses requests and responses, too."""
    url = place.url.format(proxy.port)
    secrets = {"url": url, "username": "writer", "password": SECRET}
    service = Service(place.data_source, place.destination, {"url": url, **options})
    with request_stream(tmp_path, service, secrets, **SOON, progressEverySeconds="300") as stream:
        stream.prepare()
        assert place.ids() == []
        killed = start_cli("deliver", "--store", stream.store_url, *stream.arguments)
        try:
            wait_until(lambda: len(place.ids()) >= 6 * SIZE)
        finally:
            killed.kill()
            killed.communicate()
        assert len(place.ids()) < ROWS, "the process was killed too late"
        assert stream.store.progress.read(stream.query.stream).in_delivery is None

        proxy.spend("request lost", "response lost", on=place.word)
        delivered = stream.deliver()
        assert delivered.code == 0, delivered.err
        assert proxy.spent()
        found = place.ids()
        assert (found if is_ordered else sorted(found)) == list(range(ROWS))
        assert stream.left == 0
        assert SECRET not in delivered.out + delivered.err
        check_secret_is_not_stored(stream, SECRET)
