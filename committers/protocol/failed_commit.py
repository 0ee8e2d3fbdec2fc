"""Finds out whether a failed commit request has committed.

If the response was lost, or if an object store treats its own retry as a conflict, the request fails although
the commit has succeeded. So the table is read again. Runs where the commit runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..contract import Batch
from ..errors import NEXT_TRY, CommitStateUnknownError, ConfigurationError, PenstockError, RetryableError


@dataclass(frozen=True, slots=True)
class FailedCommit:
    """A commit request that failed with an error."""

    what: str
    """What was to be committed; the subject of the error message."""
    table: str
    """Format and address of the table."""
    error: str
    """Text of the error, without secrets."""
    can_commit_later: bool
    """True if the server may still execute the request later."""
    if_unknown: str
    """Shown if it is unknown whether the commit has succeeded."""
    if_not_committed: str
    """Shown if the commit has not succeeded: the next step."""
    cause: Exception | None = None
    """The error itself, unless it may contain secrets."""
    unreadable: tuple[type[PenstockError], ...] = (RetryableError, ConfigurationError)
    """Errors that mean that the table cannot be read."""

    @contextmanager
    def reading_table(self) -> Iterator[None]:
        """Context manager for reading the table.

        Raises:
            CommitStateUnknownError: the table cannot be read.
        """
        try:
            yield
        except self.unreadable:
            raise self._unknown() from self.cause

    def not_found(self) -> PenstockError:
        """The error to raise if the table does not have the commit and there was no conflict.

        Returns:
            `CommitStateUnknownError` if the request can still be executed: delete nothing; else
                `RetryableError`
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
    """The failed commit of a batch."""
    return FailedCommit(
        what=f"Batch {batch.batch_id} of query {batch.stream.query_id}",
        table=table,
        error=error,
        can_commit_later=can_commit_later,
        if_unknown="Nothing is deleted. The query's next start, its next delivery or `penstock recover` "
        "checks the table and finishes the batch.",
        if_not_committed=f"The batch was not committed. Fix the cause. {NEXT_TRY}",
        cause=cause,
    )


def failed_compaction(
    table: str, error: str, *, can_commit_later: bool, cause: Exception | None = None
) -> FailedCommit:
    """The failed commit of compacted files."""
    return FailedCommit(
        what="Compacted files",
        table=table,
        error=error,
        can_commit_later=can_commit_later,
        if_unknown="The rows are the same in both cases. Nothing is deleted: clean-up finds out which "
        "files the table has.",
        if_not_committed="Nothing was changed. The next run tries again.",
        cause=cause,
        unreadable=(PenstockError,),
    )
