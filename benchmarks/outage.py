"""An outage of the destination of a decoupled stream, at the full rate of the stream.

Spark writes rows to the row log, and a delivery process sends them to an HTTP service, which is down in the
middle of the run. A short look: make bench NAMES=outage ARGS="--minutes 1".
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.delivery.batches import Batch, batches_of
from benchmarks.delivery.processes import process, wait_for
from benchmarks.http_service import Counts, http_service
from benchmarks.measure import Options, print_progress
from benchmarks.report import Report, lines

from penstock.committers.contract import StreamKey
from penstock.committers.store.sql import SqlManifestStore, open_store

NAME = "http"
TASKS, ROWS_PER_SECOND = 4, 4000
MINUTES, QUICK_MINUTES = 10.0, 1.0
WARM_UP_S = 60
"""Of Spark's JVM, before anything counts."""
AROUND_S = 60
"""Before the outage, and at least after it."""
CATCH_UP_S_MAX = 600
SAMPLE_S = 1.0
SLOWER_MAX = 1.1
"""Median time of a batch in the outage, relative to before."""
PACE_MIN = 0.95


@dataclass
class Backlog:
    """Samples of what waits for its delivery."""

    at: list[float] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Times:
    """Of the outage, and of the first moment after it without a backlog from before."""

    start: float
    end: float
    caught_up: float


def run(options: Options) -> Report:
    outage_s = 60 * (options.minutes or (QUICK_MINUTES if options.is_quick else MINUTES))
    rate = options.rows or ROWS_PER_SECOND
    report = Report(
        "outage",
        "An outage of the destination",
        f"Spark writes {rate:,} rows a second in batches of about a second and {TASKS} tasks to the row log, "
        "and a delivery process sends them to an HTTP service (`penstock.http`, `delivery=decoupled`). The "
        f"service is down for {outage_s:.0f} s: its connections are closed, and new ones are refused. Spark, "
        "delivery process and service share this machine.",
    )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        _measure(report, Path(folder), outage_s, rate)
    return report


def _measure(report: Report, root: Path, outage_s: float, rate: int) -> None:
    journal, store_url = root / "journal.jsonl", f"sqlite:///{root}/store.sqlite"
    with ExitStack() as stack:
        service = stack.enter_context(http_service(1))
        log = stack.enter_context((root / "processes.log").open("w"))
        sink = {
            "url": service.url,
            "format": "ndjson",
            "delivery": "decoupled",
            "deliverAfterSeconds": "1",
            "retryFor": "5s",
            "checkpointLocation": str(root / "checkpoint"),
            "store": store_url,
        }
        settings = {
            "rows_per_second": rate,
            "tasks": TASKS,
            "journal": str(journal),
            "sinks": {NAME: {"format": "penstock.http", "options": sink}},
        }
        driver = [sys.executable, "-m", "benchmarks.delivery.driver", json.dumps(settings)]
        spark = stack.enter_context(process(driver, log))
        wait_for(journal.exists, 300, "the first batch", root)
        store = stack.enter_context(open_store(store_url))
        command = [str(Path(sys.executable).with_name("penstock")), "deliver", "--store", store_url]
        delivery = stack.enter_context(process(command, log))
        (stream,) = [one.key for one in store.streams()]
        backlog = Backlog()
        _sample(store, stream, backlog, WARM_UP_S + AROUND_S)
        start = time.time()
        with service.down():
            _sample(store, stream, backlog, outage_s)
        times = Times(start, time.time(), _catch_up(store, stream, backlog))
        _sample(store, stream, backlog, AROUND_S)
        os.killpg(spark.pid, signal.SIGKILL)
        spark.wait()
        wait_for(lambda: not store.pending(stream), CATCH_UP_S_MAX, "the last deliveries", root)
        delivery.send_signal(signal.SIGTERM)
        exit_code = delivery.wait(60)
        prepared = sum(record.rows for record in store.history(stream, 1_000_000))
        told = [json.loads(line) for line in journal.read_text().splitlines()]
        _tell(report, batches_of(NAME, told), times, backlog)
        _tell_rows(report, prepared, service.counts())
        report.bound("delivery process: exit code after SIGTERM", exit_code, "==", 0)


def _sample(store: SqlManifestStore, stream: StreamKey, backlog: Backlog, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        now = store.deliveries.backlog(stream)
        backlog.at.append(time.time())
        backlog.rows.append(now.rows / 1e6)
        backlog.megabytes.append(now.size_bytes / 1e6)
        if len(backlog.at) % 30 == 0:
            print_progress(f"  {now.batches} batches wait, {now.rows:,} rows")
        time.sleep(SAMPLE_S)


def _catch_up(store: SqlManifestStore, stream: StreamKey, backlog: Backlog) -> float:
    """Wait until all batches of the outage are delivered. Return the time."""
    last = max(store.pending(stream), key=lambda one: one.batch.batch_id).batch.batch_id
    end = time.monotonic() + CATCH_UP_S_MAX
    while any(one.batch.batch_id <= last for one in store.pending(stream)):
        if time.monotonic() > end:
            raise TimeoutError(f"batch {last} is not delivered after {CATCH_UP_S_MAX} s")
        _sample(store, stream, backlog, SAMPLE_S)
    return time.time()


def _tell(report: Report, batches: Sequence[Batch], times: Times, backlog: Backlog) -> None:
    parts = {
        "before": [one for one in batches if times.start - AROUND_S <= one["time"] < times.start],
        "during": [one for one in batches if times.start <= one["time"] < times.end],
        "after, with a backlog": [one for one in batches if times.end <= one["time"] < times.caught_up],
        "after, without": [one for one in batches if one["time"] >= times.caught_up],
    }
    seconds = {
        "before": AROUND_S,
        "during": times.end - times.start,
        "after, with a backlog": times.caught_up - times.end,
        "after, without": batches[-1]["time"] - times.caught_up,
    }
    median = {name: statistics.median([one["ms"] for one in some] or [0]) for name, some in parts.items()}
    slower = {name: median[name] / median["before"] for name in parts}
    pace = {name: len(some) / max(seconds[name], 1) for name, some in parts.items()}
    report.bound("median batch during the outage, relative to before", slower["during"], "<=", SLOWER_MAX)
    report.bound(
        "batches a second during it, relative to before", pace["during"] / pace["before"], ">=", PACE_MIN
    )
    report.table(
        ("", "seconds", "batches", "median batch, ms", "relative to before", "slowest, ms"),
        [
            (
                name,
                seconds[name],
                len(some),
                median[name],
                slower[name],
                max((one["ms"] for one in some), default=0),
            )
            for name, some in parts.items()
        ],
    )
    report.text(
        f"At most {max(backlog.rows):.2g} million rows wait, in {max(backlog.megabytes):,.0f} MB of the row "
        f"log. They are delivered {times.caught_up - times.end:,.0f} s after the end of the outage, which "
        "includes the pause of the delivery process before its next attempt."
    )
    report.plot("Rows that wait for their delivery", _plot(times, backlog))


def _tell_rows(report: Report, prepared: int, received: Counts) -> None:
    report.bound("rows lost", prepared - received.ids, "==", 0)
    report.text(
        f"Spark wrote {prepared:,} rows. The service received {received.rows:,}, of which "
        f"{received.rows - received.ids:,} came a second time."
    )


def _plot(times: Times, backlog: Backlog) -> Any:
    minutes = [(at - times.start) / 60 for at in backlog.at]
    drawn = lines(
        {"rows that wait": (minutes, backlog.rows)}, "minutes since the begin of the outage", "million rows"
    )
    (axes,) = drawn.axes
    axes.axvspan(0, (times.end - times.start) / 60, color="#d6dbdf", alpha=0.5, label="the service is down")
    axes.legend(frameon=False, loc="upper left", ncols=2)
    return drawn
