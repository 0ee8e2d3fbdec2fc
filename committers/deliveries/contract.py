"""The contract between deliveries and the manifest store. Plain values, no I/O.

The words follow RisingWave's RFC 0055: a log between the stream and the sink, delivered on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ..contract import Manifest, ManifestRecord, StreamKey

LEASE_S_MAX = 3600.0
"""The longest lease, in seconds. One that ends later than that from now was written with a wrong clock."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one process to deliver a stream for a while. It saves work; the table decides."""

    stream: StreamKey
    holder: str
    """Who: host, process and a random part."""
    fence: int
    """Higher with every holder: what an older one still writes into the store is refused."""
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Delivery:
    """Some batches of a stream on their way into the table with one commit."""

    delivery_id: int
    """Unique within the store."""
    manifest: Manifest
    """The merged one."""
    trigger: str
    """Why it was made now: `age`, `bytes`, `batches`, `retry` of one batch alone, `drain`, `request`."""
    is_compacted: bool
    """True if its files replace those of the batches."""
    prepared_at: datetime


@dataclass(frozen=True, slots=True)
class Backlog:
    """What of a stream is prepared and not in the table yet."""

    batches: int = 0
    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    oldest_prepared_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """How the deliveries of a stream are going."""

    tries: int = 0
    """Failures in a row since something was delivered."""
    retry_at: datetime | None = None
    error: str = ""
    """What the last try ended in; empty after a success."""
    alone_up_to: int = -1
    """Up to this batch each is delivered alone: a delivery that had it among others has failed for good."""
    parked_at: datetime | None = None
    """Since when nothing is delivered until an operator says so; None while it is not parked."""
    parked_by: str = ""
    """An operator, or empty for Penstock itself."""
    parked_why: str = ""


class DeliveryStore(Protocol):
    """What the store knows of deliveries. Runs in the delivery process.

    Every method is one short database transaction. A method that is given a lease refuses an outdated one:

    Raises:
        FencedError: another process holds the stream now.
    """

    def acquire(self, stream: StreamKey, holder: str, seconds: float) -> Lease | None:
        """The lease if nobody else holds it, or the one who did let it expire; None otherwise."""
        ...

    def renew(self, lease: Lease, seconds: float) -> Lease: ...

    def release(self, lease: Lease) -> None:
        """Let others have it at once. Idempotent; nothing happens if it is lost already."""
        ...

    def unfinished(self, stream: StreamKey) -> Delivery | None:
        """The stream's delivery that was prepared, and neither finished nor abandoned: one at most."""
        ...

    def prepare(self, lease: Lease, manifest: Manifest, trigger: str, *, is_compacted: bool) -> Delivery:
        """Make a delivery durable before its commit.

        Raises:
            RetryableError: one of its batches is not PREPARED any more, or part of another delivery.
        """
        ...

    def finish(self, delivery: Delivery, table_version: int | None) -> bool:
        """The table holds the delivery: it and its batches are COMMITTED. False if it was not PREPARED.

        Raises:
            CommitStateUnknownError: the database failed; the table holds the delivery, and the next round
                marks it.
        """
        ...

    def abandon(self, delivery: Delivery, reason: str) -> bool:
        """Its batches are free for another delivery. False if it was not PREPARED."""
        ...

    def deliverable(self, stream: StreamKey) -> Sequence[ManifestRecord]:
        """PREPARED batches that are in no unfinished delivery, in ascending order.

        Ends before a gap: behind a batch that was given up for its replay, and was not prepared anew.
        """
        ...

    def state(self, stream: StreamKey) -> DeliveryState: ...

    def set_state(self, lease: Lease, state: DeliveryState) -> None: ...

    def backlog(self, stream: StreamKey, before: int | None = None) -> Backlog: ...
