"""Commits one manifest: retries after conflicts, then marks the batch in the store.

Runs on the driver and in the delivery process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial

from .. import crash_points
from ..contract import AlreadyCommitted, Batch, Committed, Conflict, Manifest, ManifestState, Token
from ..errors import NEXT_TRY, CheckpointMismatchError, FencedError, RetryableError
from ..store.contract import ManifestStore
from ..target import Committer, HoldsRefusedRows
from .batch_writes import COMMIT_WITHIN, batch_write_of
from .checkpoint_forks import CheckpointForks


@dataclass(frozen=True, slots=True)
class Retry:
    """Limits of the commit loop. The wait doubles from `wait_s` up to `wait_s_max`, with full jitter."""

    attempts_max: int = 100
    wait_s: float = 0.05
    wait_s_max: float = 5.0

    def waits(self, rng: random.Random | None = None) -> Iterator[float]:
        rng = rng or random.Random()
        step_s = min(self.wait_s, self.wait_s_max)
        for _ in range(self.attempts_max - 1):
            yield rng.uniform(0, step_s)
            step_s = min(2 * step_s, self.wait_s_max)


_NOT_COMMITTED = (
    "and was not committed: clean-up may already have deleted its files. Run the write again, split into "
    "several parts if it takes that long."
)
_MAY_BE_COMMITTED = (
    "and is not committed now: clean-up may already have deleted its files. The table does not show that "
    "it was committed before, but it keeps tokens of batch writes only for a week, and snapshots expire. "
    "Look for its rows in the table, and run the write again only if there are none."
)


class CommitRunner:
    """Commits prepared manifests of one stream to its table.

    Args:
        store: the manifest store
        table: commits to the stream's table
        retry: limits of the commit loop
        sleep, rng, now: injected for tests
    """

    def __init__(
        self,
        store: ManifestStore,
        table: Committer,
        retry: Retry | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._store = store
        self._table = table
        self._forks = CheckpointForks(store, table)
        self._retry = retry or Retry()
        self._sleep = sleep
        self._rng = rng
        self._now = now

    def commit_and_mark(self, manifest: Manifest) -> Committed | AlreadyCommitted:
        """Commit with retries, then mark the batch. The token is checked on each attempt."""
        batch = manifest.batch
        try:
            outcome = self.commit(manifest)
        except CheckpointMismatchError as error:  # can never be committed; a later token must not hide that
            self._store.finish(batch, ManifestState.ABORTED, reason=str(error))
            raise
        marked = self._store.finish(
            batch,
            ManifestState.COMMITTED,
            table_version=outcome.table_version,
            dead_letters=outcome.dead_letters,
            dropped_rows=outcome.dropped_rows,
        )
        crash_points.reach("mark.done", batch.batch_id)
        self.delete_refused_rows(manifest, outcome)
        if not marked and self.state(batch) is not ManifestState.COMMITTED:
            raise FencedError(
                f"Batch {batch.batch_id} of {batch.stream} was committed, but another run has aborted it in "
                "the store in the meantime. Make sure that only one driver runs the query; its next start "
                "finds the batch in the table."
            )
        return outcome

    def commit(self, manifest: Manifest) -> Committed | AlreadyCommitted:
        """Commit, and retry after conflicts up to the limit. Raises the errors of `Committer.commit`.

        Raises:
            CheckpointMismatchError: the batch would follow one of another copy of the checkpoint.
            RetryableError: too many conflicts, or the batch write is too old; the batch was not committed.
        """
        if manifest.is_empty:
            return AlreadyCommitted()
        batch, waits = manifest.batch, self._retry.waits(self._rng)
        check_token = partial(self._check_attempt, batch)
        while True:
            outcome = self._table.commit(manifest, check_token)
            if not isinstance(outcome, Conflict):
                return outcome
            wait_s = next(waits, None)
            if wait_s is None:
                raise RetryableError(
                    f"Batch {batch.batch_id} of {batch.stream} was not committed: it conflicted with other "
                    f"writers {self._retry.attempts_max} times, last: {outcome.reason}. It stays prepared. "
                    f"{NEXT_TRY} To retry more often, raise maxCommitAttempts."
                )
            self._sleep(wait_s)

    def delete_refused_rows(self, manifest: Manifest, outcome: Committed | AlreadyCommitted) -> None:
        """Delete the rows that the table refused and still holds. Called once the store has them."""
        if outcome.dead_letters and isinstance(self._table, HoldsRefusedRows):
            self._table.delete_refused_rows(manifest)

    def _check_attempt(self, batch: Batch, token: Token | None) -> None:
        """Called right before each commit request, when the table does not have the batch."""
        self._forks.check_token(batch.stream, token)
        self.check_age(batch)

    def check_age(self, batch: Batch, *, was_tried: bool = False) -> None:
        """Abort a batch write that started too long ago. Called when the table does not have it.

        Args:
            was_tried: an earlier process may have committed it

        Raises:
            RetryableError: it started too long ago.
        """
        write = batch_write_of(batch.stream.query_id)
        if write is None or self._now() <= write.began_at + COMMIT_WITHIN:
            return
        began = (
            f"The batch write into {batch.stream.table_uri} started at {write.began_at:%Y-%m-%d %H:%M} UTC, "
            f"more than {COMMIT_WITHIN.days} days ago, "
        )
        reason = began + (_MAY_BE_COMMITTED if was_tried else _NOT_COMMITTED)
        self._store.finish(batch, ManifestState.ABORTED, reason=reason)  # its manifest no longer keeps files
        raise RetryableError(reason)

    def state(self, batch: Batch) -> ManifestState | None:
        """The state in the store; None if the store does not know the batch or has other rows under its
        id.
        """
        record = self._store.record(batch.stream, batch.batch_id)
        return record.state if record is not None and record.batch.digest == batch.digest else None


def stored_manifest(store: ManifestStore, batch: Batch) -> Manifest:
    """Return the manifest of a batch that the store has a record of.

    Raises:
        RetryableError: the store no longer has it.
    """
    return checked_manifest(batch, store.manifest(batch.stream, batch.batch_id))


def checked_manifest(batch: Batch, manifest: Manifest | None) -> Manifest:
    """Return what the store has as the manifest of a batch. Raises as `stored_manifest`."""
    if manifest is None or manifest.batch != batch:
        what = "no manifest" if manifest is None else "the manifest of other rows"
        raise RetryableError(
            f"The store had a record of batch {batch.batch_id} of {batch.stream} and now has {what}: the "
            "store was replaced, or changed by hand. Start the query again."
        )
    return manifest
