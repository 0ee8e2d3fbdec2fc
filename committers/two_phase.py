"""The two-phase committer: what becomes of a batch on the driver, and no I/O of its own.

`begin` recovers what is pending (`recovery`) and says whether the batch is to be written; `commit` makes its
manifest durable (`preparing`) and takes it into the table (`landing`). The store knows what is *pending*, the
table what is *committed*; where they disagree the table is right. `decision` has the table of all that can
happen to a batch; `docs/protocol.md` draws the states and says, for each crash point, what a restart finds
and does.

Protocol: RisingWave RFC 0061 (persist the metadata of all writers, commit after, recover at start), with
the idempotency token inside the table's own commit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Generic

from .checkpoint_forks import CheckpointForks, DigestOf, refused
from .commit_runner import CommitRunner, Retry, stored_manifest
from .contract import (
    AlreadyCommitted,
    Batch,
    Committable,
    Committed,
    Manifest,
    ManifestRecord,
    ManifestState,
    ManifestStore,
    PayloadCommitter,
    PayloadT,
)
from .decision import REFUSALS, Action, decide, decide_when_read, token_position
from .errors import PenstockError, RetryableError, SchemaMismatchError, TableChangedError
from .preparing import Preparation
from .recovery import Recovery


class TwoPhaseCommitter(Generic[PayloadT]):
    """Takes the batches of one stream through prepare, commit and mark; recovers what a crash left.

    Args:
        store: the manifest store
        table: commits to the stream's table
        retry: bounds of the commit loop
        sleep, rng, now: injected, so that tests run without waiting
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
        self._preparation = Preparation(store, table)
        self._commit_runner = CommitRunner(store, table, retry, sleep=sleep, rng=rng, now=now)
        self.recovery = Recovery(store, table, self._commit_runner)

    # Before the write -----------------------------------------------------------------------------

    def begin(self, batch: Batch, digest_of: DigestOf = lambda _: None) -> Action:
        """Recover what is pending, then say whether the executors have to write this batch.

        Called once per batch, after Spark has logged its offsets and before any task starts.

        Returns:
            `Action.WRITE` or `Action.SKIP`

        Raises:
            CheckpointMismatchError: the batch id is committed with other source offsets, or another copy of
                the checkpoint has written other rows than this one under the batch before.
        """
        self.recovery.recover(batch.stream, replay=batch)
        # The table before the store: what a twin lands meanwhile is on record by the time it is looked for.
        token = self._table.token(batch.stream.query_id)
        record = self._store.record(batch.stream, batch.batch_id)
        action = decide(record, token_position(token, batch), batch)
        if action in REFUSALS:
            raise refused(action, batch, token)
        if action is Action.MARK:  # a twin has committed it since, and not marked it yet
            self._commit_runner.commit_and_mark(stored_manifest(self._store, batch))
        if action in (Action.MARK, Action.SKIP):
            return Action.SKIP
        self._forks.check_before(batch, digest_of)
        if action is Action.SUPERSEDE and record is not None:
            self._preparation.supersede(record)
        return Action.WRITE

    # Prepare and commit ---------------------------------------------------------------------------

    def commit(
        self, manifest: Manifest, committables: Sequence[Committable[PayloadT]]
    ) -> Committed | AlreadyCommitted:
        """Phase one and two of a batch whose tasks have all succeeded.

        If an earlier manifest holds for the batch, that one is committed instead, and the files of this
        one, which nothing names, are deleted. If files of the earlier one are gone, or the table takes them
        no more, this one takes its place.

        Raises:
            FencedError: a newer run of the query has taken over.
            RetryableError: the table was too busy, and the batch stays PREPARED; or it is a batch write that
                began too long ago, which is given up.
            CommitStateUnknownError: the batch may have landed; it stays PREPARED.
        """
        prepared = self._preparation.prepare(manifest, committables)
        if prepared.is_ours:
            return self._commit_runner.commit_and_mark(manifest)
        return self._commit_earlier(prepared.record, manifest, committables)

    def _commit_earlier(
        self, earlier: ManifestRecord, manifest: Manifest, committables: Sequence[Committable[PayloadT]]
    ) -> Committed | AlreadyCommitted:
        try:
            outcome = self._commit_runner.commit_and_mark(stored_manifest(self._store, manifest.batch))
        except PenstockError as error:
            is_refused = isinstance(error, (SchemaMismatchError, TableChangedError))
            is_refused = is_refused and earlier.state is ManifestState.PREPARED
            if is_refused and self._preparation.put(manifest, committables, replacing=earlier).is_ours:
                return self._commit_runner.commit_and_mark(manifest)
            self._preparation.delete_unnamed(committables, earlier)
            raise
        self._preparation.delete_unnamed(committables, earlier)
        return outcome

    def confirm_skipped(self, batch: Batch) -> None:
        """Check, after the tasks, that a batch which no task wrote is in the table indeed.

        Raises:
            RetryableError: it is not.
        """
        record = self._store.record(batch.stream, batch.batch_id)
        action = decide_when_read(record, batch, partial(self._table.token, batch.stream.query_id))
        if action not in (Action.SKIP, Action.MARK):
            raise RetryableError(
                f"Batch {batch.batch_id} of {batch.stream} was skipped but is not in the table."
            )
