"""Progress in the store: the token of destinations that have no place for one.

A request-based destination (an HTTP endpoint, a queue) cannot store which batch of a query was the last. The
manifest store does it instead: the last delivered batch and, of the batch in delivery, how many of its rows
are acknowledged. A lost store therefore loses the token, too.

The terms follow RisingWave's RFC 0055 (the progress of a log consumer).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from .contract import NO_LETTERS, DeadLetters, StreamKey, Token

if TYPE_CHECKING:
    from typing_extensions import Self

    from .deliveries.contract import Lease

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchInDelivery:
    """A batch of which the destination has acknowledged a part."""

    batch_id: int
    digest: str
    rows_id: str
    """Identifies the batch's rows and their order. A batch that was written again has other positions."""
    position: int
    """All rows before this position are acknowledged."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a stream has delivered."""

    revision: int = 0
    """Number of changes; 0 if nothing was ever recorded."""
    token: Token | None = None
    """The last batch that is delivered completely."""
    in_delivery: BatchInDelivery | None = None


class SharedLogs(Protocol):
    """What the store knows of targets of one query that read the same row log."""

    def needed_by_others(self, stream: StreamKey, location: str, batch_ids: Collection[int]) -> set[int]:
        """Return those of the batches that other targets of the query have not delivered from the log there.

        A target records its progress before it asks. So of two that deliver a batch at the same time, at
        least one is told that the other does not need it any more.
        """
        ...

    def settled_by_others(self, stream: StreamKey, location: str) -> int | None:
        """Return the last batch whose files no other target of the query needs or may still prepare; None if
        no other target reads the log there.
        """
        ...


class ProgressStore(SharedLogs, Protocol):
    """Stores the progress of streams. Runs on the driver, in the delivery process and in commands.

    Each method is one short database transaction.
    """

    def read(self, stream: StreamKey) -> Progress: ...

    def dead_letters(self, stream: StreamKey, batch_id: int) -> int:
        """Number of stored dead letters of a batch that were refused by the destination."""
        ...

    def write(
        self,
        stream: StreamKey,
        expected: Progress,
        token: Token | None,
        in_delivery: BatchInDelivery | None = None,
        dead_letters: DeadLetters = NO_LETTERS,
        *,
        lease: Lease | None = None,
    ) -> Progress:
        """Replace the progress if it is still the expected one (compare-and-set), and return the new one.

        Args:
            dead_letters: rows up to this progress that were refused. They are stored in the same transaction;
                those that are stored already are left as they are.
            lease: of the delivery process, checked in the same transaction; None: the driver records

        Raises:
            FencedError: another process has changed it, or holds the lease. Nothing was written.
            RetryableError: nothing was written.
            CommitStateUnknownError: the database failed, and the progress may be recorded.
        """
        ...


@runtime_checkable
class StoresProgress(Protocol):
    """Capability of a target, and of a committer: its token is the progress in the store."""

    def with_progress(self, progress: ProgressStore) -> Self:
        """Return a copy that reads and writes its token there. Called before the first use."""
        ...


@runtime_checkable
class ReadsSharedLogs(Protocol):
    """Capability of a target with a token of its own, which reads a row log that others may read, too."""

    def with_shared_logs(self, logs: SharedLogs) -> Self:
        """Return a copy that asks the store which files others need. Without, it deletes none."""
        ...


class HasProgress(Protocol):
    """The manifest store."""

    @property
    def progress(self) -> ProgressStore: ...


@dataclass(frozen=True, slots=True)
class SupervisedProgress:
    """See `ProgressStore`. Each record is made under the lease, then `check` is called: a long delivery is
    supervised.
    """

    store: ProgressStore
    lease: Lease
    check: Callable[[], None]

    def read(self, stream: StreamKey) -> Progress:
        return self.store.read(stream)

    def dead_letters(self, stream: StreamKey, batch_id: int) -> int:
        return self.store.dead_letters(stream, batch_id)

    def write(
        self,
        stream: StreamKey,
        expected: Progress,
        token: Token | None,
        in_delivery: BatchInDelivery | None = None,
        dead_letters: DeadLetters = NO_LETTERS,
        *,
        lease: Lease | None = None,
    ) -> Progress:
        """Record it, then raise the error of the check: what is acknowledged is not sent again."""
        written = self.store.write(
            stream, expected, token, in_delivery, dead_letters, lease=lease or self.lease
        )
        self.check()
        return written

    def needed_by_others(self, stream: StreamKey, location: str, batch_ids: Collection[int]) -> set[int]:
        return self.store.needed_by_others(stream, location, batch_ids)

    def settled_by_others(self, stream: StreamKey, location: str) -> int | None:
        return self.store.settled_by_others(stream, location)


def with_store(
    table: T, store: HasProgress, lease: Lease | None = None, check: Callable[[], None] = lambda: None
) -> T:
    """Give the store's progress to a target or committer that needs it. Called wherever one is opened.

    Args:
        lease: of a delivery process. Once another process holds the lease, nothing more is recorded.
        check: with a lease, called after each record of the progress; an exception stops the delivery
    """
    if isinstance(table, ReadsSharedLogs):
        return table.with_shared_logs(store.progress)
    if not isinstance(table, StoresProgress):
        return table
    progress = store.progress
    return table.with_progress(progress if lease is None else SupervisedProgress(progress, lease, check))
