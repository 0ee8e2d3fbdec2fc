"""The limit of a stream's backlog, the batches that are prepared and not delivered. Driver only.

If the backlog is full, the query waits before it writes the next batch, and `penstock status` shows that it
waits. If it has waited too long it fails, and its restart continues where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ...committers.contract import Batch, StreamKey
from ...committers.deliveries.contract import Backlog, DeliveryState
from ...committers.errors import RetryableError
from ...committers.texts.safe_text import get_logger

if TYPE_CHECKING:
    from ...committers.store.sql import SqlManifestStore

logger = get_logger(__name__)

POLL_S = 1.0
LOG_INTERVAL_S = 30.0

_known: WeakKeyDictionary[SqlManifestStore, dict[StreamKey, tuple[int, Backlog]]] = WeakKeyDictionary()
"""For each open store: a batch, and the most that the backlog of its stream before it can be. Stores are
opened again each minute.
"""


@dataclass(frozen=True, slots=True)
class BacklogBound:
    """The maximum backlog, and how long the query waits for it to shrink."""

    batches: int
    size_bytes: int
    age_s: float
    wait_s: float

    def exceeded(self, backlog: Backlog, now: datetime) -> str:
        """Return the limits that the backlog has reached, as text; empty if there are none."""
        return "; ".join(self._exceeded(backlog, now))

    def _exceeded(self, backlog: Backlog, now: datetime) -> Iterator[str]:
        if backlog.batches >= self.batches:
            waits = "batch waits" if backlog.batches == 1 else "batches wait"
            yield f"{backlog.batches:,} {waits} (backlogBatches={self.batches})"
        if backlog.size_bytes >= self.size_bytes:
            yield f"{backlog.size_bytes:,} bytes wait (backlogBytes={self.size_bytes})"
        if backlog.oldest_prepared_at is not None:
            age_s = (now - backlog.oldest_prepared_at).total_seconds()
            if age_s >= self.age_s:
                yield f"the oldest batch has waited {age_s:,.0f} s (backlogSeconds={self.age_s:.0f})"


def wait_for_delivery(
    store: SqlManifestStore,
    batch: Batch,
    bound: BacklogBound,
    *,
    has_routes: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when the backlog before this batch is below its limit.

    The batch itself and later batches do not count: they may be waiting for this batch to be written again.
    While the query waits, the store has the time since when.

    Args:
        has_routes: the backlog is that of all tables of the query; those that are parked hold up no other

    Raises:
        RetryableError: the query has waited for `wait_s`. Nothing was written for the batch.
    """
    began, deliveries, stream = now(), store.deliveries, batch.stream

    def backlog(since: int | None = None) -> Backlog:
        if has_routes:
            return deliveries.backlog_of_query(stream.query_id, since)
        return deliveries.backlog(stream, batch.batch_id, since=since)

    def wait(since: datetime | None) -> None:
        if has_routes:
            deliveries.wait_for_query(stream.query_id, since)
        else:
            deliveries.wait(stream, since)

    too_much = _exceeded(_known.setdefault(store, {}), batch, bound, began, backlog)
    if not too_much:
        return
    wait(began)
    try:
        _wait(stream, bound, too_much, backlog, partial(deliveries.state, stream), now, sleep)
    finally:
        wait(None)


def _exceeded(
    known: dict[StreamKey, tuple[int, Backlog]],
    batch: Batch,
    bound: BacklogBound,
    now: datetime,
    backlog: Callable[[int | None], Backlog],
) -> str:
    """Return the limits that the backlog before this batch has reached.

    The whole backlog is only added up if the last sum and the batches since then reach a limit: deliveries
    make it smaller, and a sum over a long backlog can take longer than all else of a plan.

    Args:
        backlog: returns that since a batch; None: the whole one
    """
    stream, batch_id = batch.stream, batch.batch_id
    before, most = known.get(stream, (batch_id, Backlog()))
    if before < batch_id:
        most = _plus(most, backlog(before))
        known[stream] = batch_id, most
        if not bound.exceeded(most, now):
            return ""
    whole = backlog(None)
    known[stream] = batch_id, whole
    return bound.exceeded(whole, now)


def _plus(older: Backlog, newer: Backlog) -> Backlog:
    return Backlog(
        older.batches + newer.batches,
        older.files + newer.files,
        older.rows + newer.rows,
        older.size_bytes + newer.size_bytes,
        older.oldest_prepared_at or newer.oldest_prepared_at,
    )


def _wait(
    stream: StreamKey,
    bound: BacklogBound,
    too_much: str,
    backlog: Callable[[], Backlog],
    state: Callable[[], DeliveryState],
    now: Callable[[], datetime],
    sleep: Callable[[float], None],
) -> None:
    began, logged_at = now(), None
    while too_much:
        waited_s = (now() - began).total_seconds()
        if waited_s >= bound.wait_s:
            raise RetryableError(_failure(stream, too_much, waited_s, state()))
        if logged_at is None or waited_s - logged_at >= LOG_INTERVAL_S:
            logger.warning("The query waits for deliveries of %s: %s.", stream, too_much)
            logged_at = waited_s
        sleep(POLL_S)
        too_much = bound.exceeded(backlog(), now())


def _failure(stream: StreamKey, too_much: str, waited_s: float, state: DeliveryState) -> str:
    return (
        f"The query has waited {waited_s:,.0f} s for deliveries of {stream}, and still {too_much}. "
        f"{_blocking_reason(state)} No data is lost: prepared batches stay prepared. Correct the cause, "
        "then start the query again: it continues where it stopped. To allow a larger backlog, raise "
        "backlogBatches, backlogBytes or backlogSeconds. To wait longer, raise backlogWaitSeconds."
    )


def _blocking_reason(state: DeliveryState) -> str:
    if state.parked_at is not None:
        by = f" by {state.parked_by}" if state.parked_by else ""
        why = state.parked_why or state.error
        return (
            f"Deliveries are parked{by} since {state.parked_at:%Y-%m-%d %H:%M:%S} UTC: {why} Correct that "
            "and run `penstock retry`, or give up the batch with `penstock skip`."
        )
    if state.error:
        return f"{state.tries} deliveries in a row have failed, the last one with: {state.error}"
    return "No delivery has failed. Check that `penstock deliver` is running and fast enough."
