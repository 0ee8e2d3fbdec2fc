"""Decoupled streams to AWS, Redis, NATS and OpenSearch: what a delivery sends again after its death."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from servers.aws import KEY, AwsServer
from servers.aws import SECRET as AWS_SECRET
from servers.lossy_proxy import LossyProxy, lossy_proxy
from servers.lossy_tcp import lossy_tcp
from servers.opensearch import OpenSearchServer
from tests.support.aws import AwsPlace
from tests.support.request_streams import ROWS, RequestStream, Service, request_stream

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
def slow_server(aws_server: AwsServer) -> Iterator[LossyProxy]:
    """Slow enough to kill a delivery in the middle."""
    with (
        Path(os.devnull).open("wb") as errors,
        lossy_proxy(aws_server.url, errors, delay_ms=200) as started,
    ):
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
    aws_service: AwsServer,
    slow_server: LossyProxy,
    tmp_path: Path,
    kind: str,
    suffix: str,
    options: dict[str, str],
    doubles: bool,
) -> None:
    """Where the service knows keys or ids, no row is doubled. The service throttles meanwhile."""
    place = AwsPlace.new(aws_service, kind, slow_server.url, suffix)
    secrets = {"accessKeyId": KEY, "secretAccessKey": AWS_SECRET}
    service = Service(kind, place.options(**options))
    more = {**SOON, "maxInFlightRequests": str(IN_FLIGHT), "progressEverySeconds": "0"}
    with request_stream(tmp_path, service, secrets, **more) as stream:
        stream.prepare()
        assert place.ids() == []
        stream.deliver_until(lambda: aws_service.refused()["writes"] >= 6)
        time.sleep(0.5)  # the service takes what it has received
        before = place.ids()
        assert 0 < len(before) < ROWS, "the process was killed at the wrong time"

        aws_service.throttle(requests=2, entries_of=3)
        delivered = stream.deliver()
        assert delivered.code == 0, delivered.err
        assert aws_service.refused()["requests"] == 2
        assert aws_service.refused()["entries"] == 3
        found = Counter(before if kind == "sqs" else ())
        found.update(place.ids())  # messages are read once
        assert sorted(found) == list(range(ROWS)), "nothing is lost"
        twice = sum(found.values()) - ROWS
        assert (twice == 0) if not doubles else twice <= 2 * IN_FLIGHT * SIZE
        assert stream.left == 0
        check_secret_is_not_stored(stream, AWS_SECRET)


# Redis, NATS and OpenSearch --------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """A server of a service, and how tests see it."""

    fixture: str
    url: str
    word: bytes
    """In all requests with rows."""
    create: Callable[[Any], object]
    rows: Callable[[Any], list[dict[str, Any]]]


def new_index(server: OpenSearchServer) -> None:
    server.delete("flights")
    server.create("flights", {"id": "long"})


SERVERS = {
    "redis": Server(
        "redis_service",
        "redis://127.0.0.1:{}/0",
        b"rows",
        lambda redis: redis.add_user("writer", SECRET),
        lambda redis: redis.rows("rows*"),
    ),
    "nats": Server(
        "nats_service",
        "nats://127.0.0.1:{}",
        b"HPUB rows.",
        lambda nats: nats.create("ROWS", "rows.*"),
        lambda nats: nats.rows("ROWS"),
    ),
    "opensearch": Server(
        "opensearch",
        "http://127.0.0.1:{}",
        b"/_bulk",
        new_index,
        lambda opensearch: opensearch.rows("flights"),
    ),
}


@pytest.mark.parametrize(
    ("kind", "options", "is_ordered"),
    [
        ("redis", {"structure": "set", "key": "rows:{id}", "maxInFlightRequests": "2"}, False),
        ("redis", {"structure": "stream", "key": "rows", **ONCE}, True),
        ("redis", {"structure": "list", "key": "rows", **ONCE}, True),
        ("nats", {"subject": "rows.{id}", "maxInFlightRequests": "2", **ONCE}, False),
        ("opensearch", {"index": "flights", "maxInFlightRequests": "2"}, False),
    ],
    ids=["redis-set", "redis-stream", "redis-list", "nats", "opensearch"],
)
def test_a_delivery_process_that_is_killed_doubles_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, options: dict[str, str], is_ordered: bool
) -> None:
    """It has not recorded its progress. The next one loses requests and responses, too."""
    of_kind = SERVERS[kind]
    server = request.getfixturevalue(of_kind.fixture)
    of_kind.create(server)

    def found() -> list[int]:
        return [row["id"] for row in of_kind.rows(server)]

    port = urlsplit(server.url).port
    assert port is not None
    with lossy_tcp(port, delay_s=0.1) as proxy:  # slow enough to kill a delivery in the middle
        url = of_kind.url.format(proxy.port)
        secrets = {"url": url, "username": "writer", "password": SECRET}
        place = Service(kind, {"url": url, **options})
        with request_stream(tmp_path, place, secrets, **SOON, progressEverySeconds="300") as stream:
            stream.prepare()
            assert found() == []
            stream.deliver_until(lambda: len(found()) >= 6 * SIZE)
            assert len(found()) < ROWS, "the process was killed too late"
            assert stream.store.progress.read(stream.query.stream).in_delivery is None

            proxy.spend("request lost", "response lost", on=of_kind.word)
            delivered = stream.deliver()
            assert delivered.code == 0, delivered.err
            assert proxy.spent()
            rows = found()
            assert (rows if is_ordered else sorted(rows)) == list(range(ROWS))
            assert stream.left == 0
            assert SECRET not in delivered.out + delivered.err
            check_secret_is_not_stored(stream, SECRET)
