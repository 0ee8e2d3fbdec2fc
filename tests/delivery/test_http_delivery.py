"""Decoupled streams to an HTTP endpoint: what a delivery process sends, and sends again after its death."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from servers.http_rows import HttpRows
from tests.support.backlogs import context_of, start_cli, wait_until
from tests.support.cli import Ended
from tests.support.request_streams import ROWS, Stream, http_stream
from tests.support.scraped_metrics import metrics_of, metrics_url

from penstock.committers.contract import ManifestState, Token
from penstock.committers.store.sql import open_store, utc_now
from penstock.delivery.service import DeliveryService
from penstock.testing.conformance.query import ids

pytestmark = pytest.mark.slow

IN_FLIGHT = 4


@pytest.fixture
def start() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts `penstock deliver`, and kills it in the end."""
    started = []

    def start_one(store_url: str) -> subprocess.Popen[str]:
        started.append(start_cli("deliver", "--store", store_url))
        return started[-1]

    yield start_one
    for one in started:
        one.kill()
        one.communicate()


OPTIONS = {
    "deliverAfterSeconds": "1",
    "format": "row",
    "maxInFlightRequests": str(IN_FLIGHT),
    "progressEverySeconds": "0",
}


@pytest.fixture
def stream(tmp_path: Path, http_server: HttpRows) -> Iterator[Stream]:
    """One request for each row, its progress recorded after each response."""
    with http_stream(tmp_path, http_server, OPTIONS) as opened:
        yield opened


def test_rows_arrive_in_the_order_of_batch_partition_and_row(stream: Stream) -> None:
    """With one request at a time. Their ids say where they come from."""
    stream.query = stream.query.with_options(maxInFlightRequests="1")
    stream.prepare()
    assert stream.server.ids() == []
    assert len(stream.row_log()) == 6
    delivered = stream.deliver("--json")

    assert (delivered.code, delivered.err) == (0, "")
    assert stream.server.ids() == list(range(ROWS))
    keys = [one.key.rpartition("-")[0] for one in stream.server.received()]  # the rest is a hash of the row
    assert keys == [f"q1-{b}-{p}-{row}" for b in range(3) for p in range(2) for row in range(ROWS // 6)]
    assert stream.row_log() == []
    assert stream.query.target().token("q1") == Token(2, stream.query.batch(2).digest)


@pytest.mark.parametrize(
    ("parts", "deduplicates"),
    [
        ("row", False),
        *(pytest.param(*one, marks=pytest.mark.campaign) for one in (("row", True), ("ndjson", False))),
    ],
)
def test_a_delivery_process_that_is_killed_sends_again_only_what_was_in_flight(
    stream: Stream, start: Callable[[str], subprocess.Popen[str]], deduplicates: bool, parts: str
) -> None:
    """The service is slow, and takes what it has received after the process is dead. Keys are those of
    before.
    """
    size = 1 if parts == "row" else 5
    stream.server.set(deduplicate=deduplicates, latency_s=0.2)
    stream.query = stream.query.with_options(format=parts, maxBatchSize=str(size))
    stream.prepare()
    killed = start(stream.store_url)
    wait_until(lambda: len(stream.server.ids()) >= ROWS // 3)
    killed.kill()
    killed.communicate()
    time.sleep(0.5)  # the service takes what it has received
    before = stream.server.received()
    assert len(stream.server.ids()) < ROWS, "the process was killed too late"
    delivered = stream.deliver("--json")

    assert (delivered.code, delivered.err) == (0, "")
    assert stream.left == 0
    assert sorted(set(stream.server.ids())) == list(range(ROWS)), "nothing is lost"
    twice = [row_id for row_id, count in Counter(stream.server.ids()).items() if count > 1]
    if deduplicates:
        assert twice == []
        return
    assert 0 < len(twice) <= 2 * IN_FLIGHT * size
    known = {row_id: one.key for one in before for row_id in one.ids}
    if parts == "row":
        after = stream.server.received()[len(before) :]
        assert {row_id: one.key for one in after for row_id in one.ids if row_id in known} == {
            row_id: known[row_id] for row_id in twice
        }


@pytest.mark.parametrize("ahead_h", [-2, 2])
def test_two_hosts_whose_clocks_differ_by_hours_send_each_row_once(
    tmp_path: Path, http_server: HttpRows, new_postgres_url: Callable[[], str], ahead_h: int
) -> None:
    """The clock of the database decides whether a lease has expired, not those of the hosts."""

    def deliver(clock: Callable[[], datetime]) -> None:
        context = replace(context_of(stop=stop), clock=clock)
        with open_store(stream.store_url, clock) as store:
            DeliveryService(store, context).run()

    stop = threading.Event()
    clocks = (utc_now, lambda: utc_now() + timedelta(hours=ahead_h))
    hosts = [threading.Thread(target=deliver, args=(clock,)) for clock in clocks]
    with http_stream(tmp_path, http_server, OPTIONS, new_postgres_url()) as stream:
        stream.server.set(latency_s=0.02)
        stream.prepare()
        for host in hosts:
            host.start()
        try:
            wait_until(lambda: stream.left == 0, 30)
        finally:
            stop.set()
            for host in hosts:
                host.join()

    assert Counter(stream.server.ids()) == dict.fromkeys(range(ROWS), 1)


@pytest.mark.parametrize(
    ("service", "number", "ends_s"),
    [
        ({"down_after": 30}, signal.SIGTERM, 10),
        ({"down_after": 30, "retry_after_s": 3600}, signal.SIGINT, 10),
        ({"latency_s": 2.0}, signal.SIGTERM, 10),
        ({"stalls_after": 30}, signal.SIGTERM, 20),
    ],
    ids=["503", "Retry-After", "slow", "no answer"],
)
def test_a_signal_ends_a_delivery_while_the_service_is_down_or_slow(
    stream: Stream,
    start: Callable[[str], subprocess.Popen[str]],
    service: dict[str, Any],
    number: int,
    ends_s: float,
) -> None:
    """Nothing more is sent, what is in flight gets its answer, and what is acknowledged is recorded."""
    stream.query = stream.query.with_options(progressEverySeconds="60", retryFor="2h")
    stream.server.set(**service)
    stream.prepare()
    process = start(stream.store_url)
    wait_until(lambda: stream.server.requests() >= (IN_FLIGHT + 1 if "latency_s" in service else 31))
    process.send_signal(number)
    output = process.communicate(timeout=ends_s)
    assert process.returncode == 0, output
    acknowledged = stream.server.ids()
    progress, key = stream.store.progress.read(stream.query.stream), stream.query.stream
    recorded = 0 if progress.token is None else (progress.token.batch_id + 1) * ROWS // 3
    recorded += 0 if progress.in_delivery is None else progress.in_delivery.position
    assert recorded == next(row for row in count() if row not in acknowledged) > 0
    lease = stream.store.deliveries.acquire(key, "another", 10)
    assert lease is not None

    stream.store.deliveries.release(lease)
    stream.server.set()
    delivered = stream.deliver()
    assert delivered.code == 0, delivered.out + delivered.err
    again = acknowledged[recorded:] if "stalls_after" in service else []
    assert sorted(stream.server.ids()) == sorted([*range(ROWS), *again])


def test_lost_responses_and_errors_that_pass_lose_nothing(stream: Stream) -> None:
    stream.server.set(deduplicate=True, answers=(503, "cut after", 200, "cut before", 429, 500, "cut after"))
    stream.prepare()
    delivered = stream.deliver("--json")

    assert (delivered.code, delivered.err) == (0, "")
    assert sorted(stream.server.ids()) == list(range(ROWS))


def test_a_row_that_is_refused_parks_the_stream_at_its_batch(stream: Stream) -> None:
    refused = ROWS // 3 + 5
    stream.server.set(refused=(refused,))
    stream.prepare()
    delivered = stream.deliver()

    assert delivered.code == 1, delivered.out + delivered.err
    state = stream.store.deliveries.state(stream.query.stream)
    assert state.parked_at is not None
    assert re.search(r"refused entry q1-1-0-5-\w+ for good: 422.*refused: \[45\]", state.error, re.DOTALL)
    assert [stream.query.state(stream.store, batch_id) for batch_id in range(3)] == [
        ManifestState.COMMITTED,
        ManifestState.PREPARED,
        ManifestState.PREPARED,
    ]
    assert refused not in stream.server.ids()
    assert set(range(ROWS // 3)) <= set(stream.server.ids())

    stream.server.set()
    assert Ended("retry", "q1", "--store", stream.store_url).code == 0
    assert stream.deliver().code == 0
    assert sorted(set(stream.server.ids())) == list(range(ROWS))


def test_a_damaged_file_of_the_row_log_parks_the_stream_and_doubles_nothing(stream: Stream) -> None:
    """What is in flight when it is found gets its answer."""
    stream.server.set(latency_s=0.2)
    stream.prepare()
    damaged = sorted(stream.row_log())[3]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1])
    delivered = stream.deliver()

    assert delivered.code == 1, delivered.out + delivered.err
    state = stream.store.deliveries.state(stream.query.stream)
    assert state.parked_at is not None
    assert f"{damaged.name} of the row log is damaged" in state.error
    assert stream.server.ids() != []

    damaged.write_bytes(content)
    assert Ended("retry", "q1", "--store", stream.store_url).code == 0
    assert stream.deliver().code == 0
    assert sorted(stream.server.ids()) == list(range(ROWS))


@pytest.mark.parametrize(
    "options",
    [
        {"idColumn": "number"},
        {"keys": "number"},
        {"format": "template", "bodyTemplate": '{{"id": {id}, "number": {number}}}'},
    ],
    ids=["idColumn", "keys", "bodyTemplate"],
)
def test_options_that_name_a_column_which_waiting_rows_do_not_have_park_the_stream(
    stream: Stream, options: dict[str, str]
) -> None:
    """The query was started with other columns and options since. With the earlier ones, all rows arrive."""
    earlier = stream.query
    stream.prepare(batches=1)
    stream.query = earlier.with_options(**options)
    rows = ids(*range(40, 50))
    numbered = rows.append_column("number", rows.column("id"))
    stream.query.run(stream.store, stream.query.batch(1), numbered)
    delivered = stream.deliver()

    assert delivered.code == 1, delivered.out + delivered.err
    state = stream.store.deliveries.state(stream.query.stream)
    assert state.parked_at is not None
    assert re.search(r"the column 'number'.*\nRows of batch 0 of .* earlier options", state.error)
    assert stream.server.ids() == []

    stream.query = earlier
    stream.query.run(stream.store, stream.query.batch(2), ids(*range(50, 60)))
    assert Ended("retry", "q1", "--store", stream.store_url).code == 0
    assert stream.deliver().code == 0
    assert sorted(stream.server.ids()) == list(range(60))


@pytest.mark.parametrize("body", ["row", "json"])
def test_rows_that_are_refused_can_be_dropped(
    stream: Stream, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Only these, also if they share a request with others."""
    refused = (3, 45, 46)
    stream.server.set(refused=refused)
    stream.query = stream.query.with_options(badRows="drop", format=body, maxBatchSize="7")
    stream.prepare()
    delivered = stream.deliver()

    assert (delivered.code, stream.left) == (0, 0), delivered.out + delivered.err
    assert sorted(stream.server.ids()) == sorted(set(range(ROWS)) - set(refused))
    assert "refused 3 of 120 rows of batches 0 to 2" in caplog.text
    assert [one.committed_rows for one in stream.store.streams()] == [117]


def test_a_destination_that_does_not_answer_is_retried_and_not_parked(
    stream: Stream, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    stream.query = stream.query.with_options(retryFor="1s")
    stream.server.set(answers=(200, 200, *(503,) * 500))
    stream.prepare()
    start(stream.store_url)
    wait_until(lambda: stream.store.deliveries.state(stream.query.stream).tries > 0)
    assert "503" in stream.store.deliveries.state(stream.query.stream).error
    assert stream.store.deliveries.state(stream.query.stream).parked_at is None
    stream.server.set()
    wait_until(lambda: stream.left == 0)

    assert sorted(stream.server.ids()) == list(range(ROWS)), "what was acknowledged is not sent again"


# Secrets --------------------------------------------------------------------------------------------


def test_secrets_are_given_to_the_delivery_process_again(stream: Stream) -> None:
    secrets = {"header.X-Api-Key": "geheim", "bearerToken": "geheim-2"}
    stream.query = stream.query.with_options(**secrets)
    stream.prepare(1)
    given = [part for key, value in secrets.items() for part in ("--storage", f"{key}={value}")]
    refused = stream.deliver(*given)
    assert refused.code != 0
    assert "Say for which endpoint they are" in refused.err
    assert "geheim" not in refused.err + refused.out
    assert stream.server.ids() == []

    delivered = stream.deliver(*given, "--storage", f"url={stream.server.url.removesuffix('rows')}")
    assert (delivered.code, stream.left) == (0, 0), delivered.err
    (headers, *_) = [one.headers for one in stream.server.received()]
    assert (headers["x-api-key"], headers["Authorization"]) == ("geheim", "Bearer geheim-2")
    path = Path(stream.store_url.removeprefix("sqlite:///"))
    assert not [file for file in path.parent.glob("store.db*") if b"geheim" in file.read_bytes()]


def test_secrets_are_not_sent_to_another_endpoint(stream: Stream) -> None:
    """Whoever can write to the store can name any."""
    stream.prepare(1)
    given = ("--storage", "bearerToken=geheim", "--storage", "url=https://api.example.com/")
    assert stream.deliver(*given).code == 0
    assert all("Authorization" not in one.headers for one in stream.server.received())


# Commands -------------------------------------------------------------------------------------------


def test_commands_show_what_is_delivered(stream: Stream) -> None:
    stream.prepare(2)
    url = ("--store", stream.store_url)
    assert Ended("show", "q1", "0", *url, "--json").json["in_table"] == "no"
    assert stream.deliver().code == 0
    stream.prepare(3)
    shown = [Ended("show", "q1", str(batch_id), *url, "--json").json["in_table"] for batch_id in (1, 2)]
    assert shown == ["yes", "no"]
    (status,) = Ended("status", *url, "--table", "--json").json["streams"]
    assert status["table"]["token_batch_id"] == 1


def test_recover_says_that_the_delivery_process_sends(stream: Stream) -> None:
    stream.prepare(1)
    recovered = Ended("recover", "--store", stream.store_url)
    assert recovered.code == 3
    assert "penstock deliver --once" in recovered.err
    assert stream.server.ids() == []


def test_a_batch_that_is_skipped_is_not_sent(stream: Stream) -> None:
    stream.prepare(3)
    skipped = Ended("skip", "q1", "1", "--yes", "--reason", "x", "--store", stream.store_url)
    assert skipped.code == 0, skipped.err
    assert stream.deliver().code == 0
    assert sorted(stream.server.ids()) == [*range(ROWS // 3), *range(2 * ROWS // 3, ROWS)]


def test_a_query_that_is_coupled_again_sends_what_waits_in_the_log(stream: Stream) -> None:
    stream.prepare(2)
    coupled = stream.query.with_options(delivery="coupled")
    coupled.run(stream.store, coupled.batch(2), ids(1000))

    assert sorted(stream.server.ids()) == [*range(2 * ROWS // 3), 1000]
    assert stream.row_log() == []
    assert stream.left == 0


def test_rows_that_later_ones_replace_are_not_sent_and_counted(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows of all batches but the last are replaced, each by the row of the same key in a later one."""
    stream.query = stream.query.with_options(keys="key")
    for batch_id in range(3):
        rows = pa.table({"id": [10 * batch_id, 10 * batch_id + 1, 10 * batch_id + 2], "key": [1, None, 2]})
        stream.query.run(stream.store, stream.query.batch(batch_id), rows)
    delivered = stream.deliver("--json")

    assert delivered.code == 0
    assert sorted(stream.server.ids()) == [1, 11, 20, 21, 22]
    assert "4 of 9 rows of batches 0 to 2 were not sent" in caplog.text
    assert stream.row_log() == []


# Metrics --------------------------------------------------------------------------------------------


def test_metrics_and_json_tell_what_requests_have_become_also_while_they_are_sent(
    stream: Stream, tmp_path: Path
) -> None:
    """The service does not answer at first, then throttles, then refuses one row. Later rows replace others.

    Another process leaves the stream to the holder of its lease.
    """
    refused = (21,)
    stream.query = stream.query.with_options(
        keys="key", requestTimeout="1s", badRows="deadLetter", deadLetter=str(tmp_path / "refused")
    )
    stream.server.set(stalls_after=0, refused=refused)
    for batch_id in range(3):
        rows = pa.table({"id": [10 * batch_id, 10 * batch_id + 1, 10 * batch_id + 2], "key": [1, None, 2]})
        stream.query.run(stream.store, stream.query.batch(batch_id), rows)
    process = start_cli("deliver", "--store", stream.store_url, "--json", "--metrics-port", "0")
    try:
        url = metrics_url(process)

        def value(name: str) -> float:
            return metrics_of(url, stream.query.stream.table_uri).get(f"penstock_{name}", 0)

        wait_until(lambda: value("timed_out_requests_total") > 0)
        assert (value("delivered_rows_total"), value("dead_letters_total")) == (0, 0)
        (other,) = stream.deliver("--json", "--lease-wait-seconds", "0").json["streams"]
        assert (other["busy"], other["left"]) == (True, 3)
        stream.server.set(answers=(429, 429, 503), refused=refused)
        wait_until(lambda: value("dead_letters_total") == 1)
        values = metrics_of(url, stream.query.stream.table_uri)
    finally:
        process.kill()
        out, _ = process.communicate()

    assert sorted(stream.server.ids()) == [1, 11, 20, 22]
    assert values["penstock_delivered_rows_total"] == 9
    assert values["penstock_replaced_rows_total"] == 4
    assert values["penstock_throttled_requests_total"] == 3
    assert values["penstock_timed_out_requests_total"] >= 1
    sent, retried = values["penstock_sent_rows_total"], values["penstock_retried_rows_total"]
    assert sent == values["penstock_requests_total"] == 5 + retried
    assert retried == 3 + values["penstock_timed_out_requests_total"]
    assert 0 < values["penstock_in_flight_rows_max"] < IN_FLIGHT
    assert values["penstock_dead_letters_waiting"] == values["penstock_failures_total"] == 0
    assert values["penstock_freshness_seconds_count"] == 1
    assert 1 < values["penstock_freshness_seconds_sum"] < 120

    (delivered,) = [json.loads(line) for line in out.splitlines()]
    for name in ("replaced_rows", "sent_rows", "retried_rows", "requests", "throttled_requests"):
        assert delivered[name] == values[f"penstock_{name}_total"]
    assert delivered["timed_out_requests"] == values["penstock_timed_out_requests_total"]
    assert delivered["in_flight_rows_max"] == pytest.approx(values["penstock_in_flight_rows_max"], abs=0.001)
    assert (delivered["dead_letters"], delivered["dead_letters_waiting"]) == (1, 1)
