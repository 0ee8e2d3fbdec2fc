"""A request that was sent: its time limit, and the results that it ended with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from ...committers.requests.contract import Counters
from .buffer import Queued
from .client import Client, ErrorClassifier, classify_error
from .limits import Limits
from .rate_limit import Permit
from .results import Failure, Fatal, Result, Retry

PayloadT = TypeVar("PayloadT")

LATE_S = 1.0
"""If a timeout is later than this, the process was paused, or a store did not answer the observer. Responses
that have arrived meanwhile get this much time to be read.
"""


class SentRequest(Generic[PayloadT]):
    """Sends the request when it is created, within the event loop, and counts it.

    Args:
        queued: its entries
        permit: its part of the rate limit
        on_end: called when it has a response, an error, or none in time
    """

    def __init__(
        self,
        client: Client[PayloadT],
        limits: Limits,
        counters: Counters,
        queued: list[Queued[PayloadT]],
        permit: Permit,
        on_end: Callable[[SentRequest[PayloadT]], None],
    ) -> None:
        self._client = client
        self._limits = limits
        self._counters = counters
        self.queued = queued
        self.permit = permit
        self.is_timed_out = False
        loop = asyncio.get_running_loop()
        entries = [one.entry for one in queued]
        self.task = loop.create_task(client.submit(entries))
        self._timer = loop.call_later(limits.request_timeout_s, self._time_out)
        self._on_end = on_end
        self.task.add_done_callback(self._end)
        counters.requests += 1
        counters.sent += len(entries)
        counters.bytes += sum(entry.size_bytes for entry in entries)
        counters.in_flight += len(entries)

    def _time_out(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() > self._timer.when() + LATE_S:
            self._timer = loop.call_later(LATE_S, self._time_out)
            return
        self.is_timed_out = True
        self.task.cancel()

    def _end(self, _: asyncio.Task[Failure | Sequence[Result]]) -> None:
        self._timer.cancel()
        self._counters.in_flight -= len(self.queued)
        self._on_end(self)

    def ignore(self) -> None:
        """The results of the request are not needed: it was aborted."""
        with suppress(asyncio.CancelledError):
            self.task.exception()  # or asyncio reports that nobody looked at it

    def results(self) -> Failure | Sequence[Result]:
        """Return the results of a request that has ended, whatever became of it.

        Raises:
            Exception: raised by the client's classifier.
        """
        task = self.task
        if not task.cancelled() and (error := task.exception()) is None:
            return task.result()
        if self.is_timed_out:
            self._counters.timed_out_requests += 1
            message = f"No response within {self._limits.request_timeout_s:g} s."
            return (Fatal if self._limits.fail_on_timeout else Retry)("timeout", message)
        if task.cancelled():
            return Retry("cancelled", "The client cancelled the request.")
        assert isinstance(error, Exception)  # others end the loop
        classify = self._client.classify if isinstance(self._client, ErrorClassifier) else classify_error
        return classify(error)
