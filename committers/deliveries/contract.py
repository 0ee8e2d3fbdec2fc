"""The contract between deliveries and the manifest store. Plain values, no I/O.

The terms follow RisingWave's RFC 0055: a log between the stream and the sink, delivered independently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from ..contract import NO_LETTERS, Batch, DeadLetters, Manifest, ManifestRecord, StreamKey, Token
from ..errors import FencedError
from ..target import Committer

BATCHES_READ = 500
"""Most batches that are read from the store at a time."""
CONTENTS_BYTES_READ = 8 * 1024**2
"""Most bytes of manifests that are read from the store at a time, unless a single one has more."""
LEASE_S_MAX = 3600.0
"""The longest lease, in seconds. A lease that expires later than this was written with a wrong clock."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Allows one process to deliver a stream for a limited time. Leases only save work; the table decides
    which commit succeeds.
    """

    stream: StreamKey
    holder: str
    """The process: host, process id and a random part."""
    fence: int
    """Increases with each new holder. The store rejects writes under an older fence."""
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Delivery:
    """Batches of a stream that are committed to the table together."""

    delivery_id: int
    """Unique within the store."""
    manifest: Manifest
    """The merged manifest."""
    trigger: str
    """Why the delivery was made: `age`, `bytes`, `batches`, `retry` of a single batch, `drain`, `request`."""
    is_compacted: bool
    """True if its files replace those of the batches."""
    prepared_at: datetime


@dataclass(frozen=True, slots=True)
class Backlog:
    """Prepared batches of a stream that are not in the table yet."""

    batches: int = 0
    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    oldest_prepared_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """State of a stream's deliveries."""

    tries: int = 0
    """Number of failures since the last successful delivery."""
    retry_at: datetime | None = None
    error: str = ""
    """Error of the last try; empty after a success."""
    isolate_until: int = -1
    """Batches up to this one are delivered one by one, because a delivery of several batches has failed
    permanently.
    """
    parked_at: datetime | None = None
    """When the stream was parked; None if it is not. A parked stream is delivered again after an operator's
    `retry`.
    """
    parked_by: str = ""
    """Name of the operator; empty if Penstock parked it."""
    parked_why: str = ""


@runtime_checkable
class Mergeable(Committer, Protocol):
    """A target that accepts several batches in one commit. Other targets get batch by batch.

    Its `commit` calls `check_none_committed`.
    """

    def mergeable(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        """Return the longest prefix of these batches that can be one delivery: at least the first batch.

        Args:
            manifests: of consecutive pending batches of one stream, oldest first; read lazily
        """
        ...

    def merge(self, manifests: Sequence[Manifest], verified_version: int | None) -> Manifest:
        """Return one manifest with the same effect on the target as these, committed one after the other.

        Its batch is the last one, and `merged` has all of them.

        Args:
            manifests: the result of `mergeable`
            verified_version: the target's version up to which changes by other writers were checked, if known
        """
        ...


def check_none_committed(manifest: Manifest, token: Token, table: str) -> None:
    """Check that the table has none of the delivery's batches: they are committed together or not at all.

    Another process may have delivered some of them. Called within the commit.

    Args:
        table: format and address of the target, for messages

    Raises:
        FencedError: nothing was committed.
    """
    first = manifest.batches[0].batch_id
    if first <= token.batch_id < manifest.batch.batch_id:
        raise FencedError(
            f"The {table} already has batches up to {token.batch_id} of query "
            f"{manifest.batch.stream.query_id}, and this delivery has the batches {first} to "
            f"{manifest.batch.batch_id}: another process was faster. Nothing was committed."
        )


class DeliveryStore(Protocol):
    """Stores leases, deliveries and delivery state. Runs in the delivery process.

    Each method is one short database transaction. Methods that take a lease reject an outdated one:

    Raises:
        FencedError: another process holds the lease.
    """

    def acquire(self, stream: StreamKey, holder: str, seconds: float) -> Lease | None:
        """Return a lease if the stream is free or the other holder's lease has expired; None otherwise."""
        ...

    def renew(self, lease: Lease, seconds: float) -> Lease: ...

    def release(self, lease: Lease) -> None:
        """Release the lease at once. Idempotent; does nothing if the lease is already lost."""
        ...

    def unfinished(self, stream: StreamKey) -> Delivery | None:
        """Return the stream's PREPARED delivery, if there is one. A stream has at most one."""
        ...

    def prepare(self, lease: Lease, manifest: Manifest, trigger: str, *, is_compacted: bool) -> Delivery:
        """Make a delivery durable before its commit.

        Raises:
            RetryableError: one of its batches is no longer PREPARED, or is part of another delivery.
        """
        ...

    def finish(
        self,
        delivery: Delivery,
        table_version: int | None,
        dead_letters: DeadLetters = NO_LETTERS,
        dropped_rows: int = 0,
    ) -> bool:
        """Mark the delivery and its batches COMMITTED. Return False if the delivery was not PREPARED.

        Args:
            dead_letters: rows that the table refused in the commit, stored in the same transaction
            dropped_rows: see `ManifestStore.finish`

        Raises:
            CommitStateUnknownError: the database failed. The table has the delivery, and the next round marks
                it.
        """
        ...

    def abandon(self, lease: Lease, delivery: Delivery, reason: str) -> bool:
        """Free the batches for another delivery. Return False if the delivery was not PREPARED."""
        ...

    def deliverable(
        self, stream: StreamKey, limit: int = BATCHES_READ, after: int | None = None
    ) -> Sequence[ManifestRecord]:
        """The oldest PREPARED batches that are in no unfinished delivery, in ascending order.

        Stops at a gap: after a batch that was aborted for its replay and not prepared again.

        Args:
            limit: maximum number of batches
            after: continue after this batch, which an earlier call has returned
        """
        ...

    def manifests_of(self, stream: StreamKey, batches: Sequence[Batch]) -> Sequence[Manifest]:
        """The batches' own manifests, in the same order, after their checksums are verified: at least the
        first one, and as many more as `CONTENTS_BYTES_READ` allows. Ends before a batch that the store does
        not know any more.

        Args:
            batches: from a result of `deliverable`, in ascending order

        Raises:
            ManifestCorruptError: a content does not match its checksum.
        """
        ...

    def state(self, stream: StreamKey) -> DeliveryState: ...

    def set_state(self, lease: Lease, state: DeliveryState) -> None: ...

    def backlog(
        self,
        stream: StreamKey,
        before: int | None = None,
        limit: int | None = None,
        since: int | None = None,
    ) -> Backlog:
        """All PREPARED batches, including those in an unfinished delivery and those after a gap.

        Args:
            before: only batches before this one
            limit: only the oldest batches, at most this number
            since: only this batch and later ones
        """
        ...
