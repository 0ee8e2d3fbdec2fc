"""The contract between deliveries and the manifest store. Plain values, no I/O.

The words follow RisingWave's RFC 0055: a log between the stream and the sink, delivered on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from ..contract import Committer, Manifest, ManifestRecord, StreamKey, Token
from ..errors import FencedError

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
    isolate_until: int = -1
    """Up to this batch each is delivered alone: a delivery that had it among others has failed for good."""
    parked_at: datetime | None = None
    """Since when nothing is delivered until an operator says so; None while it is not parked."""
    parked_by: str = ""
    """An operator, or empty for Penstock itself."""
    parked_why: str = ""


@runtime_checkable
class Mergeable(Committer, Protocol):
    """A target that takes several batches in one commit; others are delivered batch by batch.

    Its `commit` calls `check_none_committed`.
    """

    def mergeable(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        """The longest beginning of these batches that can be one delivery: at least the first of them.

        Args:
            manifests: of consecutive pending batches of one stream, oldest first; read one by one
        """
        ...

    def merge(self, manifests: Sequence[Manifest], verified_version: int | None) -> Manifest:
        """One manifest that does to the target what these do one after the other.

        It is that of the last batch, with all of them in `merged`.

        Args:
            manifests: what `mergeable` has returned
            verified_version: the target's version up to which changes by other writers were checked, if known
        """
        ...


def check_none_committed(manifest: Manifest, token: Token, table_uri: str) -> None:
    """The batches of a delivery land together or not at all: the table must not hold some of them.

    It does if another process has delivered a part of them meanwhile. Called within the commit.

    Raises:
        FencedError: nothing was committed.
    """
    first = manifest.batches[0].batch_id
    if first <= token.batch_id < manifest.batch.batch_id:
        raise FencedError(
            f"The table {table_uri} holds batches up to {token.batch_id} of query "
            f"{manifest.batch.stream.query_id} already, and this delivery has the batches {first} to "
            f"{manifest.batch.batch_id}: another process was faster. Nothing was committed."
        )


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
