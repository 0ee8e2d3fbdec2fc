"""Events of OpenLineage, as an HTTP collector gets them that validates them by the official JSON schema."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from servers.openlineage import LineageCollector
from servers.ports import free_port
from tests.support.backlogs import wait_until
from tests.support.planned_stream import IDS, QUERY_ID, Stream, orders
from tests.telemetry.conftest import Start

from penstock.committers.deliveries.contract import Delivery
from penstock.committers.errors import PenstockError, RetryableError
from penstock.committers.store.sql import open_store
from penstock.datasource.committing import commit_batch_write
from penstock.datasource.planning.plan import plan_batch_write
from penstock.datasource.plug_ins import BUILT_IN, load
from penstock.datasource.spark.stream_writer import StreamWriter
from penstock.datasource.spark.task import TaskAttempt
from penstock.delivery.telemetry import TelemetryListener
from penstock.telemetry import observer
from penstock.telemetry.sending import WAIT_S
from penstock.testing.conformance.query import shipped
from penstock.testing.faults import at_point, crash_at

ON = {"lineageEvents": "true", "lineageKafka": "kafka://broker:9092"}

Deliver = Callable[[Stream], None]


def offsets(event: dict[str, Any]) -> list[tuple[str, str, list[tuple[int, int | None, int]]]]:
    return [
        (
            one["namespace"],
            one["name"],
            [
                (read["partition"], read.get("from"), read["until"])
                for read in one["inputFacets"]["penstock_offsets"]["partitions"]
            ],
        )
        for one in event["inputs"]
    ]


def told(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """States, and the kinds of the jobs."""
    return [(one["eventType"], one["job"]["facets"]["jobType"]["jobType"]) for one in events]


def test_a_batch_is_a_run_with_its_offsets_and_the_version_of_the_table(
    start: Start, lineage: LineageCollector
) -> None:
    stream = start(**ON)
    stream.run(orders(15, 3))

    begun, ended = lineage.wait_for(2)
    assert told([begun, ended]) == [("START", "BATCH"), ("COMPLETE", "BATCH")]
    assert begun["run"]["runId"] == ended["run"]["runId"]
    parent = ended["run"]["facets"]["parent"]
    assert (parent["run"]["runId"], parent["job"]["name"]) == (QUERY_ID, "shop")
    assert (ended["job"]["namespace"], ended["job"]["name"]) == ("tests", f"shop.batch.{stream.address}")
    for event in (begun, ended):
        assert offsets(event) == [("kafka://broker:9092", "orders", [(0, 10, 15), (1, 0, 3)])]
        (output,) = event["outputs"]
        assert (output["namespace"], output["name"]) == ("file", stream.address)
        assert [(one["name"], one["type"]) for one in output["facets"]["schema"]["fields"]] == [
            ("id", "int64")
        ]
    assert ended["outputs"][0]["facets"]["version"]["datasetVersion"] == stream.version
    statistics = ended["outputs"][0]["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"]) == (2, 2)
    assert statistics["size"] > 0
    assert begun["outputs"][0]["facets"].keys() == {"dataSource", "schema"}


def test_a_delivery_is_a_run_of_its_own_and_only_it_has_a_version(
    start: Start, lineage: LineageCollector, deliver: Deliver
) -> None:
    stream = start(delivery="decoupled", **ON)
    stream.run(orders(15, 0))
    stream.run(orders(15, 7))
    deliver(stream)

    events = lineage.wait_for(6)
    batch = [("START", "BATCH"), ("COMPLETE", "BATCH")]
    assert told(events) == [*batch, *batch, ("START", "DELIVERY"), ("COMPLETE", "DELIVERY")]
    assert [one for one in events if "version" in one["outputs"][0]["facets"]] == events[-1:]
    begun, ended = events[-2:]
    assert begun["run"]["runId"] == ended["run"]["runId"]
    assert len({one["run"]["runId"] for one in events}) == 3
    assert ended["run"]["facets"]["parent"]["run"]["runId"] == QUERY_ID
    assert offsets(ended) == [("kafka://broker:9092", "orders", [(0, 10, 15), (1, 0, 7)])]
    batches = ended["run"]["facets"]["penstock_batches"]
    assert (batches["firstBatchId"], batches["lastBatchId"]) == (0, 1)
    assert ended["outputs"][0]["facets"]["version"]["datasetVersion"] == stream.version
    assert ended["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 4


def test_the_replay_of_a_committed_batch_tells_of_the_same_run(
    start: Start, lineage: LineageCollector
) -> None:
    """The driver may have died between the commit and the event."""
    stream = start(**ON)
    stream.run(orders(15, 0))
    stream.batches -= 1
    stream.run(orders(15, 0))

    events = lineage.wait_for(3)
    assert [one["eventType"] for one in events] == ["START", "COMPLETE", "COMPLETE"]
    assert len({one["run"]["runId"] for one in events}) == 1
    versions = [one["outputs"][0]["facets"]["version"]["datasetVersion"] for one in events[1:]]
    assert versions == [stream.version] * 2


def test_a_batch_that_cannot_be_planned_fails_with_its_error(
    start: Start, lineage: LineageCollector, tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "_delta_log").write_text("not a directory")
    stream = start(**ON)
    with pytest.raises(PenstockError):
        stream.run(orders(15, 0))
    (event,) = lineage.wait_for(1)
    assert event["eventType"] == "FAIL"
    assert "Error: " in event["run"]["facets"]["errorMessage"]["message"]


def test_a_batch_whose_tasks_fail_is_told_by_abort(start: Start, lineage: LineageCollector) -> None:
    """No task tells which batch it is: the checkpoint does."""
    stream = start(**ON)
    stream.run(orders(15, 0))
    run_id = lineage.wait_for(2)[0]["run"]["runId"]
    source: Any = load(BUILT_IN["delta"]).data_source
    StreamWriter(load(source)(stream.options).query(), None).abort([None], 0)
    (event,) = lineage.wait_for(3)[2:]
    assert (event["eventType"], event["run"]["runId"]) == ("FAIL", run_id)


@pytest.mark.parametrize("point", ["prepare.start", "prepare.done", "commit.landed", "mark.done"])
def test_a_batch_whose_driver_dies_is_one_run_that_ends_once(
    point: str, start: Start, lineage: LineageCollector
) -> None:
    """Wherever it dies before Spark has logged the batch: its replay tells of the end."""
    stream = start(**ON)
    with crash_at(point):
        stream.run(orders(15, 0))
    stream.batches, stream.run_id = 0, "another run"
    stream.run(orders(15, 0))

    starts = 2 if point == "prepare.start" else 1  # only then its tasks write it again
    events = lineage.wait_for(starts + 1)
    assert [one["eventType"] for one in events] == ["START"] * starts + ["COMPLETE"]
    assert len({one["run"]["runId"] for one in events}) == 1
    assert events[-1]["outputs"][0]["facets"]["version"]["datasetVersion"] == stream.version
    assert events[-1]["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 2


def test_a_batch_whose_commit_fails_is_told_once_with_its_error(
    start: Start, lineage: LineageCollector
) -> None:
    def refuse() -> None:
        raise RetryableError("https://me:geheim@store does not answer")

    stream = start(**ON)
    with at_point("commit.start", refuse), pytest.raises(RetryableError):
        stream.run(orders(15, 0))
    begun, failed = lineage.wait_for(2)
    assert (begun["eventType"], failed["eventType"]) == ("START", "FAIL")
    assert begun["run"]["runId"] == failed["run"]["runId"]
    message = failed["run"]["facets"]["errorMessage"]["message"]
    assert "does not answer" in message
    assert "geheim" not in message


def test_a_delivery_has_failed_once_it_is_parked(start: Start, lineage: LineageCollector) -> None:
    """Not while it is tried again."""
    stream = start(delivery="decoupled", **ON)
    stream.run(orders(15, 0))
    with open_store(stream.store_url) as store:
        (status,) = store.streams()
        manifest = store.manifest(status.key, 0)
    assert manifest is not None
    listener, refused = TelemetryListener(), PenstockError("refused")
    listener.on_start(status, Delivery(7, manifest, "age", False, datetime.now(timezone.utc)))
    listener.on_failure(status, refused, 5.0)
    listener.on_failure(status, refused, None)
    listener.on_failure(status, refused, None)

    events = lineage.wait_for(4)[2:]
    assert told(events) == [("START", "DELIVERY"), ("FAIL", "DELIVERY")]
    assert events[1]["run"]["facets"]["errorMessage"]["message"] == "PenstockError: refused"


def test_each_target_of_a_query_has_runs_of_its_own(
    start: Start, lineage: LineageCollector, deliver: Deliver, tmp_path: Path
) -> None:
    stream = start("fanout", **ON)
    stream.run(orders(15, 0))
    deliver(stream)
    events = lineage.wait_for(8)
    tables = [str(tmp_path / one) for one in ("a", "b")]
    for table in tables:
        of_table = [one for one in events if one["outputs"][0]["name"] == table]
        assert sorted(told(of_table)) == [
            ("COMPLETE", "BATCH"),
            ("COMPLETE", "DELIVERY"),
            ("START", "BATCH"),
            ("START", "DELIVERY"),
        ]
    assert len({one["run"]["runId"] for one in events}) == 4


def test_a_batch_write_is_a_run_without_offsets(
    start: Start, lineage: LineageCollector, tmp_path: Path
) -> None:
    source: Any = load(BUILT_IN["delta"]).data_source
    sink = load(source)({"path": str(tmp_path / "t"), "lineageevents": "true"}).sink()
    plan = plan_batch_write(sink, IDS, overwrite=False)
    task = TaskAttempt(0, 0, "run", plan.batch.stream.query_id, 0)
    message = shipped(plan).write([pa.record_batch({"id": [1, 2, 3]})], task)
    commit_batch_write(sink, [message])

    begun, ended = lineage.wait_for(2)
    assert told([begun, ended]) == [("START", "BATCH"), ("COMPLETE", "BATCH")]
    assert begun["run"]["runId"] == ended["run"]["runId"]
    assert ended["inputs"] == []
    assert ended["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 3


def test_batches_go_on_if_the_collector_is_down(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    transport = {"type": "http", "url": f"http://127.0.0.1:{free_port()}", "retry": {"total": 0}}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))
    stream = start(**ON)
    with caplog.at_level(logging.WARNING, "penstock"):
        for number in range(3):
            stream.run(orders(15 + number, 0))
        wait_until(lambda: "could not be sent" in caplog.text)
    assert int(stream.version) == 3
    assert caplog.text.count("OpenLineage could not be sent") == 1


def test_one_batch_waits_for_a_slow_collector(
    start: Start, lineage: LineageCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def wait_for(is_idle: Callable[[], bool], wait_s: float) -> bool:
        waited.append(wait_s)
        return False

    sender = observer._loaded("openlineage")._sender  # type: ignore[attr-defined]
    monkeypatch.setattr(sender, "_clock", lambda: 0.0)
    monkeypatch.setattr(sender._idle, "wait_for", wait_for)
    lineage.answers.clear()
    stream = start(**ON)
    for number in range(3):
        stream.run(orders(15 + number, 0))
    lineage.answers.set()
    assert waited == [WAIT_S]
    assert int(stream.version) == 3
