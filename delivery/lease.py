"""A stream's lease while a delivery process holds it: renewed in the background, released at the end.

It is renewed only while the delivery makes progress. Otherwise a delivery that hangs, for example in a
request without a timeout, would keep the stream from other processes for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..committers.deliveries.contract import DeliveryStore, Lease
from ..committers.errors import CommitStateUnknownError, FencedError, RetryableError
from ..committers.texts.safe_text import get_logger

logger = get_logger(__name__)

RENEWALS_PER_LEASE = 3
"""So two renewals may fail before another process may take over."""
STALL_S = 900.0
"""Seconds without progress after which the lease is no longer renewed.

Longer than the timeouts of the requests in one step: a commit to a REST catalog, and the request for its
outcome, take at most 300 s each.
"""

_last_progress_s = time.monotonic()


def last_progress_s() -> float:
    """Return when a delivery of this process last made progress, in seconds of `time.monotonic`."""
    return _last_progress_s


class HeldLease:
    """Renew a lease in a background thread during the `with` block, then release it.

    Args:
        lease: the acquired lease
        seconds: duration of the lease without a renewal
        stall_s: seconds without a call of `check` after which it is no longer renewed
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

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._lost is None:
            try:
                self._deliveries.release(self.lease)
            except (RetryableError, CommitStateUnknownError) as failed:
                logger.warning(
                    "The lease of %s was not given back and will expire: %s", self.lease.stream, failed
                )

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    @property
    def is_stalled(self) -> bool:
        """True if the lease is no longer renewed because the delivery hangs."""
        return self._is_stalled

    @contextmanager
    def supervised_elsewhere(self) -> Iterator[None]:
        """Wrap a step of any duration that is supervised elsewhere, such as a Spark job."""
        self._is_supervised = True
        try:
            yield
        finally:
            self._is_supervised = False
            self._note_progress()

    def check(self) -> None:
        """Record that the delivery makes progress.

        Raises:
            FencedError: another process has taken over the stream; further work of this one is wasted.
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
            f"The delivery of {self.lease.stream} has made no progress for {idle_s:.0f} s. Its lease is no "
            "longer renewed, so that another process can take over. If no other process delivers the stream, "
            "restart this one."
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
                logger.warning("The lease of %s could not be renewed: %s", self.lease.stream, error)
