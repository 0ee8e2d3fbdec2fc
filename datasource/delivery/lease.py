"""A stream's lease as the delivery process holds it: renewed in the background, released at the end."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from ...committers.delivery.contract import DeliveryStore, Lease
from ...committers.errors import CommitStateUnknownError, FencedError, RetryableError

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
"""Two may fail before another process may take the stream over."""


class HeldLease:
    """Renews a lease in a thread of its own for as long as the `with` block runs, then releases it.

    Args:
        lease: just acquired
        seconds: how long it holds without a renewal
    """

    def __init__(self, deliveries: DeliveryStore, lease: Lease, seconds: float) -> None:
        self.lease = lease
        self._deliveries = deliveries
        self._seconds = seconds
        self._lost: FencedError | None = None
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

    def check(self) -> None:
        """
        Raises:
            FencedError: another process has taken the stream over; what this one still does is wasted.
        """
        if self._lost is not None:
            raise self._lost

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds / RENEWALS_PER_LEASE):
            try:
                self._deliveries.renew(self.lease, self._seconds)
            except FencedError as error:
                self._lost = error
                return
            except (RetryableError, CommitStateUnknownError) as error:
                logger.warning("The lease of %s was not renewed: %s", self.lease.stream, error)
