"""Tells the observers of each query what the delivery process does with its batches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache

from ..committers.contract import StreamKey
from ..committers.deliveries.contract import Delivery
from ..committers.errors import ManifestCorruptError
from ..committers.store.status import StreamStatus
from ..telemetry.observer import (
    OPENLINEAGE,
    OPENTELEMETRY,
    Observed,
    Observers,
    Run,
    Step,
    Value,
    error_text,
)
from .attempts import DeliveryListener, DeliveryReport
from .stream_settings import StreamSettings

SPANS_MAX = 100
"""Batches of a delivery that get a span for it in their traces: the newest ones."""
SETTINGS_CACHED = 1000


class TelemetryListener(DeliveryListener):
    """A delivery is a run of OpenLineage. OpenTelemetry gets a span in the trace of each of its batches.

    Which observers a query has is in its settings in the store.
    """

    def __init__(self) -> None:
        self._started: dict[StreamKey, Delivery] = {}
        """Deliveries that have not ended."""

    def on_start(self, stream: StreamStatus, delivery: Delivery) -> None:
        query = _observed(stream.query_name, stream.settings)
        if query is not None:
            self._started[stream.key] = delivery
            Observers(query).on_start(_run(query, stream, delivery))

    def on_delivery(self, report: DeliveryReport) -> None:
        stream, delivered = report.stream, report.delivered
        query = _observed(stream.query_name, stream.settings)
        if query is None:
            return
        self._started.pop(stream.key, None)
        observers, ended_at = Observers(query), time.time()
        run = _run(query, stream, delivered.delivery, delivered.outcome.table_version, report.seconds)
        values: dict[str, Value] = {
            "delivery_id": delivered.delivery.delivery_id,
            "trigger": delivered.delivery.trigger,
            "batches": len(run.batches),
            "rows": run.rows,
        }
        for batch in run.batches[-SPANS_MAX:]:
            observers.on_step(
                Step("deliver", query, batch, ended_at - report.seconds, ended_at, values=values)
            )
        observers.on_complete(run)

    def on_failure(self, stream: StreamStatus, error: Exception, wait_s: float | None) -> None:
        """A delivery that is tried again has not failed for good: the same run goes on."""
        query = _observed(stream.query_name, stream.settings)
        delivery = self._started.get(stream.key)
        if query is None or delivery is None:
            return
        observers, run = Observers(query), _run(query, stream, delivery)
        observers.on_failed_attempt(run)
        if wait_s is None:
            del self._started[stream.key]
            observers.on_fail(run, error_text(error))


def _run(
    query: Observed,
    stream: StreamStatus,
    delivery: Delivery,
    table_version: int | None = None,
    seconds: float = 0.0,
) -> Run:
    manifest = delivery.manifest
    return Run(
        query,
        manifest.batches,
        stream.kind,
        delivery_id=delivery.delivery_id,
        sources=manifest.sources,
        is_committed=True,
        table_version=table_version,
        rows=manifest.rows,
        size_bytes=manifest.size_bytes,
        files=manifest.files,
        seconds=seconds,
        trigger=delivery.trigger,
    )


@lru_cache(SETTINGS_CACHED)
def _observed(query_name: str, settings: str) -> Observed | None:
    """Return what the observers of a query get of it; None if it has none, or its settings are damaged."""
    try:
        options = StreamSettings.parse(settings).options
        names = _observers_in(options)
    except ManifestCorruptError:
        return None
    return Observed(names, query_name, kafka=options.get("lineageKafka", "")) if names else None


def _observers_in(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the observers that the options in the store turn on."""
    wanted = {OPENLINEAGE: options.get("lineageEvents", ""), OPENTELEMETRY: options.get("openTelemetry", "")}
    return tuple(name for name, text in wanted.items() if text.strip().lower() == "true")
