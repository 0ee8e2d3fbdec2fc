"""Tasks in several processes send to one service that throttles: `maxRowsPerSecond` and `parallelTasks`."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pyarrow as pa
import pytest
from benchmarks.http_service import http_service

from penstock.committers.contract import AttemptId
from penstock.datasource.http.source import HttpDataSource

pytestmark = pytest.mark.slow

RATE = 2000
SECONDS = 6
CALL_ROWS = 100


def send(options: dict[str, str], partition: int, rows: int) -> float:
    """Send rows as a task. Return the seconds from the first row to the last acknowledgement."""
    some = pa.record_batch({"id": range(CALL_ROWS)})
    target = HttpDataSource(options).sink().open_table()
    writers = target.plan_batch(some.schema, "append", 0).writers
    writer = writers.open(AttemptId("q1", "r1", 0, partition, partition))
    started_at = time.perf_counter()
    for _ in range(rows // CALL_ROWS):
        writer.write(some)
    writer.finish()
    return time.perf_counter() - started_at


@pytest.mark.parametrize("tasks", [pytest.param(2, marks=pytest.mark.campaign), 3])
def test_tasks_of_several_processes_stay_within_what_is_admitted_each_with_its_share(tasks: int) -> None:
    with (
        http_service(20, RATE, RATE / 10) as service,
        ProcessPoolExecutor(tasks, get_context("spawn")) as processes,
    ):
        options = {
            "url": service.url,
            "format": "ndjson",
            "checkpointlocation": "/c",
            "maxbatchsize": "20",
            "maxrowspersecond": str(RATE),
            "paralleltasks": str(tasks),
        }
        share = RATE * SECONDS // tasks // CALL_ROWS * CALL_ROWS
        sent = [processes.submit(send, options, number, share) for number in range(tasks)]
        seconds = [one.result() for one in sent]
        counts = service.counts()

    assert counts.rows == tasks * share
    assert counts.rejected <= 0.01 * counts.requests
    assert min(seconds) >= 0.95 * SECONDS, "a task with more than its share ends early"
