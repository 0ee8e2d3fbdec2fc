"""Prometheus metrics of streams and deliveries.

Metrics of streams come from the last reading of the store, whichever process delivers. Ages are computed at
each scrape, so that they grow while the store is down. Counters and histograms of deliveries cover this
process only. Streams with the same query name and table, such as before and after `reset-query-id`, are one
series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ..committers.contract import Committed, StreamKey
from ..committers.errors import ManifestCorruptError
from ..committers.requests.contract import Counters
from ..committers.store.database import Clock
from ..committers.store.sql import utc_now
from ..committers.store.status import StreamStatus
from ..committers.texts.safe_text import one_line
from .attempts import DeliveryListener, DeliveryReport
from .stream_settings import StreamSettings

Value: TypeAlias = "Callable[[StreamStatus, datetime], float | None]"
"""None: the stream does not have the metric."""
Family: TypeAlias = type[GaugeMetricFamily] | type[CounterMetricFamily]

MetricT = TypeVar("MetricT", Gauge, Counter)

LABELS = ("query_name", "table")
SECONDS = (0.5, 1, 2.5, 5, 10, 20, 30, 45, 60, 75, 90, 120, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600)


@dataclass(frozen=True, slots=True)
class StreamMetric:
    """A metric of each stream, read from the store."""

    name: str
    help: str
    value: Value
    join: Callable[[float, float], float] = max
    """Combines streams that have the same labels."""
    family: Family = GaugeMetricFamily


def _plus(one: float, other: float) -> float:
    return one + other


def _age_s(stream: StreamStatus, now: datetime) -> float:
    oldest = stream.backlog.oldest_prepared_at
    return 0.0 if oldest is None else max((now - oldest).total_seconds(), 0.0)


def _prepared_at(stream: StreamStatus, now: datetime) -> float | None:
    """None for a stream of dead letters, which is silent while all is well."""
    with suppress(ManifestCorruptError):
        if StreamSettings.parse(stream.settings).is_of_dead_letters:
            return None
    return (stream.created_at if stream.last is None else stream.last.prepared_at).timestamp()


STREAM_METRICS = (
    StreamMetric(
        "penstock_backlog_batches",
        "Batches that are prepared and not committed yet.",
        lambda stream, now: stream.backlog.batches,
        _plus,
    ),
    StreamMetric(
        "penstock_backlog_bytes",
        "Bytes of the data files that are prepared and not committed yet.",
        lambda stream, now: stream.backlog.size_bytes,
        _plus,
    ),
    StreamMetric("penstock_backlog_age_seconds", "Age of the oldest batch in the backlog.", _age_s),
    StreamMetric(
        "penstock_parked",
        "1 if the stream is parked until an operator resumes it.",
        lambda stream, now: stream.delivery.parked_at is not None,
    ),
    StreamMetric(
        "penstock_query_waiting",
        "1 if the query waits because its backlog is full.",
        lambda stream, now: stream.waiting_since is not None,
    ),
    StreamMetric(
        "penstock_last_prepare_timestamp_seconds",
        "Time when the newest batch was prepared; before the first batch, when the query was started.",
        _prepared_at,
    ),
    StreamMetric(
        "penstock_dead_letters",
        "Rows that were refused and are in the dead-letter table.",
        lambda stream, now: stream.dead_letters_written,
        _plus,
        CounterMetricFamily,
    ),
    StreamMetric(
        "penstock_dead_letters_waiting",
        "Dead letters that wait in the store until the dead-letter table has them.",
        lambda stream, now: stream.dead_letters_waiting,
        _plus,
    ),
    StreamMetric(
        "penstock_skipped_rows",
        "Rows of batches that operators have skipped.",
        lambda stream, now: stream.skipped.rows,
        _plus,
        CounterMetricFamily,
    ),
    StreamMetric(
        "penstock_skipped_unacknowledged",
        "Skipped batches that no operator has acknowledged.",
        lambda stream, now: len(stream.skipped.unacknowledged),
        _plus,
    ),
    *(
        StreamMetric(f"penstock_committed_{unit}", help_text, value, _plus, CounterMetricFamily)
        for unit, help_text, value in (
            ("batches", "Batches in the table.", lambda stream, now: stream.committed_batches),
            ("rows", "Rows of these batches.", lambda stream, now: stream.committed_rows),
            ("bytes", "Bytes of their data files.", lambda stream, now: stream.committed_bytes),
        )
    ),
)


class StreamMetricsCollector(Collector):
    """Computed at each scrape, so that streams that no longer exist disappear."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._streams: dict[str, Sequence[StreamStatus]] = {}

    def on_poll(self, store: str, streams: Sequence[StreamStatus]) -> None:
        self._streams[store] = streams

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        now = self._clock()
        streams = [stream for streams in list(self._streams.values()) for stream in streams]
        for metric in STREAM_METRICS:
            values: dict[tuple[str, str], float] = {}
            for stream in streams:
                labels, found = labels_of(stream), metric.value(stream, now)
                if found is None:
                    continue
                value = float(found)
                values[labels] = metric.join(values[labels], value) if labels in values else value
            family = metric.family(metric.name, metric.help, labels=LABELS)
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family


REQUEST_COUNTERS: tuple[tuple[str, str, Callable[[Counters], int]], ...] = (
    ("sent_rows", "Rows that were sent in requests; each attempt counts.", lambda one: one.sent),
    ("retried_rows", "Rows that were not accepted and are sent again.", lambda one: one.retried),
    ("requests", "Requests that were sent.", lambda one: one.requests),
    ("throttled_requests", "Requests that the service throttled.", lambda one: one.throttled_requests),
    ("timed_out_requests", "Requests without a response in time.", lambda one: one.timed_out_requests),
)


@dataclass(frozen=True, slots=True)
class _Sending:
    """What this process has sent for one stream."""

    labels: tuple[str, str]
    done: Sequence[int]
    """Totals of earlier deliveries."""
    current: Counters
    """Of the newest delivery, maybe live."""

    def totals(self) -> list[int]:
        return [
            done + count(self.current)
            for done, (_, _, count) in zip(self.done, REQUEST_COUNTERS, strict=True)
        ]


class RequestMetricsCollector(Collector):
    """Reads the live counters of deliveries that send requests, so that an outage shows before they end."""

    def __init__(self) -> None:
        self._sending: dict[StreamKey, _Sending] = {}

    def on_sending(self, stream: StreamStatus, counters: Counters) -> None:
        before = self._sending.get(stream.key)
        done = [0] * len(REQUEST_COUNTERS) if before is None else before.totals()
        self._sending[stream.key] = _Sending(labels_of(stream), done, counters)

    def on_stream(self, stream: StreamStatus) -> None:
        """Begin at zero, so that alerts find the counters before the first request."""
        if stream.key not in self._sending:
            self.on_sending(stream, Counters())

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        of_labels: dict[tuple[str, str], list[_Sending]] = {}
        for sending in list(self._sending.values()):
            of_labels.setdefault(sending.labels, []).append(sending)
        for number, (name, help_text, _) in enumerate(REQUEST_COUNTERS):
            counter = CounterMetricFamily(f"penstock_{name}", help_text, labels=LABELS)
            for labels, streams in of_labels.items():
                counter.add_metric(labels, sum(one.totals()[number] for one in streams))
            yield counter
        gauge = GaugeMetricFamily(
            "penstock_in_flight_rows_max",
            "How many rows may be in flight, as throttled requests have taught.",
            labels=LABELS,
        )
        for labels, streams in of_labels.items():
            gauge.add_metric(labels, sum(one.current.in_flight_max for one in streams))
        yield gauge


def _is_decoupled(stream: StreamStatus) -> bool:
    with suppress(ManifestCorruptError):
        return StreamSettings.parse(stream.settings).is_decoupled
    return False


def labels_of(stream: StreamStatus) -> tuple[str, str]:
    return (one_line(stream.query_name or stream.key.query_id), one_line(stream.key.table_uri))


class Metrics(DeliveryListener):
    """All metrics of a delivery process.

    Args:
        stores: names of the stores; each counts as down until it is read
        delivers: whether this process delivers. Then its metrics of deliveries are there from the start
    """

    def __init__(self, stores: Sequence[str] = (), clock: Clock = utc_now, *, delivers: bool = True) -> None:
        self._delivers = delivers
        self._shown: set[tuple[str, str]] = set()
        """Streams whose metrics of deliveries are there."""
        self.registry = CollectorRegistry()
        self._stream_metrics = StreamMetricsCollector(clock)
        self._request_metrics = RequestMetricsCollector()
        self.registry.register(self._stream_metrics)
        self.registry.register(self._request_metrics)
        self._store_up = self._of_store(Gauge, "up", "1 if the last attempt to read the store succeeded.")
        self._store_read_at = self._of_store(
            Gauge, "last_poll_timestamp_seconds", "Time when the store was last read."
        )
        self._store_errors = self._of_store(Counter, "errors", "Failed attempts to read the store.")
        for store in stores:
            self._store_up.labels(store)
            self._store_read_at.labels(store)
            self._store_errors.labels(store)
        self._deliveries = self._counter("deliveries", "Deliveries, by trigger.", "trigger")
        self._rows = self._counter("delivered_rows", "Rows that were delivered.")
        self._replaced = self._counter(
            "replaced_rows", "Rows that were not sent, as a later row of the same key replaces them."
        )
        self._batches = self._counter("delivered_batches", "Batches that were delivered.")
        self._failures = self._counter("failures", "Failed attempts to deliver.")
        self._seconds = self._histogram(
            "delivery_seconds", "Duration of a delivery, from choosing the batches to the commit."
        )
        self._freshness = self._histogram(
            "freshness_seconds", "Time from the prepare of a delivery's oldest batch to the commit."
        )
        self._event_freshness = self._histogram(
            "event_freshness_seconds", "Time from a delivery's oldest event time to the commit."
        )
        self._last_success = Gauge(
            "penstock_last_success_timestamp",
            "Time of the last successful delivery; before it, when this process has found the stream.",
            LABELS,
            registry=self.registry,
        )

    def _of_store(self, kind: type[MetricT], name: str, help_text: str) -> MetricT:
        return kind(f"penstock_store_{name}", help_text, ("store",), registry=self.registry)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"penstock_{name}", help_text, (*LABELS, *labels), registry=self.registry)

    def _histogram(self, name: str, help_text: str) -> Histogram:
        return Histogram(f"penstock_{name}", help_text, LABELS, registry=self.registry, buckets=SECONDS)

    def on_poll(self, store: str, streams: Sequence[StreamStatus], now: datetime) -> None:
        self._stream_metrics.on_poll(store, streams)
        self._store_up.labels(store).set(1)
        self._store_read_at.labels(store).set(now.timestamp())
        self._store_errors.labels(store)
        for stream in streams:
            self._failures.labels(*labels_of(stream))
            if self._delivers and labels_of(stream) not in self._shown and _is_decoupled(stream):
                self._show(stream, now)

    def _show(self, stream: StreamStatus, now: datetime) -> None:
        """Begin the metrics that alerts use, which otherwise would find none before the first delivery."""
        labels = labels_of(stream)
        self._shown.add(labels)
        for metric in (self._seconds, self._freshness, self._rows, self._batches):
            metric.labels(*labels)
        self._last_success.labels(*labels).set(now.timestamp())
        self._request_metrics.on_stream(stream)

    def on_store_failure(self, store: str, error: Exception) -> None:
        self._store_up.labels(store).set(0)
        self._store_errors.labels(store).inc()

    def on_sending(self, stream: StreamStatus, counters: Counters) -> None:
        self._request_metrics.on_sending(stream, counters)

    def on_delivery(self, report: DeliveryReport) -> None:
        labels, delivered = labels_of(report.stream), report.delivered
        self._shown.add(labels)
        delivery, committed_at = delivered.delivery, delivered.committed_at
        self._deliveries.labels(*labels, delivery.trigger).inc()
        self._rows.labels(*labels).inc(delivery.manifest.rows)
        if isinstance(delivered.outcome, Committed) and delivered.outcome.replaced_rows:
            self._replaced.labels(*labels).inc(delivered.outcome.replaced_rows)
        self._batches.labels(*labels).inc(len(delivery.manifest.batches))
        self._seconds.labels(*labels).observe(report.seconds)
        self._last_success.labels(*labels).set(committed_at.timestamp())
        for histogram, since in (
            (self._freshness, report.oldest_prepared_at),
            (self._event_freshness, delivery.manifest.oldest_event_at),
        ):
            if since is not None:
                histogram.labels(*labels).observe(max((committed_at - since).total_seconds(), 0.0))

    def on_failure(self, stream: StreamStatus, error: Exception, wait_s: float | None) -> None:
        self._failures.labels(*labels_of(stream)).inc()
