"""`penstock deliver --once`: deliver the batches that are prepared now, then end."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from ..committers.errors import AccessRefusedError, PenstockError
from ..committers.store.sql import SqlManifestStore
from ..committers.store.status import StreamStatus
from .attempts import DeliveryReport, DeliveryRequest
from .context import DeliveryContext
from .stream_maintenance import has_news, is_maintenance_due, maintained_at
from .stream_settings import StreamSettings
from .worker import StreamWorker

TRIES_MAX = 5
"""Failures in a row after which the remaining batches are left for the next run."""
IDLE_MAINTENANCE_S = 2.0
"""Seconds after which no maintenance of a stream without new batches begins: the next run continues."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Result for one stream."""

    stream: StreamStatus
    is_parked: bool
    error: PenstockError | None
    """Why no delivery was attempted."""
    deliveries: int = 0
    batches: int = 0
    rows: int = 0
    left: int = 0
    """Batches that were prepared at the start and are still undelivered."""
    failure: PenstockError | None = None
    """Error of the last delivery, if it failed; also in the stream's state in the store."""
    is_busy: bool = False
    """Another process delivers the stream, and has not finished in time."""


def drain(
    store: SqlManifestStore,
    context: DeliveryContext,
    is_chosen: Callable[[StreamStatus], bool] = lambda stream: True,
) -> list[Drained]:
    """Deliver the batches of the chosen streams that are prepared now, and maintain the streams.

    A stream without new batches costs nothing, unless its maintenance is due.

    Raises:
        PenstockError: the store cannot be read.
    """
    now = context.clock()
    known = store.streams()
    context.check_names(store, known)
    streams = [stream for stream in known if is_chosen(stream)]
    context.on_poll(store, streams, now)
    changed = [stream for stream in streams if has_news(stream)]
    idle = sorted((stream for stream in streams if not has_news(stream)), key=maintained_at)
    with ThreadPoolExecutor(context.settings.parallel, "delivery") as pool:
        drained = list(pool.map(partial(_drain_stream, store, context), changed))
        ends_at = time.monotonic() + (IDLE_MAINTENANCE_S if context.settings.maintains else 0.0)
        due = [stream for stream in idle if is_maintenance_due(stream, now)]
        drained += pool.map(partial(_maintain_idle, store, context, ends_at), due)
    drained += [_without_batches(stream) for stream in idle if not is_maintenance_due(stream, now)]
    results = {one.stream.key: one for one in drained if one is not None}
    return [results[stream.key] for stream in streams if stream.key in results]


def _maintain_idle(
    store: SqlManifestStore, context: DeliveryContext, ends_at: float, stream: StreamStatus
) -> Drained | None:
    if time.monotonic() >= ends_at or context.stop.is_set():
        return _without_batches(stream)
    return _drain_stream(store, context, stream)


def _without_batches(stream: StreamStatus) -> Drained | None:
    """Return the result for a stream with nothing to do; None for a coupled one."""
    error: PenstockError | None = None
    try:
        if not StreamSettings.parse(stream.settings).is_decoupled:
            return None
    except PenstockError as raised:
        error = raised
    return Drained(stream, stream.delivery.parked_at is not None, error)


def _drain_stream(store: SqlManifestStore, context: DeliveryContext, stream: StreamStatus) -> Drained | None:
    """Deliver one stream; None for a coupled one."""
    worker, reports, failures = StreamWorker(stream, store, context), list[DeliveryReport](), 0
    failure: PenstockError | None = None
    error: PenstockError | None = None
    last = -1 if stream.last is None else stream.last.batch.batch_id
    request = DeliveryRequest("drain", last)
    busy_since: float | None = None
    try:
        worker.see(stream)
        if not worker.is_decoupled:
            return None
        while _left(store, stream, last) and not context.stop.is_set():
            attempt = worker.attempt(request)
            reports += attempt.reports
            if not attempt.is_busy:
                busy_since = None
            elif busy_since is None:
                busy_since = time.monotonic()
            if attempt.failure is not None:
                failure, failures = attempt.failure.error, 1 if attempt.reports else failures + 1
                retry_at = attempt.failure.retry_at
                if retry_at is None or failures == TRIES_MAX or isinstance(failure, AccessRefusedError):
                    break
                context.stop.wait(max((retry_at - context.clock()).total_seconds(), 0.0))
            elif busy_since is not None:
                wait_s = busy_since + context.settings.lease_wait_s - time.monotonic()
                if wait_s <= 0:
                    break
                context.stop.wait(min(wait_s, context.settings.poll_s))
            elif not attempt.reports:  # parked, or not in Spark's commit log yet
                break
        worker.deliver_letters()
        has_failed = failure is not None and _left(store, stream, last) > 0
        if context.settings.maintains and not has_failed and not context.stop.is_set():
            reports += worker.attempt(DeliveryRequest(is_maintenance=True)).reports
    except PenstockError as raised:
        error = raised
    left = _left(store, stream, last)
    return Drained(
        stream,
        is_parked=store.deliveries.state(stream.key).parked_at is not None,
        error=error,
        deliveries=len(reports),
        batches=sum(len(report.delivered.delivery.manifest.batches) for report in reports),
        rows=sum(report.delivered.delivery.manifest.rows for report in reports),
        left=left,
        failure=failure if left else None,
        is_busy=left > 0 and busy_since is not None,
    )


def _left(store: SqlManifestStore, stream: StreamStatus, last: int) -> int:
    return store.deliveries.backlog(stream.key, before=last + 1).batches
