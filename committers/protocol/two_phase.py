"""The two-phase committer: runs the protocol for each batch on the driver. I/O goes through the store and the
table.

`begin` recovers pending batches (`recovery`) and decides whether the batch has to be written. `commit` makes
its manifest durable (`preparing`) and commits it (`commit_runner`). The store knows what is *pending*, the
table knows what is *committed*. If they disagree, the table is right. `decision` has the decision table;
`docs/protocol.md` shows the states and describes, for each crash point, what a restart finds and does.

Protocol: RisingWave RFC 0061 (persist the metadata of all writers, commit after that, recover at start), with
the idempotency token in the table's own commit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Generic

from ..contract import (
    AlreadyCommitted,
    Batch,
    Committable,
    Committed,
    Manifest,
    ManifestRecord,
    ManifestState,
    PayloadT,
)
from ..errors import RetryableError, SchemaMismatchError, TableChangedError
from ..store.contract import ManifestStore, Prepared
from ..target import PayloadCommitter
from .checkpoint_forks import CheckpointForks, DigestOf, refused
from .commit_runner import CommitRunner, Retry, stored_manifest
from .decision import REFUSALS, Action, decide, decide_when_read, token_position
from .preparing import Preparation, PreparationObserver, PreparedBatches, TargetBatch
from .recovery import Recovery


class TwoPhaseCommitter(Generic[PayloadT]):
    """Prepares, commits and marks the batches of one stream; recovers batches after a crash.

    Args:
        store: the manifest store
        table: commits to the stream's table
        retry: limits of the commit loop
        sleep, rng, now: injected for tests
    """

    def __init__(
        self,
        store: ManifestStore,
        table: PayloadCommitter[PayloadT],
        retry: Retry | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._store = store
        self._table = table
        self._forks = CheckpointForks(store, table)
        self.prepared = PreparedBatches(store, table)
        self._commit_runner = CommitRunner(store, table, retry, sleep=sleep, rng=rng, now=now)
        self.recovery = Recovery(store, table, self._commit_runner)

    # Before the write -----------------------------------------------------------------------------

    def begin(self, batch: Batch, digest_of: DigestOf = lambda _: None) -> Action:
        """Recover pending batches, then decide whether the executors have to write this batch.

        Called once per batch, after Spark has logged its offsets and before any task starts.

        Returns:
            `Action.WRITE` or `Action.SKIP`

        Raises:
            CheckpointMismatchError: the batch id is committed with other source offsets, or another copy of
                the checkpoint has written the batch before with other rows.
        """
        self.recovery.recover(batch.stream, replay=batch)
        action, record = self._decide(batch)
        if action is Action.MARK:  # a concurrent driver has committed it but not marked it yet
            self._commit_runner.commit_and_mark(stored_manifest(self._store, batch))
        if action in (Action.MARK, Action.SKIP):
            return Action.SKIP
        self._forks.check_before(batch, digest_of)
        if action is Action.SUPERSEDE and record is not None:
            self.prepared.supersede(record)
        return Action.WRITE

    def check(self, batch: Batch, digest_of: DigestOf = lambda _: None) -> None:
        """Make the checks of `begin` for the batch as it is before a recovery, and change nothing.

        Raises:
            CheckpointMismatchError: see `begin`
        """
        action, _ = self._decide(batch)
        if action not in (Action.MARK, Action.SKIP):
            self._forks.check_before(batch, digest_of)

    def _decide(self, batch: Batch) -> tuple[Action, ManifestRecord | None]:
        """Return the action, and the record of the batch. Raises as `begin`."""
        # Read the table before the store: a batch that a concurrent driver commits in between is then already
        # recorded.
        token = self._table.token(batch.stream.query_id)
        record = self._store.record(batch.stream, batch.batch_id)
        action = decide(record, token_position(token, batch), batch)
        if action in REFUSALS:
            raise refused(action, batch, token)
        return action, record

    # Prepare and commit ---------------------------------------------------------------------------

    def commit(
        self,
        manifest: Manifest,
        committables: Sequence[Committable[PayloadT]],
        observer: PreparationObserver | None = None,
    ) -> Committed | AlreadyCommitted:
        """Run phases one and two of a batch after all its tasks have succeeded.

        If an earlier manifest is valid for the batch, that one is committed instead, and the files of this
        one are deleted. If files of the earlier one are missing, or the table no longer accepts them, this
        one replaces it.

        Raises:
            FencedError: a newer run of the query has taken over.
            RetryableError: too many conflicts, and the batch stays PREPARED; or it is a batch write that
                started too long ago, which is aborted.
            CommitStateUnknownError: the batch may have been committed; it stays PREPARED.
        """
        targets = [TargetBatch(self, manifest, committables)]
        (outcome,) = Preparation(self._store, targets, observer).prepare()
        done: Committed | AlreadyCommitted = outcome
        return done

    def batch_before(self, batch: Batch, digest_before: str | None) -> None:
        """See `BatchCommitter`. Recovery has committed the batches before."""

    def finish(
        self, preparation: Preparation, target: TargetBatch, prepared: Prepared
    ) -> Committed | AlreadyCommitted:
        """Run phase two of a batch that is prepared; raises the errors of `commit`."""
        if prepared.is_ours:
            return self._commit_runner.commit_and_mark(target.manifest)
        earlier = prepared.record
        try:
            return self._commit_runner.commit_and_mark(stored_manifest(self._store, earlier.batch))
        except (SchemaMismatchError, TableChangedError):
            if earlier.state is ManifestState.PREPARED and preparation.replace(target, earlier):
                return self._commit_runner.commit_and_mark(target.manifest)
            raise

    def confirm_skipped(self, batch: Batch) -> None:
        """Check, after the tasks, that a skipped batch is really in the table.

        Raises:
            RetryableError: it is not in the table.
        """
        record = self._store.record(batch.stream, batch.batch_id)
        action = decide_when_read(record, batch, partial(self._table.token, batch.stream.query_id))
        if action not in (Action.SKIP, Action.MARK):
            raise RetryableError(
                f"Batch {batch.batch_id} of {batch.stream} was skipped but is not in the table."
            )
