"""Telemetry of a real Spark, whose planner, tasks, commit and delivery are processes that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.openlineage import LineageCollector, lineage_collector
from servers.otelcol import Collector, otel_collector
from tests.spark.killed_stream import FILES, ROWS, KilledStream
from tests.support.lakes import DeltaLake, rows
from tests.support.unreachable import skipped_if_unreachable

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def otel(tmp_path: Path) -> Iterator[Collector]:
    """The OpenTelemetry Collector itself, built from its Go modules."""
    with skipped_if_unreachable(), otel_collector(tmp_path) as collector:
        yield collector


@pytest.fixture
def lineage() -> Iterator[LineageCollector]:
    with lineage_collector() as collector:
        yield collector


@pytest.mark.campaign
def test_a_killed_stream_has_one_trace_and_one_run_for_each_batch(
    tmp_path: Path, otel: Collector, lineage: LineageCollector
) -> None:
    """Those of the batch and of the delivery that were killed, too. A kill may cut off a START."""
    table, environment = DeltaLake(tmp_path / "lake"), {**otel.environment, **lineage.environment}
    store = f"sqlite:///{tmp_path}/store.sqlite"
    options = {
        **table.options,
        "store": store,
        "delivery": "decoupled",
        "lineageEvents": "true",
        "openTelemetry": "true",
    }
    KilledStream(tmp_path, table.source, options, ["prepare.done@1"], environment).run()
    killed = {
        **os.environ,
        **environment,
        "PENSTOCK_PAUSE_AT": "commit.landed",
        "PENSTOCK_PAUSE_FILE": f"{tmp_path}/at",
    }
    _deliver(store, killed, until=tmp_path / "at")
    _deliver(store, {**os.environ, **environment})
    assert len(rows(table)) == ROWS

    runs = _runs(lineage.wait_for(2 * FILES + 3, wait_s=5))
    batches = {run: states for run, (job, states) in runs.items() if job == "BATCH"}
    (delivery,) = [states for job, states in runs.values() if job == "DELIVERY"]
    assert len(batches) == FILES
    assert all(states["START"] <= 1 and states["COMPLETE"] == 1 for states in batches.values())
    assert delivery["START"] in (1, 2)
    assert delivery["COMPLETE"] == 1

    traces: dict[str, list[dict[str, Any]]] = {}
    for span in otel.spans():
        traces.setdefault(span["traceId"], []).append(span)
    assert len(traces) == FILES
    for spans in traces.values():
        names = Counter(span["name"] for span in spans)
        assert {"plan", "write", "batch", "deliver"} <= names.keys()
        (first,) = [span for span in spans if span["name"] == "batch"]
        assert {span["parentSpanId"] for span in spans if span is not first} == {first["spanId"]}
    delivered = [int(point["asInt"]) for point in otel.metrics()["penstock_delivered_rows"]]
    assert max(delivered) == ROWS


def _runs(events: list[dict[str, Any]]) -> dict[str, tuple[str, Counter[str]]]:
    """Return the kind of the job of each run, and how often it has had which state."""
    found: dict[str, tuple[str, Counter[str]]] = {}
    for event in events:
        job = event["job"]["facets"]["jobType"]["jobType"]
        found.setdefault(event["run"]["runId"], (job, Counter()))[1][event["eventType"]] += 1
    return found


def _deliver(store: str, environment: dict[str, str], until: Path | None = None) -> None:
    """Deliver what is prepared, in a process that is killed once the file exists."""
    command = [sys.executable, "-m", "penstock.cli", "deliver", "--store", store, "--once", "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        if until is None:
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0
            assert json.loads(output)
            return
        while not until.exists():
            with_timeout = process.poll()
            assert with_timeout is None, "the delivery process has ended"
        process.kill()
