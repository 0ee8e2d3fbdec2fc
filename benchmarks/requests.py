"""Rows to an HTTP service: how near the writer comes to its limits and to those of the service.

The service is a process on this machine, and answers after a time. The writer is given its rows by a
synchronous caller, as in a Spark task. In turn with the HTTP client alone: with as many requests in flight,
which is the limit of this machine, and one after the other, as a simple foreachBatch does.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import aiohttp
from benchmarks.http_service import Service, http_service
from benchmarks.measure import Options, interleaved, machine, medians, ratio, say
from benchmarks.report import Report
from servers.flink_async_sink import flink_async_sink, flink_jars
from servers.maven import MavenUnreachableError

from penstock.writers.requests.async_sink_writer import AsyncSinkWriter
from penstock.writers.requests.entry import Entry
from penstock.writers.requests.http import HttpClient, HttpTarget
from penstock.writers.requests.limits import Limits
from penstock.writers.requests.sender import RequestSender

OURS, CLIENT, LOOP, FLINK = "penstock", "client", "loop", "flink"
BATCH = 100
CASES = {5: 4, 50: 32}
"""Milliseconds, and requests in flight."""
SECONDS = 10
"""About, of each run of the writer."""
QUICK_SECONDS = 3
CALL_ROWS = 1000
"""Of a call of the writer."""
SHARE_MIN = 0.9

RATE, BURST_S = 20_000, 0.1
THROTTLED_MS = 20
THROTTLED_SECONDS = 90
QUICK_THROTTLED_SECONDS = 15
SETTLING = 1 / 3
"""Share of the time."""
TASKS = 4
ADMITTED_MIN, REJECTED_MAX = 0.95, 0.01
WRITERS = 2
SHARED_MIN = {"learned": 0.5, "given": 0.95}
"""How the writers know the rate, and the least of an equal part that each gets."""

PAYLOADS = [
    json.dumps({"id": number, "name": f"row {number}", "amount": number / 7, "tags": ["a", "b"]}).encode()
    for number in range(CALL_ROWS)
]


def run(options: Options) -> Report:
    report = Report(
        "requests",
        "Rows to an HTTP service",
        f"Requests of {BATCH} rows to a service on this machine that answers after 5 or 50 ms. `{OURS}` is "
        "the writer for request-based destinations, which a synchronous caller gives its rows. "
        f"`{CLIENT}` is the same HTTP client, aiohttp, alone: with as many requests in flight, each awaited "
        f"before the next, and nothing kept for a retry. `{LOOP}` has one request in flight, as a simple "
        f"`foreachBatch`. `{FLINK}` is Flink's AsyncSinkBase (FLIP-171) with the HTTP client of Java and the "
        "same limits, in a local cluster with one task; its rows are counted once a third has arrived. The "
        "limit is requests in flight × rows of a request / latency. Then a service that "
        "admits a fixed number of rows a second, and rejects requests beyond. The figures are medians of "
        f"{options.repeat}, all in turn.",
    )
    report.machine = machine("aiohttp")
    try:
        flink_jars()
        peers = {FLINK: flink}
    except MavenUnreachableError as error:
        say(f"  Flink's sink is not measured: {error}")
        report.text(f"Flink's sink was not measured: {error}.")
        peers = {}
    rows = []
    for latency_ms, in_flight in CASES.items():
        if options.wants(f"{latency_ms} ms"):
            rows += _unthrottled(report, options, latency_ms, in_flight, peers)
    report.table(("", "rows/s", "limit, rows/s", "of the limit"), rows)
    if options.wants("throttled"):
        _throttled(report, options)
    if options.wants("shared"):
        _shared(report, options)
    return report


def _unthrottled(
    report: Report,
    options: Options,
    latency_ms: int,
    in_flight: int,
    peers: Mapping[str, Callable[[Service, int, int], float]],
) -> list[tuple[str, float, float, float]]:
    limit = in_flight * BATCH / latency_ms * 1000
    seconds = QUICK_SECONDS if options.is_quick else SECONDS
    count = options.rows or int(limit * seconds)
    with http_service(latency_ms) as service:
        samples = interleaved(
            {
                OURS: partial(write, service, in_flight, count),
                CLIENT: partial(client_alone, service, in_flight, count),
                LOOP: partial(client_alone, service, 1, max(count // in_flight, BATCH)),
                **{name: partial(peer, service, in_flight, count) for name, peer in peers.items()},
            },
            options.repeat,
        )
    speeds = medians(samples)
    report.bound(f"{latency_ms} ms: {OURS}, of the limit", speeds[OURS] / limit, ">=", SHARE_MIN)
    report.bound(f"{latency_ms} ms: {OURS} / {CLIENT}", ratio(samples, OURS, CLIENT), ">=", SHARE_MIN)
    shown = {OURS: in_flight, CLIENT: in_flight, LOOP: 1, **dict.fromkeys(peers, in_flight)}
    return [
        (f"{latency_ms} ms, {count} in flight: `{name}`", speeds[name], limit, speeds[name] / limit)
        for name, count in shown.items()
    ]


def _throttled(report: Report, options: Options) -> None:
    seconds = QUICK_THROTTLED_SECONDS if options.is_quick else THROTTLED_SECONDS
    admitted: list[float] = []
    rejected: list[float] = []
    early: list[float] = []
    for number in range(min(options.repeat, 3)):
        with http_service(THROTTLED_MS, RATE, RATE * BURST_S) as service:
            shares = throttled(service, seconds, writer_of(service, 32, TASKS))
        say(f"  {number + 1} throttled: {shares}")
        for one, of_all in zip(shares, (admitted, rejected, early), strict=True):
            of_all.append(one)
    # The worst run counts.
    report.bound("throttled: rows, of those that are admitted", min(admitted), ">=", ADMITTED_MIN)
    report.bound("throttled: rejected requests, once settled", max(rejected), "<=", REJECTED_MAX)
    report.text(
        f"The throttled service admits {RATE:,} rows a second by a token bucket of {BURST_S} s, and answers "
        f"after {THROTTLED_MS} ms. The writer starts with a {TASKS}th of {32 * BATCH:,} entries in flight. "
        f"The figures are those of the worst of {len(admitted)} runs, after the first "
        f"{seconds * SETTLING:.0f} s, in which at most {max(early) * 100:.1f} % of the requests are rejected."
    )


def _shared(report: Report, options: Options) -> None:
    """Several writers at the same throttled service."""
    seconds = QUICK_THROTTLED_SECONDS if options.is_quick else THROTTLED_SECONDS
    for how, share_min in SHARED_MIN.items():
        rate = RATE if how == "given" else math.inf
        with http_service(THROTTLED_MS, RATE, RATE * BURST_S) as service:
            writers = [writer_of(service, 32, WRITERS, rate) for _ in range(WRITERS)]
            with ThreadPoolExecutor(WRITERS) as threads:
                ran = [threads.submit(throttled, service, seconds, writer) for writer in writers]
            admitted, rejected, _ = ran[0].result()
            parts = [writer.counters.delivered for writer in writers]
        what = f"{WRITERS} writers, the rate is {how}"
        report.bound(f"{what}: rows, of those that are admitted", admitted, ">=", ADMITTED_MIN)
        report.bound(f"{what}: rejected requests, once settled", rejected, "<=", REJECTED_MAX)
        fair = min(parts) / (sum(parts) / WRITERS)
        report.bound(f"{what}: least rows of a writer, of an equal part", fair, ">=", share_min)


def rows(count: int) -> Iterator[Sequence[Entry[bytes]]]:
    """By call; made as they are written, as from Arrow batches."""
    for start in range(0, count, CALL_ROWS):
        yield [
            Entry(payload, len(payload), f"0-{start + number}", start + number)
            for number, payload in enumerate(PAYLOADS[: count - start])
        ]


def writer_of(
    service: Service, in_flight: int, tasks: int = 1, rate: float = math.inf
) -> AsyncSinkWriter[bytes]:
    client = HttpClient(HttpTarget(service.url, body="ndjson"), in_flight)
    limits = Limits(
        batch_entries_max=BATCH, in_flight_requests_max=in_flight, buffered_entries_max=10 * CALL_ROWS
    )
    return AsyncSinkWriter(RequestSender(client, limits, tasks=tasks, entries_s_max=rate / tasks))


def write(service: Service, in_flight: int, count: int) -> float:
    """Rows a second."""
    before = service.counts().rows
    writer = writer_of(service, in_flight)
    started_at = time.perf_counter()
    for some in rows(count):
        writer.write(some)
    writer.flush()
    seconds = time.perf_counter() - started_at
    writer.close()
    assert service.counts().rows - before == count
    return count / seconds


def client_alone(service: Service, in_flight: int, count: int) -> float:
    """Rows a second of workers that each send one request after the other."""

    async def main() -> float:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=in_flight)) as session:

            async def work(calls: Iterator[Sequence[Entry[bytes]]]) -> None:
                for some in calls:
                    for start in range(0, len(some), BATCH):
                        body = b"\n".join(entry.payload for entry in some[start : start + BATCH]) + b"\n"
                        async with session.post(service.url, data=body) as response:
                            assert response.status == 200

            calls = rows(count)
            started_at = time.perf_counter()
            await asyncio.gather(*(work(calls) for _ in range(in_flight)))
            return count / (time.perf_counter() - started_at)

    return asyncio.run(main())


def flink(service: Service, in_flight: int, count: int) -> float:
    """Rows a second of Flink's sink, without the start of its JVM."""
    before = service.counts().rows
    first = last = service.counts()
    with flink_async_sink(service.url, count, BATCH, in_flight, 10 * CALL_ROWS) as sender:
        while last.rows - before < count:
            assert sender.poll() in (None, 0), sender.communicate()[1][-4000:]
            time.sleep(0.1)
            last = service.counts()
            if first.rows - before < count * SETTLING:
                first = last
    assert last.rows - before == count
    return (last.rows - first.rows) / (last.at_s - first.at_s)


def throttled(service: Service, seconds: float, writer: AsyncSinkWriter[bytes]) -> tuple[float, float, float]:
    """Of what is admitted, the share that was sent; of the requests, the share that was rejected; the latter
    while settling.
    """
    started = service.counts()
    settled = None
    for some in rows(10**12):
        writer.write(some)
        elapsed_s = time.monotonic() - started.at_s
        if settled is None and elapsed_s >= seconds * SETTLING:
            settled = service.counts()
        if elapsed_s >= seconds:
            break
    ended = service.counts()
    writer.abort()
    assert settled is not None
    admitted = (ended.rows - settled.rows) / (ended.at_s - settled.at_s) / RATE
    early = (settled.rejected - started.rejected) / (settled.requests - started.requests)
    return admitted, (ended.rejected - settled.rejected) / (ended.requests - settled.requests), early
