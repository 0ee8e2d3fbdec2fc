"""What a commit request that ended in an error has done.

A response that got lost, and an object store that takes its own retry for a conflict, come as errors although
the commit has landed. So the table is read again, and decides. Runs where the commit runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .contract import Batch
from .errors import NEXT_TRY, CommitStateUnknownError, ConfigurationError, PenstockError, RetryableError


@dataclass(frozen=True, slots=True)
class FailedCommit:
    """A commit request that ended in an error."""

    what: str
    """What was to be committed, as an error message begins."""
    table: str
    """Format and address of the table."""
    error: str
    """The error as text, without secrets."""
    can_commit_later: bool
    """True if the request may still be on its way to a server."""
    if_unknown: str
    """What the user has to know if nobody can tell whether it has landed."""
    if_not_committed: str
    """What happens next if it has not landed."""
    cause: Exception | None = None
    """The error itself, unless it may show secrets."""
    unreadable: tuple[type[PenstockError], ...] = (RetryableError, ConfigurationError)
    """The errors by which the table cannot be read."""

    @contextmanager
    def reading_table(self) -> Iterator[None]:
        """Around the read of the table.

        Raises:
            CommitStateUnknownError: the table cannot be read.
        """
        try:
            yield
        except self.unreadable:
            raise self._unknown() from self.cause

    def not_found(self) -> PenstockError:
        """The error to raise if the table does not have the commit, and did not refuse it for a conflict.

        Returns:
            `CommitStateUnknownError` if it can land later: delete nothing; else `RetryableError`
        """
        if self.can_commit_later:
            return self._unknown()
        return RetryableError(
            f"{self.what} could not be committed to {self.table}: {self.error}. {self.if_not_committed}"
        )

    def _unknown(self) -> CommitStateUnknownError:
        return CommitStateUnknownError(
            f"{self.what} may or may not be in {self.table}: {self.error}. {self.if_unknown}"
        )


def failed_batch(
    batch: Batch, table: str, error: str, *, can_commit_later: bool, cause: Exception | None = None
) -> FailedCommit:
    """The commit of a batch."""
    return FailedCommit(
        what=f"Batch {batch.batch_id} of query {batch.stream.query_id}",
        table=table,
        error=error,
        can_commit_later=can_commit_later,
        if_unknown="Nothing is deleted. The query's next start, its next delivery or `penstock recover` "
        "looks at the table and finishes the batch.",
        if_not_committed=f"It did not land. Correct the cause. {NEXT_TRY}",
        cause=cause,
    )


def failed_compaction(
    table: str, error: str, *, can_commit_later: bool, cause: Exception | None = None
) -> FailedCommit:
    """The commit of compacted files."""
    return FailedCommit(
        what="Compacted files",
        table=table,
        error=error,
        can_commit_later=can_commit_later,
        if_unknown="The rows are the same either way. Nothing is deleted: clean-up sees which files the "
        "table has.",
        if_not_committed="Nothing was changed; it is tried again.",
        cause=cause,
        unreadable=(PenstockError,),
    )
