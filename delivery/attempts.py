"""What the turns of a delivery process have in common, what one is for, and how it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from ..committers.deliveries.contract import LEASE_S_MAX
from ..committers.deliveries.deliverer import Delivered, Failed
from ..committers.errors import ConfigurationError
from ..committers.store.sql import StreamStatus

if TYPE_CHECKING:
    pass

LEASE_WAIT_S_MAX = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """How a delivery process works."""

    parallel: int = 2
    """Streams that are delivered at once."""
    lease_s: float = 10.0
    """After so long without a sign of life another process takes a stream over."""
    poll_s: float = 1.0
    """Between two looks at the store."""
    lease_wait_s: float = 60.0
    """How long `--once` waits for a stream that another process delivers."""
    delivers: bool = True
    """False: only look at the store, for the metrics."""
    maintains: bool = True
    """Look after the tables too, where their options want it."""

    def __post_init__(self) -> None:
        if not 1 <= self.parallel <= 64:
            raise ConfigurationError("The number of streams to deliver at once must be from 1 to 64.")
        if not 1 <= self.lease_s <= LEASE_S_MAX:
            raise ConfigurationError(f"A lease must last from 1 to {LEASE_S_MAX:.0f} seconds.")
        if not 0 <= self.lease_wait_s <= LEASE_WAIT_S_MAX:
            raise ConfigurationError(
                f"The wait for another process must last from 0 to {LEASE_WAIT_S_MAX:.0f} seconds."
            )


@dataclass(frozen=True, slots=True)
class DeliveryRequest:
    """What a turn is for."""

    trigger: str | None = None
    """Deliver what is there now, and why; None: what the policy says."""
    up_to: int | None = None
    """End once this batch is delivered: later ones came in meanwhile."""
    is_maintenance: bool = False
    """Deliver nothing: remove files and records that are not needed any more, look after the table."""


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """One delivery that this process has landed, with what it took."""

    stream: StreamStatus
    delivered: Delivered
    seconds: float
    oldest_prepared_at: datetime | None


@dataclass(slots=True)
class DeliveryAttempt:
    """How one turn of a stream went."""

    reports: list[DeliveryReport] = field(default_factory=list)
    failure: Failed | None = None
    is_busy: bool = False
    """Another process holds the lease."""

    @property
    def has_done_something(self) -> bool:
        return bool(self.reports) or self.failure is not None


class DeliveryListener:
    """Is told how the deliveries go. Called from several threads.

    A method that is not overridden does nothing.
    """

    def on_poll(self, store: str, streams: Sequence[StreamStatus], now: datetime) -> None:
        """All streams to look after, coupled ones too, as the store of this name has them now."""

    def on_store_failure(self, store: str, error: Exception) -> None:
        """The store of this name could not be read; it is tried again."""

    def on_delivery(self, report: DeliveryReport) -> None:
        """A delivery is in its table."""

    def on_failure(self, stream: StreamStatus, error: Exception, wait_s: float | None) -> None:
        """
        Args:
            wait_s: until it is tried again; None if the stream is parked now
        """
