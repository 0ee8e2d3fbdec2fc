"""The writer for synchronous callers: Spark tasks, and the delivery process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, Generic, TypeVar

from ...committers.errors import RetryableError
from ...committers.requests.contract import Counters
from .entry import Entry
from .sender import RequestSender

PayloadT = TypeVar("PayloadT")

_LOOK_S = 1.0
"""Interval at which a caller who waits makes sure that the thread is alive, and calls `check`."""
RESPONSES_S = 10.0
"""How long a writer that is stopped waits for responses. Kubernetes waits 30 s before it kills a process."""
_NO_THREAD = "The thread that sends the requests has ended."


class AsyncSinkWriter(Generic[PayloadT]):
    """A `RequestSender` with an event loop in a thread of its own (FLIP-171).

    Requests progress while the caller prepares the next entries. An error in the loop is raised by the next
    call. The thread starts with the first entries and ends with `close` or `abort`: call one of them. Use a
    writer from one thread.
    """

    def __init__(
        self,
        sender: RequestSender[PayloadT],
        new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        self._sender = sender
        self._new_event_loop = new_event_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._check: Callable[[], None] = lambda: None
        self._is_closed = False

    @property
    def acknowledged_up_to(self) -> int | None:
        """See `RequestSender`."""
        return self._sender.acknowledged_up_to

    @property
    def counters(self) -> Counters:
        """See `RequestSender`."""
        return self._sender.counters

    def check_with(self, check: Callable[[], None]) -> None:
        """See `EntryWriter`."""
        self._check = check

    def write(self, entries: Sequence[Entry[PayloadT]]) -> None:
        """Take the entries; block while the buffer is full. Each call costs a switch of threads: give many
        entries at a time.

        Raises:
            PenstockError: of an earlier entry, or of one of these.
            ValueError: a position does not ascend.
        """
        if self._is_closed:
            raise RuntimeError("The writer is closed.")
        if entries:
            self._run(self._sender.write(entries), self._check)

    def flush(self) -> None:
        """Block until all entries are done: nothing is buffered or in flight.

        Raises:
            PenstockError: an entry cannot be delivered.
        """
        if self._loop is not None:
            self._run(self._sender.flush(), self._check)

    def close(self) -> None:
        """Flush, close the client, and end the thread. If an entry cannot be delivered, the others are given
        up as with `abort`.

        Raises:
            PenstockError: an entry cannot be delivered.
        """
        try:
            if self._loop is not None:
                self._run(self._sender.close(), self._check)
        finally:
            self.abort()

    def stop(self) -> None:
        """See `EntryWriter`."""
        if self._loop is not None:
            with suppress(RetryableError):  # the thread has ended
                self._run(self._sender.stop(RESPONSES_S))

    def abort(self) -> None:
        """Give up all entries that are not done, and end the thread. Nothing is in flight afterwards. Raises
        nothing.

        What was in flight may have arrived.
        """
        self._is_closed = True
        if self._loop is None or self._thread is None:
            return
        with suppress(RetryableError, RuntimeError):  # the thread has ended
            self._run(self._sender.abort())
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop = self._thread = None

    def _run(self, call: Coroutine[Any, Any, None], check: Callable[[], None] = lambda: None) -> None:
        """Run it in the loop, and wait for it."""
        if self._loop is None:
            self._loop = self._new_event_loop()
            self._thread = threading.Thread(
                target=_serve, args=(self._loop,), name="penstock-requests", daemon=True
            )
            self._thread.start()
        assert self._thread is not None
        try:
            under_way = asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError:
            call.close()
            raise RetryableError(_NO_THREAD) from None
        try:
            while not under_way.done() and self._thread.is_alive():
                check()
                wait((under_way,), timeout=_LOOK_S)
        except BaseException:  # of the check, or KeyboardInterrupt
            under_way.cancel()
            raise
        if not under_way.done() or under_way.cancelled():
            call.close()
            raise RetryableError(_NO_THREAD)
        under_way.result()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped. Calls that did not end are cancelled."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        if calls := asyncio.all_tasks(loop):
            for call in calls:
                call.cancel()
            loop.run_until_complete(asyncio.wait(calls))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
