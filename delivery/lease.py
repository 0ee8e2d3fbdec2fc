"""A stream's lease as the delivery process holds it: renewed in the background, released at the end.

It is renewed only while the delivery makes progress. A delivery that hangs, such as in a request without a
time-out, would hold the stream for ever otherwise, and other processes would stay idle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from ..committers.deliveries.contract import DeliveryStore, Lease
from ..committers.errors import CommitStateUnknownError, FencedError, RetryableError
from ..committers.safe_text import get_logger

logger = get_logger(__name__)

RENEWALS_PER_LEASE = 3
"""Two may fail before another process may take the stream over."""
STALL_S = 900.0
"""Seconds between two steps of a delivery after which its lease is no longer renewed.

Longer than the time-outs of the requests in one step: a commit to a REST catalog and the look at its outcome
take 300 s each at most.
"""

_last_progress_s = time.monotonic()


def last_progress_s() -> float:
    """When any delivery of this process has come to its next step, in seconds of `time.monotonic`."""
    return _last_progress_s


class HeldLease:
    """Renews a lease in a thread of its own for as long as the `with` block runs, then releases it.

    Args:
        lease: just acquired
        seconds: how long it holds without a renewal
        stall_s: after so many seconds without a call of `check` it is not renewed any more
        clock: seconds, as `time.monotonic`
    """

    def __init__(
        self,
        deliveries: DeliveryStore,
        lease: Lease,
        seconds: float,
        *,
        stall_s: float = STALL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease = lease
        self._deliveries = deliveries
        self._seconds = seconds
        self._stall_s = stall_s
        self._clock = clock
        self._progress_s = clock()
        self._is_supervised = False
        self._lost: FencedError | None = None
        self._is_stalled = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease of {lease.stream}", daemon=True)

    def __enter__(self) -> HeldLease:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._lost is None:
            try:
                self._deliveries.release(self.lease)
            except (RetryableError, CommitStateUnknownError) as failed:
                logger.warning("The lease of %s ends by itself: %s", self.lease.stream, failed)

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    @property
    def is_stalled(self) -> bool:
        """True if the lease was given up because the delivery hangs."""
        return self._is_stalled

    @contextmanager
    def supervised_elsewhere(self) -> Iterator[None]:
        """For a step of any length that something else ends if it hangs, such as a Spark job."""
        self._is_supervised = True
        try:
            yield
        finally:
            self._is_supervised = False
            self._note_progress()

    def check(self) -> None:
        """Note that the delivery has come to its next step.

        Raises:
            FencedError: another process has taken the stream over; what this one still does is wasted.
        """
        self._note_progress()
        if self._lost is not None:
            raise self._lost

    def _note_progress(self) -> None:
        global _last_progress_s
        self._progress_s = self._clock()
        _last_progress_s = time.monotonic()

    def _give_up_if_stalled(self) -> bool:
        idle_s = self._clock() - self._progress_s
        if self._is_supervised or idle_s <= self._stall_s:
            return False
        self._is_stalled = True
        self._lost = FencedError(
            f"The delivery of {self.lease.stream} has made no progress for {idle_s:.0f} s. Its lease is not "
            "renewed any more, so that another process can take over. Restart this process if nothing else "
            "delivers the stream."
        )
        logger.error("%s", self._lost)
        return True

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds / RENEWALS_PER_LEASE):
            if self._give_up_if_stalled():
                return
            try:
                self._deliveries.renew(self.lease, self._seconds)
            except FencedError as error:
                self._lost = error
                return
            except (RetryableError, CommitStateUnknownError) as error:
                logger.warning("The lease of %s was not renewed: %s", self.lease.stream, error)
