"""`penstock deliver --once`: deliver the batches that are prepared now, then end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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
    drains = [_Drain(store, context, stream) for stream in changed]
    with ThreadPoolExecutor(context.settings.parallel, "delivery") as pool:
        # The rows of a stream do not wait for the maintenance of another one.
        for step in (_Drain.deliver, _Drain.maintain):
            list(pool.map(step, drains))
        drained = [one.result() for one in drains]
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
    drain = _Drain(store, context, stream)
    drain.deliver()
    drain.maintain()
    return drain.result()


def _without_batches(stream: StreamStatus) -> Drained | None:
    """Return the result for a stream with nothing to do; None for a coupled one."""
    error: PenstockError | None = None
    try:
        if not StreamSettings.parse(stream.settings).is_decoupled:
            return None
    except PenstockError as raised:
        error = raised
    return Drained(stream, stream.delivery.parked_at is not None, error)


class _Drain:
    """One stream: its deliveries, and then its maintenance."""

    def __init__(self, store: SqlManifestStore, context: DeliveryContext, stream: StreamStatus) -> None:
        self._store = store
        self._context = context
        self._stream = stream
        self._worker = StreamWorker(stream, store, context)
        self._last = -1 if stream.last is None else stream.last.batch.batch_id
        self._deliveries = self._batches = self._rows = 0
        self._failure: PenstockError | None = None
        self._error: PenstockError | None = None
        self._busy_since: float | None = None

    def deliver(self) -> None:
        try:
            self._worker.see(self._stream)
            if self._worker.is_decoupled:
                self._deliver()
                self._worker.deliver_letters()
        except PenstockError as error:
            self._error = error

    def _deliver(self) -> None:
        context, failures = self._context, 0
        request = DeliveryRequest("drain", self._last)
        while self._left() and not context.stop.is_set():
            attempt = self._worker.attempt(request)
            self._count(attempt.reports)
            if not attempt.is_busy:
                self._busy_since = None
            elif self._busy_since is None:
                self._busy_since = time.monotonic()
            if attempt.failure is not None:
                error, failures = attempt.failure.error, 1 if attempt.reports else failures + 1
                self._failure, retry_at = error, attempt.failure.retry_at
                if retry_at is None or failures == TRIES_MAX or isinstance(error, AccessRefusedError):
                    return
                context.stop.wait(max((retry_at - context.clock()).total_seconds(), 0.0))
            elif self._busy_since is not None:
                wait_s = self._busy_since + context.settings.lease_wait_s - time.monotonic()
                if wait_s <= 0:
                    return
                context.stop.wait(min(wait_s, context.settings.poll_s))
            elif not attempt.reports:  # parked, or not in Spark's commit log yet
                return

    def maintain(self) -> None:
        """Maintain the table, unless its delivery has failed."""
        context = self._context
        if self._error is not None or not self._worker.is_decoupled:
            return
        if not context.settings.maintains or context.stop.is_set():
            return
        try:
            if self._failure is None or not self._left():
                self._count(self._worker.attempt(DeliveryRequest(is_maintenance=True)).reports)
        except PenstockError as error:
            self._error = error

    def result(self) -> Drained | None:
        """Return the result; None for a coupled stream."""
        if self._error is None and not self._worker.is_decoupled:
            return None
        left = self._left()
        return Drained(
            self._stream,
            is_parked=self._store.deliveries.state(self._stream.key).parked_at is not None,
            error=self._error,
            deliveries=self._deliveries,
            batches=self._batches,
            rows=self._rows,
            left=left,
            failure=self._failure if left else None,
            is_busy=left > 0 and self._busy_since is not None,
        )

    def _count(self, reports: Sequence[DeliveryReport]) -> None:
        manifests = [report.delivered.delivery.manifest for report in reports]
        self._deliveries += len(manifests)
        self._batches += sum(len(manifest.batches) for manifest in manifests)
        self._rows += sum(manifest.rows for manifest in manifests)

    def _left(self) -> int:
        return self._store.deliveries.backlog(self._stream.key, before=self._last + 1).batches
