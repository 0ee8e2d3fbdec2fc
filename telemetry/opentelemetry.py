"""Spans and metrics by the official SDK of OpenTelemetry, configured by its environment variables `OTEL_*`.

A batch has one trace. Its id and that of its first span, `batch`, are derived from the batch, so each process
finds them: nothing is stored, and a delivery after a restart belongs to the same trace. Executors get them as
the W3C trace context, with the decision of the driver whether the trace is sampled.
"""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points, version
from typing import Any, TypeVar

from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ..committers.contract import Batch
from ..committers.texts.safe_text import one_line, safe
from . import observer as base
from .observer import Run, Step, Value
from .sending import Sender, quietly, silence

SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_FLUSH_MS = 10_000

ExporterT = TypeVar("ExporterT", SpanExporter, MetricExporter)


class ExportError(Exception):
    """An exporter could not send."""


class _Ids(IdGenerator):
    """Random ids, but for the first span of a batch."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self._given = threading.local()

    @contextmanager
    def giving(self, context: SpanContext) -> Iterator[None]:
        self._given.context = context
        try:
            yield
        finally:
            self._given.context = None

    def generate_span_id(self) -> int:
        given: SpanContext | None = getattr(self._given, "context", None)
        return self._random.generate_span_id() if given is None else given.span_id

    def generate_trace_id(self) -> int:
        given: SpanContext | None = getattr(self._given, "context", None)
        return self._random.generate_trace_id() if given is None else given.trace_id


class _Failures:
    """Notices exports that have failed, of which the SDK does not tell."""

    def __init__(self) -> None:
        self._problem = ""

    def watch(self, exporter: ExporterT) -> ExporterT:
        """Return the exporter, which no longer logs its failures."""
        export = exporter.export
        is_of_spans = isinstance(exporter, SpanExporter)
        failure = SpanExportResult.FAILURE if is_of_spans else MetricExportResult.FAILURE
        silence(type(exporter).__module__)

        def watched(*arguments: Any, **named: Any) -> Any:
            try:
                with quietly():
                    result = export(*arguments, **named)
            except Exception as error:  # noqa: BLE001  the SDK would log it each time
                self._problem = f"{type(error).__name__}: {error}"
                return failure
            if result is failure:
                self._problem = f"{type(exporter).__name__} has failed; is there a collector at its endpoint?"
            return result

        setattr(exporter, "export", watched)  # noqa: B010  mypy refuses the assignment
        return exporter

    def check(self) -> None:
        problem, self._problem = self._problem, ""
        if problem:
            raise ExportError(problem)


def exporters(signal: str) -> list[Any]:
    """Return the exporters that `OTEL_TRACES_EXPORTER` or `OTEL_METRICS_EXPORTER` name, as the SDK's own
    configuration does: `otlp` if it names none.

    Args:
        signal: `traces` or `metrics`
    """
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    protocol = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", protocol)
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    named = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER") or "otlp"
    names = [name for name in map(str.strip, named.split(",")) if name not in ("", "none")]
    found = []
    for name in names:
        wanted = otlp if name == "otlp" else name
        known = [one for one in entry_points(group=f"opentelemetry_{signal}_exporter") if one.name == wanted]
        if not known:
            raise ExportError(f"OTEL_{signal.upper()}_EXPORTER={name}: no installed package has it")
        found.append(known[0].load()())
    return found


def resource() -> Resource:
    """Return what describes this process: each has counters of its own."""
    given = os.environ.get("OTEL_SERVICE_NAME") or SERVICE_NAME in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    named = {} if given else {SERVICE_NAME: "penstock"}
    return Resource.create({**named, SERVICE_INSTANCE_ID: str(uuid.uuid4()), "process.pid": os.getpid()})


class OpenTelemetry(base.Observer):
    """Records spans and metrics, and exports them in the background after each batch.

    Args:
        span_exporters, metric_exporters: for tests; None: those of the environment
    """

    def __init__(
        self,
        span_exporters: Sequence[SpanExporter] | None = None,
        metric_exporters: Sequence[MetricExporter] | None = None,
    ) -> None:
        self._ids, self._failures = _Ids(), _Failures()
        self._sender = Sender("OpenTelemetry")
        self._is_flushing = threading.Event()
        of_process = resource()
        self._traces = TracerProvider(resource=of_process, id_generator=self._ids, shutdown_on_exit=False)
        for spans in exporters("traces") if span_exporters is None else span_exporters:
            self._traces.add_span_processor(BatchSpanProcessor(self._failures.watch(spans)))
        readers = [
            PeriodicExportingMetricReader(self._failures.watch(metrics))
            for metrics in (exporters("metrics") if metric_exporters is None else metric_exporters)
        ]
        self._metrics = MeterProvider(readers, resource=of_process, shutdown_on_exit=False)
        name, of = "penstock", version("penstock")
        self._tracer, self._meter = self._traces.get_tracer(name, of), self._metrics.get_meter(name, of)
        self._counters: dict[str, Any] = {}
        self._seconds = {
            one: self._meter.create_histogram(
                f"penstock_{one}_seconds", "s", explicit_bucket_boundaries_advisory=SECONDS
            )
            for one in ("step", "delivery")
        }

    # Traces -----------------------------------------------------------------------------------------

    def traceparent(self, batch: Batch) -> str:
        """See `Observer`."""
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, _within(self._first_span(batch)))
        return carrier.get("traceparent", "")

    def on_step(self, step: Step) -> None:
        """Record a span that has ended."""
        if step.name == "batch" and not step.error:
            first = self._first_span(step.batch)
            with self._ids.giving(first):
                self._record(step, Context())
        else:
            self._record(step, self._context(step))
        labels = {**_labels(step), "step": step.name}
        self._seconds["step"].record(max(step.ended_at - step.began_at, 0.0), labels)
        if step.error and step.name in ("batch", "plan"):
            self._count("failures", 1, labels)
        self._flush()

    def _context(self, step: Step) -> Context:
        if not step.query.traceparent:
            return _within(self._first_span(step.batch))
        return TraceContextTextMapPropagator().extract({"traceparent": step.query.traceparent})

    def _record(self, step: Step, context: Context) -> None:
        batch = step.batch
        values = {
            "penstock.query_name": step.query.query_name,
            "penstock.query_id": batch.stream.query_id,
            "penstock.table": batch.stream.table_uri,
            "penstock.batch_id": batch.batch_id,
            **{f"penstock.{name}": value for name, value in step.values.items()},
        }
        texts = {name: safe(value) if isinstance(value, str) else value for name, value in values.items()}
        span = self._tracer.start_span(step.name, context, attributes=texts, start_time=_ns(step.began_at))
        if step.error:
            kind, _, message = step.error.partition(": ")
            span.add_event(
                "exception",
                {"exception.type": kind, "exception.message": safe(message)},
                timestamp=_ns(step.ended_at),
            )
            span.set_status(Status(StatusCode.ERROR, one_line(safe(step.error))))
        span.end(_ns(step.ended_at))

    def _first_span(self, batch: Batch) -> SpanContext:
        key = f"{batch.stream.query_id}/{batch.batch_id}/{batch.digest}".encode()
        digest = hashlib.sha256(b"penstock/trace/" + key).digest()
        trace_id, span_id = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
        is_sampled = (
            self._traces.sampler.should_sample(None, trace_id, "batch").decision is Decision.RECORD_AND_SAMPLE
        )
        flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
        return SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)

    # Metrics ----------------------------------------------------------------------------------------

    def on_complete(self, run: Run) -> None:
        """Count what is in the table, or prepared."""
        labels = _labels_of(run)
        what = "committed" if run.is_committed else "prepared"
        for unit, value in (("batches", len(run.batches)), ("rows", run.rows), ("bytes", run.size_bytes)):
            self._count(f"{what}_{unit}", value, labels)
            if run.delivery_id is not None and unit != "bytes":
                self._count(f"delivered_{unit}", value, labels)
        if run.delivery_id is not None:
            self._count("deliveries", 1, {**labels, "trigger": run.trigger})
            self._seconds["delivery"].record(run.seconds, labels)
        self._flush()

    def on_failed_attempt(self, run: Run) -> None:
        self._count("failures", 1, {**_labels_of(run), "step": "deliver"})
        self._flush()

    def _count(self, name: str, value: int, labels: dict[str, Value]) -> None:
        if name not in self._counters:
            self._counters[name] = self._meter.create_counter(f"penstock_{name}")
        self._counters[name].add(value, labels)

    # Sending ----------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send what there is, in the background. The SDK's own interval is too long for Spark's processes."""
        if not self._is_flushing.is_set():
            self._is_flushing.set()
            self._sender.put(self._send)

    def _send(self) -> None:
        self._is_flushing.clear()
        self._traces.force_flush(_FLUSH_MS)
        self._metrics.force_flush(_FLUSH_MS)
        self._failures.check()

    def wait(self, wait_s: float) -> None:
        self._sender.wait(wait_s)


def _within(first: SpanContext) -> Context:
    return set_span_in_context(NonRecordingSpan(first), Context())


def _labels(step: Step) -> dict[str, Value]:
    return _named(step.query.query_name, step.batch)


def _labels_of(run: Run) -> dict[str, Value]:
    return _named(run.query.query_name, run.batch)


def _named(query_name: str, batch: Batch) -> dict[str, Value]:
    """The labels of the Prometheus metrics."""
    stream = batch.stream
    return {"query_name": one_line(query_name or stream.query_id), "table": one_line(stream.table_uri)}


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def observer() -> OpenTelemetry:
    """Return the observer of a process."""
    return OpenTelemetry()
