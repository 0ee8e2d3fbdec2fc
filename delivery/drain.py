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
from .worker import StreamWorker

TRIES_MAX = 5
"""Failures in a row after which the remaining batches are left for the next run."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Result for one stream."""

    stream: StreamStatus
    deliveries: int
    batches: int
    rows: int
    left: int
    """Batches that were prepared at the start and are still undelivered."""
    failure: PenstockError | None
    """Error of the last delivery, if it failed; also in the stream's state in the store."""
    error: PenstockError | None
    """Why no delivery was attempted."""
    is_parked: bool
    is_busy: bool
    """Another process delivers the stream, and has not finished in time."""


def drain(
    store: SqlManifestStore,
    context: DeliveryContext,
    is_chosen: Callable[[StreamStatus], bool] = lambda stream: True,
) -> list[Drained]:
    """Deliver the batches of the chosen streams that are prepared now.

    Raises:
        PenstockError: the store cannot be read.
    """
    streams = [stream for stream in store.streams() if is_chosen(stream)]
    context.on_poll(store, streams, context.clock())
    with ThreadPoolExecutor(context.settings.parallel, "delivery") as pool:
        drained = pool.map(partial(_drain_stream, store, context), streams)
        return [one for one in drained if one is not None]


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
    state = store.deliveries.state(stream.key)
    return Drained(
        stream,
        deliveries=len(reports),
        batches=sum(len(report.delivered.delivery.manifest.batches) for report in reports),
        rows=sum(report.delivered.delivery.manifest.rows for report in reports),
        left=left,
        failure=failure if left else None,
        error=error,
        is_parked=state.parked_at is not None,
        is_busy=left > 0 and busy_since is not None,
    )


def _left(store: SqlManifestStore, stream: StreamStatus, last: int) -> int:
    return store.deliveries.backlog(stream.key, before=last + 1).batches
