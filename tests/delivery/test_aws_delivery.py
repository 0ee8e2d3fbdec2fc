"""Decoupled streams to AWS services: what a delivery process sends, and sends again after its death."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.aws import KEY, SECRET, AwsServer, aws_server
from servers.lossy_proxy import LossyProxy, lossy_proxy
from tests.support.aws import AwsPlace
from tests.support.backlogs import start_cli, wait_until
from tests.support.cli import Ended

from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance import Query
from penstock.testing.conformance.query import ids

pytestmark = pytest.mark.slow

BATCHES, PARTS, ROWS = 3, 2, 20
ALL = BATCHES * PARTS * ROWS
IN_FLIGHT, SIZE = 4, 5
FIFO = {"messageGroupId": "id", "idColumn": "id"}

DESTINATIONS = pytest.mark.parametrize(
    ("kind", "suffix", "options", "doubles"),
    [
        ("kinesis", "", {}, True),
        ("firehose", "", {}, True),
        ("dynamodb", "", {}, False),
        ("sqs", "", {}, True),
        ("sqs", ".fifo", FIFO, False),
    ],
    ids=["kinesis", "firehose", "dynamodb", "sqs", "sqs-fifo"],
)


@pytest.fixture(scope="module")
def server() -> Iterator[AwsServer]:
    with aws_server() as started:
        yield started


@pytest.fixture(scope="module")
def proxy(server: AwsServer) -> Iterator[LossyProxy]:
    """Slow enough to kill a delivery in the middle."""
    with Path(os.devnull).open("wb") as errors, lossy_proxy(server.url, errors, delay_ms=200) as started:
        yield started


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


class Stream:
    """A decoupled stream, and the place that receives its rows."""

    def __init__(self, place: AwsPlace, store: SqlManifestStore, folder: Path, **options: str) -> None:
        self.place, self.store = place, store
        self.store_url = f"sqlite:///{folder}/store.db"
        self.data_source, self.destination = place.kind.data_source, place.kind.destination
        self.options = place.options(
            **{
                "delivery": "decoupled",
                "deliverAfterSeconds": "1",
                "maxBatchSize": str(SIZE),
                "maxInFlightRequests": str(IN_FLIGHT),
                "progressEverySeconds": "0",
                "checkpointLocation": str(folder / "checkpoint"),
                **options,
            }
        )
        self.query = Query(self, store=store)

    def prepare(self) -> None:
        for batch_id in range(BATCHES):
            first = batch_id * PARTS * ROWS
            tables = [ids(*range(first + part * ROWS, first + (part + 1) * ROWS)) for part in range(PARTS)]
            self.query.run(self.store, self.query.batch(batch_id), *tables)

    def deliver(self) -> Ended:
        given = (f"accessKeyId={KEY}", f"secretAccessKey={SECRET}")
        storage = [part for one in given for part in ("--storage", one)]
        return Ended("deliver", "--once", "--store", self.store_url, *storage)


@DESTINATIONS
def test_a_delivery_process_that_is_killed_sends_again_only_what_was_in_flight(
    server: AwsServer,
    proxy: LossyProxy,
    store: SqlManifestStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    suffix: str,
    options: dict[str, str],
    doubles: bool,
) -> None:
    """Where the service knows keys or ids, no row is doubled. The service throttles meanwhile."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    server.throttle()
    stream = Stream(AwsPlace.new(server, kind, proxy.url, suffix), store, tmp_path, **options)
    stream.prepare()
    assert stream.place.ids() == []
    killed = start_cli("deliver", "--store", stream.store_url)
    try:
        wait_until(lambda: server.refused()["writes"] >= 6)
    finally:
        killed.kill()
        killed.communicate()
    time.sleep(0.5)  # the service takes what it has received
    before = stream.place.ids()
    assert 0 < len(before) < ALL, "the process was killed at the wrong time"
    server.throttle(requests=2, entries_of=3)
    delivered = stream.deliver()

    assert delivered.code == 0, delivered.err
    assert server.refused()["requests"] == 2
    assert server.refused()["entries"] == 3
    found = Counter(before if kind == "sqs" else ())
    found.update(stream.place.ids())  # messages are read once
    assert sorted(found) == list(range(ALL)), "nothing is lost"
    twice = sum(found.values()) - ALL
    assert (twice == 0) if not doubles else twice <= 2 * IN_FLIGHT * SIZE
    assert not store.pending(stream.query.stream)
    kept = [path for path in tmp_path.glob("store.db*") if SECRET.encode() in path.read_bytes()]
    assert kept == []
