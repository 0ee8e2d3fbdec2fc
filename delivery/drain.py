"""Deliver what waits now, and end: `penstock deliver --once`."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from ..committers.errors import AccessRefusedError, PenstockError
from ..committers.store.sql import StreamStatus
from .turns import DeliveryOrder, Landing, Surroundings
from .worker import StreamWorker

TRIES_MAX = 5
"""Failures in a row until the rest is left to the next run."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What became of one stream."""

    stream: StreamStatus
    deliveries: int
    batches: int
    rows: int
    left: int
    """Batches that waited at the beginning and still do."""
    failure: PenstockError | None
    """What the last delivery ended in, if it failed: the stream's state in the store says the same."""
    error: PenstockError | None
    """Why nothing could be tried."""
    is_parked: bool
    is_busy: bool
    """Another process delivers it, and has not ended in time."""


def drain(
    around: Surroundings,
    is_chosen: Callable[[StreamStatus], bool] = lambda stream: True,
) -> list[Drained]:
    """Deliver the batches of all chosen streams that are prepared by now.

    Raises:
        PenstockError: the store cannot be read.
    """
    streams = [stream for stream in around.store.streams() if is_chosen(stream)]
    around.saw(streams, around.clock())
    with ThreadPoolExecutor(around.settings.parallel, "delivery") as pool:
        drained = pool.map(partial(_drain_stream, around), streams)
        return [one for one in drained if one is not None]


def _drain_stream(around: Surroundings, stream: StreamStatus) -> Drained | None:
    """None for a coupled stream."""
    worker, landings, failures = StreamWorker(stream, around), list[Landing](), 0
    failure: PenstockError | None = None
    error: PenstockError | None = None
    last = -1 if stream.last is None else stream.last.batch.batch_id
    order = DeliveryOrder("drain", last)
    busy_since: float | None = None
    try:
        worker.see(stream)
        if not worker.is_decoupled:
            return None
        while _left(around, stream, last) and not around.stop.is_set():
            turn = worker.turn(order)
            landings += turn.landings
            if not turn.is_busy:
                busy_since = None
            elif busy_since is None:
                busy_since = time.monotonic()
            if turn.failure is not None:
                failure, failures = turn.failure.error, 1 if turn.landings else failures + 1
                retry_at = turn.failure.retry_at
                if retry_at is None or failures == TRIES_MAX or isinstance(failure, AccessRefusedError):
                    break
                around.stop.wait(max((retry_at - around.clock()).total_seconds(), 0.0))
            elif busy_since is not None:
                wait_s = busy_since + around.settings.lease_wait_s - time.monotonic()
                if wait_s <= 0:
                    break
                around.stop.wait(min(wait_s, around.settings.poll_s))
            elif not turn.landings:  # parked, or not in Spark's commits log yet
                break
        if around.settings.maintains and not around.stop.is_set():
            worker.turn(DeliveryOrder(is_upkeep=True))
    except PenstockError as raised:
        error = raised
    left = _left(around, stream, last)
    state = around.store.deliveries.state(stream.key)
    return Drained(
        stream,
        deliveries=len(landings),
        batches=sum(len(landing.delivered.delivery.manifest.batches) for landing in landings),
        rows=sum(landing.delivered.delivery.manifest.rows for landing in landings),
        left=left,
        failure=failure if left else None,
        error=error,
        is_parked=state.parked_at is not None,
        is_busy=left > 0 and busy_since is not None,
    )


def _left(around: Surroundings, stream: StreamStatus, last: int) -> int:
    return sum(record.batch.batch_id <= last for record in around.store.pending(stream.key))
