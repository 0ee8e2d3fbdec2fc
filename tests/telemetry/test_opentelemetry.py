"""One trace a batch, over driver, tasks and delivery; metrics with the names of the Prometheus ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from servers.ports import free_port
from tests.support.backlogs import wait_until
from tests.support.planned_stream import QUERY_ID, Stream, orders
from tests.telemetry.conftest import Start

from penstock.committers.contract import Batch, StreamKey
from penstock.committers.errors import PenstockError
from penstock.telemetry import observer
from penstock.telemetry.opentelemetry import ExportError, OpenTelemetry, exporters

ON = {"openTelemetry": "true"}
BATCH = Batch(StreamKey(QUERY_ID, "/lake/t"), 7, "ab" * 32)

Deliver = Callable[[Stream], None]


class Metrics(MetricExporter):
    """Keeps the newest values, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, dict[tuple[Any, ...], Any]] = {}

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object
    ) -> MetricExportResult:
        for scope in (one for resource in metrics_data.resource_metrics for one in resource.scope_metrics):
            for metric in scope.metrics:
                of_name = self.values.setdefault(metric.name, {})
                for point in metric.data.data_points:
                    labels = tuple(sorted((point.attributes or {}).items()))
                    of_name[labels] = getattr(point, "value", None) or getattr(point, "count", None)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        pass


class Process:
    """A process with an observer of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._spans, self.metrics = InMemorySpanExporter(), Metrics()
        self.observer = OpenTelemetry([self._spans], [self.metrics])
        monkeypatch.setattr(observer, "_observer", lambda name: self.observer)

    def spans(self, name: str = "") -> Sequence[ReadableSpan]:
        self.observer.wait(5)
        return [one for one in self._spans.get_finished_spans() if name in ("", one.name)]


def trace_ids(spans: Sequence[ReadableSpan]) -> set[int]:
    return {one.context.trace_id for one in spans if one.context is not None}


def test_the_spans_of_a_batch_are_in_one_trace_below_its_first_span(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(monkeypatch)
    stream = start(**ON)
    stream.run(orders(15, 0))

    spans = process.spans()
    assert sorted(one.name for one in spans) == ["batch", "commit", "plan", "prepare", "write", "write"]
    assert len(trace_ids(spans)) == 1
    (first,) = process.spans("batch")
    assert first.parent is None
    for one in spans:
        assert one is first or (one.parent is not None and one.parent.span_id == first.context.span_id)
        assert first.start_time is not None
        assert one.start_time is not None
        assert one.end_time is not None
        assert first.start_time <= one.start_time <= one.end_time <= (first.end_time or 0)
    attributes = dict(process.spans("commit")[0].attributes or {})
    assert attributes["penstock.query_name"] == "shop"
    assert (attributes["penstock.batch_id"], attributes["penstock.rows"]) == (0, 2)
    assert {(one.attributes or {})["penstock.partition"] for one in process.spans("write")} == {0, 1}


def test_a_delivery_in_another_process_goes_on_with_the_traces_of_its_batches(
    start: Start, monkeypatch: pytest.MonkeyPatch, deliver: Deliver
) -> None:
    driver = Process(monkeypatch)
    stream = start(delivery="decoupled", **ON)
    stream.run(orders(15, 0))
    stream.run(orders(15, 7))
    firsts = {(one.context.trace_id, one.context.span_id) for one in driver.spans("batch") if one.context}
    other = Process(monkeypatch)
    deliver(stream)

    delivered = other.spans()
    assert [one.name for one in delivered] == ["deliver", "deliver"]
    assert {(one.parent.trace_id, one.parent.span_id) for one in delivered if one.parent} == firsts
    assert len(firsts) == 2
    labels = (("query_name", "shop"), ("table", stream.address))
    values = other.metrics.values
    assert (values["penstock_delivered_rows"][labels], values["penstock_delivered_batches"][labels]) == (4, 2)
    assert driver.metrics.values["penstock_prepared_rows"][labels] == 4
    assert "penstock_committed_rows" not in driver.metrics.values
    assert values["penstock_committed_rows"][labels] == 4


def test_a_failed_batch_has_spans_with_its_error_and_is_counted(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "_delta_log").write_text("not a directory")
    process = Process(monkeypatch)
    with pytest.raises(PenstockError):
        start(**ON).run(orders(15, 0))
    (span,) = process.spans()
    assert span.name == "plan"
    assert not span.status.is_ok
    assert [event.name for event in span.events] == ["exception"]
    assert list(process.metrics.values["penstock_failures"].values()) == [1]


def test_the_trace_context_of_a_batch_is_the_same_everywhere_and_is_a_w3c_one() -> None:
    one, other = OpenTelemetry([], []), OpenTelemetry([], [])
    version, trace_id, span_id, flags = one.traceparent(BATCH).split("-")
    assert (version, len(trace_id), len(span_id), flags) == ("00", 32, 16, "01")
    assert other.traceparent(BATCH) == one.traceparent(BATCH)


def test_the_driver_decides_whether_a_batch_is_sampled(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    process = Process(monkeypatch)
    assert process.observer.traceparent(BATCH).endswith("-00")
    start(**ON).run(orders(15, 0))
    assert not process.spans()
    assert "penstock_committed_rows" in process.metrics.values


def test_exporters_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [type(one).__name__ for one in exporters("traces")] == ["OTLPSpanExporter"]
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console, none")
    assert [type(one).__name__ for one in exporters("traces")] == ["ConsoleSpanExporter"]
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert exporters("metrics") == []
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "typo")
    with pytest.raises(ExportError, match="OTEL_METRICS_EXPORTER=typo"):
        exporters("metrics")


def test_batches_go_on_if_the_collector_is_down(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log, and none of the SDK."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
    stream = start(**ON)
    stream.run(orders(15, 0))
    with caplog.at_level(logging.INFO):
        for number in range(3):
            stream.run(orders(16 + number, 0))
        wait_until(lambda: "OpenTelemetry could not be sent" in caplog.text)
    assert int(stream.version) == 4
    loggers = {one.name for one in caplog.records if one.levelno >= logging.WARNING}
    assert loggers == {"penstock.telemetry.sending"}
    assert caplog.text.count("OpenTelemetry could not be sent") == 1


def test_an_observer_that_cannot_start_is_off_and_the_batch_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "typo")
    stream = start(**ON)
    with caplog.at_level(logging.WARNING, "penstock"):
        stream.run(orders(15, 0))
    assert int(stream.version) >= 0
    assert caplog.text.count("opentelemetry is off in this process") == 1
