"""Delivery attempts: settings, request, result, and the listener of their progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ..committers.deliveries.contract import LEASE_S_MAX, Delivery
from ..committers.deliveries.results import Delivered, Failed
from ..committers.errors import ConfigurationError
from ..committers.requests.contract import Counters
from ..committers.store.status import StreamStatus

LEASE_WAIT_S_MAX = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Settings of a delivery process."""

    parallel: int = 2
    """Streams to deliver at the same time."""
    lease_s: float = 10.0
    """Duration of a lease: another process takes over a stream after this time without a renewal."""
    poll_s: float = 1.0
    """Interval of reading the store."""
    lease_wait_s: float = 60.0
    """How long `--once` waits for a stream that another process delivers."""
    delivers: bool = True
    """False: only read the store, for the metrics."""
    maintains: bool = True
    """Also maintain the tables, as their options say."""

    def __post_init__(self) -> None:
        if not 1 <= self.parallel <= 64:
            raise ConfigurationError(
                "The number of streams to deliver at the same time must be from 1 to 64."
            )
        if not 1 <= self.lease_s <= LEASE_S_MAX:
            raise ConfigurationError(f"The duration of a lease must be from 1 to {LEASE_S_MAX:.0f} seconds.")
        if not 0 <= self.lease_wait_s <= LEASE_WAIT_S_MAX:
            raise ConfigurationError(
                f"The time to wait for another process must be from 0 to {LEASE_WAIT_S_MAX:.0f} seconds."
            )


@dataclass(frozen=True, slots=True)
class DeliveryRequest:
    """What one delivery attempt should do."""

    trigger: str | None = None
    """Deliver all prepared batches now, for this reason; None: only what the policy says is due."""
    up_to: int | None = None
    """Stop after this batch. Later batches were prepared in the meantime."""
    is_maintenance: bool = False
    """Do not deliver: delete files and records that are no longer needed, and maintain the table."""


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """One delivery that this process has committed, and its duration."""

    stream: StreamStatus
    delivered: Delivered
    seconds: float
    oldest_prepared_at: datetime | None
    requests: Sequence[Counters] = ()
    """Of the writers that have sent requests, the last one last."""
    dead_letters: int = 0
    """Rows of these batches that the dead-letter destination is to get."""
    dead_letters_waiting: int = 0
    """All dead letters of the stream that wait in the store, these included."""


@dataclass(slots=True)
class DeliveryAttempt:
    """Result of one delivery attempt of a stream."""

    reports: list[DeliveryReport] = field(default_factory=list)
    failure: Failed | None = None
    is_busy: bool = False
    """Another process holds the lease."""

    @property
    def has_done_something(self) -> bool:
        return bool(self.reports) or self.failure is not None


class DeliveryListener:
    """Listens to the progress of deliveries. Called from several threads.

    The methods do nothing unless they are overridden.
    """

    def on_poll(self, store: str, streams: Sequence[StreamStatus], now: datetime) -> None:
        """The store of this name was read. `streams` are all chosen streams, also coupled ones."""

    def on_store_failure(self, store: str, error: Exception) -> None:
        """The store of this name could not be read. Another attempt follows."""

    def on_sending(self, stream: StreamStatus, counters: Counters) -> None:
        """A delivery begins to send requests. The counters change meanwhile, until the next call for the
        stream.
        """

    def on_start(self, stream: StreamStatus, delivery: Delivery) -> None:
        """A delivery is prepared and will be committed; called again if it is tried again."""

    def on_delivery(self, report: DeliveryReport) -> None:
        """A delivery was committed to its table."""

    def on_failure(self, stream: StreamStatus, error: Exception, wait_s: float | None) -> None:
        """A delivery failed.

        Args:
            wait_s: seconds until the next attempt; None if the stream is parked now
        """
