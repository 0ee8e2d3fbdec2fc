"""The core of the writer: batches, sends and retries entries inside an event loop."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Generic, TypeVar

from ...committers.errors import AccessRefusedError, PenstockError, RetryableError, SchemaMismatchError
from ...committers.requests.contract import Counters
from .buffer import EntryBuffer
from .client import Client, Observer
from .done_entries import DoneEntries
from .entry import Entry
from .limits import Limits
from .outages import OutageReports
from .progress import Progress
from .rate_limit import Aimd, RateLimit
from .results import Acknowledged, DeadLetter, Failure, Result
from .retry_budget import RetryBudget
from .sent_request import SentRequest
from .settlement import settle

PayloadT = TypeVar("PayloadT")

_OF_COMMANDS = (
    "A delivery process or a command does not have the credentials of the query: give them in its options "
    "file, under `streams` (docs/cli.md, Secrets)."
)
CLOSE_S = 5.0
"""Time limit for closing the client."""
_TICK_S = 1e-6
"""Timers can be early by less than this."""


class RequestSender(Generic[PayloadT]):
    """Sends entries to a request-based destination, from within one event loop (FLIP-171, FLIP-451).

    `write` takes entries and waits while the buffer is full; requests are sent and retried meanwhile and
    afterwards. `flush` returns when every entry is done. An error, e.g. a fatal result, ends all sending and
    is raised by each later call. End with `close`, or after an error with `abort`.

    Calls of `write` must not overlap. An entry can arrive more than once: if a response is lost, if a request
    times out or is aborted. Its id is then the same.
    """

    def __init__(
        self,
        client: Client[PayloadT],
        limits: Limits | None = None,
        *,
        retries: RetryBudget | None = None,
        aimd: Aimd | None = None,
        tasks: int = 1,
        entries_s_max: float = math.inf,
        order_by_key: bool = False,
        in_order: bool = False,
        observer: Observer[PayloadT] | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """
        Args:
            tasks: number of writers that share what the destination admits
            entries_s_max: entries that this writer sends a second, repeated ones included
            order_by_key: an entry is only sent when the entries of the same key before it are done
            in_order: an entry is only sent when all entries before it are done, or with them: one request at
                a time
            draw: returns random numbers in [0, 1)
        """
        self._client = client
        self._limits = limits or Limits()
        if in_order:
            self._limits = replace(self._limits, in_flight_requests_max=1)
        self._retries = retries or RetryBudget()
        self._rate = RateLimit(
            aimd or Aimd(),
            self._limits.batch_entries_max,
            self._limits.in_flight_requests_max,
            tasks,
            entries_s_max,
        )
        self._draw = draw
        self._buffer: EntryBuffer[PayloadT] = EntryBuffer(order_by_key=order_by_key, in_order=in_order)
        self._in_flight: list[SentRequest[PayloadT]] = []
        self._progress = Progress()
        self._counters = Counters(in_flight_max=self._rate.limit_entries)
        self._done = DoneEntries(self._progress, self._counters, observer)
        self._outages = OutageReports()
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._flushes = 0
        """Calls of `flush` that wait."""
        self._wanted_bytes: int | None = None
        """Size of the entry for which `write` needs room; None if it does not wait."""
        self._error: PenstockError | None = None
        self._is_closed = self._is_stopped = False

    # For the caller -----------------------------------------------------------------------------------

    @property
    def acknowledged_up_to(self) -> int | None:
        """All entries up to this position are delivered, dropped or dead letters, and the observer has them.
        None: not even the first one. Can be read in any thread.
        """
        return self._progress.done_up_to

    @property
    def counters(self) -> Counters:
        """The live counters; read them only."""
        return self._counters

    def after_refusal(self, call: Callable[[], None]) -> None:
        """Call this after dead letters are acknowledged, before anything more is sent."""
        self._done.after_refusal = call

    async def write(self, entries: Sequence[Entry[PayloadT]]) -> None:
        """Take the entries. Waits while the buffer is full.

        Raises:
            PenstockError: of an earlier entry, or of one of these.
            ValueError: a position does not ascend.
        """
        start = 0
        while start < len(entries):
            self._check()
            if count := self._accept(entries, start):
                start += count
                self._send_what_is_due()
            elif entries[start].size_bytes > self._limits.record_bytes_max:
                self._refuse_oversized(entries[start])
                start += 1
            else:
                self._wanted_bytes = entries[start].size_bytes
                try:
                    await self._wait()
                finally:
                    self._wanted_bytes = None
        self._check()

    async def flush(self) -> None:
        """Wait until all entries are done: nothing is buffered or in flight."""
        self._check()
        self._flushes += 1
        try:
            while self._buffer.entries or self._in_flight:
                await self._wait()
                self._check()
        finally:
            self._flushes -= 1

    async def close(self) -> None:
        """Flush, then close the client."""
        await self.flush()
        await self._end()

    async def stop(self, seconds: float) -> None:
        """Send nothing more. Return when the requests in flight have their responses, after `seconds` at the
        latest.
        """
        self._is_stopped = True
        if self._in_flight:
            await asyncio.wait([request.task for request in self._in_flight], timeout=seconds)

    async def abort(self) -> None:
        """Give up all entries that are not done. Nothing is in flight afterwards. Raises nothing.

        What was in flight may have arrived.
        """
        await self._end()

    # Within the loop ----------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise RuntimeError("The writer is closed.")

    async def _end(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._buffer.clear()
        if self._timer is not None:
            self._timer.cancel()
        tasks = [request.task for request in self._in_flight]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._count()
        self._notify()
        with suppress(Exception):  # the results of all requests are known
            await asyncio.wait_for(self._client.close(), min(self._limits.request_timeout_s, CLOSE_S))

    async def _wait(self) -> None:
        """Return after the next change: a request was started or has ended."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        try:
            if not self._send_what_is_due():
                await self._changed.wait()
        finally:
            self._counters.waited_s += loop.time() - started_at

    def _notify(self) -> None:
        self._changed.set()
        self._changed.clear()

    def _fail(self, error: PenstockError) -> None:
        """Keep the first error for the caller, and send nothing more."""
        self._error = self._error or error
        self._notify()

    def _accept(self, entries: Sequence[Entry[PayloadT]], start: int) -> int:
        """Buffer entries until the buffer is full, or until an oversized one; return how many were taken."""
        limits, buffer = self._limits, self._buffer
        room_bytes = limits.buffered_bytes_max - buffer.bytes
        size_bytes = 0
        end = min(len(entries), start + max(self._room(), 0))
        for number in range(start, end):
            entry_bytes = entries[number].size_bytes
            if entry_bytes > limits.record_bytes_max or size_bytes + entry_bytes > room_bytes:
                end = number
                break
            size_bytes += entry_bytes
        if end > start:
            accepted = entries[start:end]
            self._progress.add([entry.position for entry in accepted])
            buffer.add(accepted, size_bytes, asyncio.get_running_loop().time())
        return end - start

    def _refuse_oversized(self, entry: Entry[PayloadT]) -> None:
        message = (
            f"Entry {entry.name} has {entry.size_bytes:,} bytes; maxRecordBytes allows "
            f"{self._limits.record_bytes_max:,}. Make the row smaller in the query, or filter it."
        )
        if self._limits.on_oversized == "fail":
            self._fail(SchemaMismatchError(message))
        else:
            self._progress.add([entry.position])
            self._acknowledge([(entry, DeadLetter("oversized", message))])

    def _send_what_is_due(self) -> bool:
        """Start all requests that can be started now, and set the timer for the next one. Return True if any
        was started.
        """
        if self._error is not None or self._is_closed or self._is_stopped:
            return False
        now = asyncio.get_running_loop().time()
        self._buffer.end_waits(now + _TICK_S)
        is_started = False
        soon = now + _TICK_S
        while self._batch_due_at() <= soon and self._next_start(soon) <= soon:
            self._start_request(now)
            is_started = True
        self._count()
        self._set_timer(now)
        if is_started:
            self._notify()
        return is_started

    def _batch_due_at(self) -> float:
        """When the next request should be sent; infinity if there is nothing to send."""
        buffer, limits = self._buffer, self._limits
        if not buffer.ready_entries:
            return math.inf
        if (
            buffer.ready_entries >= limits.batch_entries_max
            or buffer.ready_bytes >= limits.batch_bytes_max
            or self._flushes
            # The caller cannot add to it, e.g. because all other entries wait for those of their keys.
            or (self._wanted_bytes is not None and self._is_full(self._wanted_bytes))
        ):
            return -math.inf
        return buffer.oldest_ready() + limits.buffer_time_max_s

    def _is_full(self, entry_bytes: int) -> bool:
        """Return True if there is no room for an entry of this size."""
        return self._room() <= 0 or self._buffer.bytes + entry_bytes > self._limits.buffered_bytes_max

    def _room(self) -> int:
        """For so many entries. Those that are done behind one that is not take room, too."""
        limits = self._limits
        return min(
            limits.buffered_entries_max - self._buffer.entries,
            limits.repeated_entries_max - self._progress.unrecorded,
        )

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        send_at = max(self._batch_due_at(), self._next_start(now))
        at = min(send_at, self._buffer.next_attempt())
        if at < math.inf:
            self._timer = asyncio.get_running_loop().call_at(at, self._send_what_is_due)

    def _next_start(self, now: float) -> float:
        return self._rate.next_start(now, min(self._buffer.ready_entries, self._limits.batch_entries_max))

    def _start_request(self, now: float) -> None:
        queued = self._buffer.take(self._limits.batch_entries_max, self._limits.batch_bytes_max)
        permit = self._rate.start(now, len(queued))
        request = SentRequest(
            self._client, self._limits, self._counters, queued, permit, self._finish_request
        )
        self._in_flight.append(request)

    def _finish_request(self, request: SentRequest[PayloadT]) -> None:
        self._in_flight.remove(request)
        if self._is_closed:
            request.ignore()
            return
        try:
            self._settle(request, request.results())
        except Exception as error:  # noqa: BLE001  of the client's classifier
            self._fail(_wrapped(error))
        self._send_what_is_due()
        self._count()
        self._notify()

    def _settle(self, request: SentRequest[PayloadT], results: Failure | Sequence[Result]) -> None:
        """Acknowledge, put back, or stop."""
        now = asyncio.get_running_loop().time()
        settlement = settle(
            request.queued,
            results,
            started_at=request.permit.started_at,
            now=now,
            draw=self._draw(),
            retries=self._retries,
        )
        is_throttled = settlement.throttled > 0
        self._counters.throttled += settlement.throttled
        self._counters.throttled_requests += is_throttled
        self._rate.finish(request.permit, now, is_throttled=is_throttled or request.is_timed_out)
        for queued, next_attempt_at in settlement.put_back:
            self._buffer.put_back(queued, next_attempt_at)
        self._counters.retried += len(settlement.put_back)
        if settlement.put_back and settlement.retry is not None:
            self._outages.warn(settlement.put_back[0][0], settlement.retry, now)
        if settlement.done:
            self._acknowledge(settlement.acknowledged)
            self._buffer.release(settlement.done)
        for entry, fatal in settlement.refused[:1]:
            message = f"The destination did not accept entry {entry.name}: {fatal.code}. {fatal.message}"
            more = f" {_OF_COMMANDS}" if issubclass(fatal.error, AccessRefusedError) else ""
            self._fail(fatal.error(f"{message}{more}"))

    def _acknowledge(self, done: Sequence[tuple[Entry[PayloadT], Acknowledged]]) -> None:
        if self._error is not None:
            self._done.record_unobserved(done)
            return
        try:
            self._done.record(done)
        except Exception as error:  # noqa: BLE001  of any type
            self._fail(_wrapped(error))

    def _count(self) -> None:
        self._counters.in_flight_requests = len(self._in_flight)
        self._counters.in_flight_max = self._rate.limit_entries
        self._counters.buffered = self._buffer.entries
        self._counters.buffered_bytes = self._buffer.bytes


def _wrapped(error: Exception) -> PenstockError:
    """The error in a form that can be pickled between Spark's processes."""
    if isinstance(error, PenstockError):
        return error
    wrapped = RetryableError(f"Sending failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
