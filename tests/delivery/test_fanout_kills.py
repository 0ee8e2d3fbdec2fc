"""SIGKILL to the delivery process of a query into a Delta table, OpenSearch and Kinesis."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from servers.aws import KEY, SECRET, AwsServer
from servers.lossy_proxy import lossy_proxy
from servers.opensearch import OpenSearchServer
from tests.support.aws import AwsPlace
from tests.support.backlogs import start_cli, wait_until
from tests.support.fanouts import ServiceFanout
from tests.support.search import SearchPlace

from penstock.committers.store.sql import open_store
from penstock.testing.conformance.query import ids

pytestmark = pytest.mark.campaign  # it takes OpenSearch

BATCHES, PARTS, ROWS_PER_PART = 4, 2, 50
ROWS = BATCHES * PARTS * ROWS_PER_PART
SIZE, IN_FLIGHT, BUFFERED = 5, 2, 10
WINDOW = IN_FLIGHT * SIZE + BUFFERED
"""What the death of a delivery process may repeat: the requests in flight, and what is acknowledged behind a
row that is not.
"""
KILLS = 2
LIMITS = {
    "maxBatchSize": str(SIZE),
    "maxInFlightRequests": str(IN_FLIGHT),
    "maxBufferedRequests": str(BUFFERED),
    "progressEverySeconds": "0",
}


@pytest.fixture
def fanout(
    tmp_path: Path, aws_service: AwsServer, opensearch: OpenSearchServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServiceFanout]:
    """Both services are slow enough to kill a delivery in the middle."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with ExitStack() as stack:
        errors = stack.enter_context(Path(os.devnull).open("wb"))
        urls = (
            stack.enter_context(lossy_proxy(server.url, errors, delay_ms=300)).url
            for server in (opensearch, aws_service)
        )
        search = SearchPlace.new(opensearch, "opensearch", next(urls))
        events = AwsPlace.new(aws_service, "kinesis", next(urls))
        url = f"sqlite:///{tmp_path}/store.db"
        yield ServiceFanout(tmp_path, stack.enter_context(open_store(url)), url, search, events)
        opensearch.delete(search.index)


def prepare(fanout: ServiceFanout) -> None:
    limits = {f"target.{name}.{key}": LIMITS[key] for name in ("search", "events") for key in LIMITS}
    query = fanout.query(**limits)
    rows = iter(range(ROWS))
    for batch_id in range(BATCHES):
        parts = [ids(*(next(rows) for _ in range(ROWS_PER_PART))) for _ in range(PARTS)]
        query.run(fanout.store, query.batch(batch_id), *parts)


def kill(fanout: ServiceFanout, is_time: Callable[[], bool], **pause: str) -> None:
    """Start a delivery process, and kill it when it is time."""
    arguments = ("deliver", "--store", fanout.store_url, "--lease-seconds", "1", "--parallel", "3")
    process = start_cli(*arguments, **pause)
    try:
        wait_until(is_time)
    finally:
        process.kill()
        process.communicate()


def test_killed_delivery_processes_lose_nothing_and_repeat_at_most_the_window_in_kinesis(
    fanout: ServiceFanout, aws_service: AwsServer
) -> None:
    """Nothing is doubled in Delta and OpenSearch. The first process dies in the middle of Kinesis, when the
    table has rows that the store does not know of; the second one in the middle of OpenSearch.
    """
    prepare(fanout)
    landed = fanout.folder / "landed"
    kill(
        fanout,
        lambda: landed.exists() and aws_service.refused()["writes"] >= 6,
        PENSTOCK_PAUSE_AT="commit.landed",
        PENSTOCK_PAUSE_FILE=str(landed),
    )
    assert fanout.ids("lake") == list(range(ROWS))
    assert fanout.store.pending(fanout.stream("lake"))
    assert len(set(fanout.ids("events"))) < ROWS, "the process was killed too late"
    before = len(fanout.ids("search"))
    kill(fanout, lambda: len(fanout.ids("search")) >= before + 2 * SIZE)
    assert len(fanout.ids("search")) < ROWS, "the process was killed too late"

    delivered = fanout.deliver()
    assert delivered.code == 0, delivered.err
    assert fanout.ids("lake") == fanout.ids("search") == list(range(ROWS))
    events = Counter(fanout.ids("events"))
    assert sorted(events) == list(range(ROWS)), "nothing is lost"
    assert events.total() - ROWS <= KILLS * WINDOW
    assert not [stream for stream in fanout.store.streams() if stream.pending]
    assert fanout.row_log() == []
