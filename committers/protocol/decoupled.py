"""Phase one of a decoupled stream: the decisions of its driver. I/O goes through the store and the table.

Runs on the driver. A batch is done once its manifest is durable; a delivery process commits it later. So the
store is asked first. The table is read only if the store cannot decide: at the start of a run, for a replay,
and if the store does not know the batch before.

Delivery relies on two rules: batches are delivered in ascending order, and a token ahead of a prepared batch
means that the batch is in the table. So if a batch comes back with other rows, all batches after it are
aborted with it, and delivery never passes an aborted batch that waits for its replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic

from ..contract import Batch, Committable, Manifest, ManifestRecord, ManifestState, PayloadT, StreamKey, Token
from ..errors import CheckpointMismatchError, RetryableError
from ..store.contract import ManifestStore, Prepared
from ..target import PayloadCommitter
from .checkpoint_forks import CheckpointForks, DigestOf, refused
from .commit_runner import CommitRunner, Retry
from .decision import REFUSALS, Action, TokenPosition, decide, decide_when_read, token_position
from .preparing import Preparation, PreparedBatches, TargetBatch
from .recovery import Recovery, check_replaceable


class DecoupledCommitter(Generic[PayloadT]):
    """Prepares the batches of one decoupled stream. A delivery process commits them later.

    Args:
        may_start_with: returns True if the stream may start with this batch although neither the store nor
            the table has the one before: a new target of a query that is already running
    """

    def __init__(
        self,
        store: ManifestStore,
        table: PayloadCommitter[PayloadT],
        may_start_with: Callable[[Batch], bool] = lambda _: False,
    ) -> None:
        self._store = store
        self._table = table
        self._may_start_with = may_start_with
        self._forks = CheckpointForks(store, table)
        self.prepared = PreparedBatches(store, table)

    # Before the write -----------------------------------------------------------------------------

    def begin(
        self,
        batch: Batch,
        digest_of: DigestOf = lambda _: None,
        cached_token: Token | None = None,
    ) -> Action:
        """Decide whether the executors have to write this batch.

        Called once per batch, after Spark has logged its offsets and before any task starts. If the store
        knows the batch before, the table is not read unless a batch has to be aborted.

        Args:
            cached_token: the token when the table was last loaded

        Returns:
            `Action.WRITE` or `Action.SKIP`

        Raises:
            CheckpointMismatchError: as in coupled mode, or the store has lost undelivered batches.
            RetryableError: the batch must be aborted but is being delivered. Start again.
        """
        action, record = self.check(batch, digest_of, cached_token)
        if action is Action.SUPERSEDE and record is not None:
            self.prepared.supersede(record)
        return Action.SKIP if action is Action.SKIP else Action.WRITE

    def check(
        self,
        batch: Batch,
        digest_of: DigestOf = lambda _: None,
        cached_token: Token | None = None,
    ) -> tuple[Action, ManifestRecord | None]:
        """Decide as `begin`, and change nothing. Raises as `begin`, except for a batch that must be aborted.

        Returns:
            `WRITE`, `SUPERSEDE` or `SKIP`, and the record of the batch
        """
        record = self._store.record(batch.stream, batch.batch_id)
        action = self._decide(batch, record, cached_token)
        is_pending = record is not None and record.state is ManifestState.PREPARED
        if action is not Action.SKIP or is_pending:
            before = self._forks.check_before(batch, digest_of, is_delivered=True)
            if before is None and record is None:
                self._check_nothing_lost(batch)
        return action, record

    def _decide(self, batch: Batch, record: ManifestRecord | None, cached_token: Token | None) -> Action:
        position, token = self._position(batch, record, cached_token)
        if record is None and position not in (TokenPosition.BEHIND, TokenPosition.NOT_READ):
            # A concurrent driver may have prepared the batch, and a delivery may have committed it, since the
            # store was read.
            record = self._store.record(batch.stream, batch.batch_id)
        action = decide(record, position, batch, is_decoupled=True)
        if action is Action.READ_TOKEN:
            token = self._table.token(batch.stream.query_id)
            action = decide(record, token_position(token, batch), batch, is_decoupled=True)
        if action in REFUSALS:
            raise refused(action, batch, token)
        if record is not None and record.state is ManifestState.PREPARED and action is Action.SKIP:
            return self._unless_missing(record, batch)
        return action

    def _position(
        self, batch: Batch, record: ManifestRecord | None, cached_token: Token | None
    ) -> tuple[TokenPosition, Token | None]:
        """Position of the token; NOT_READ if the store can decide without it."""
        if record is not None:
            return TokenPosition.NOT_READ, None
        # Delivered from another store?
        if cached_token is not None and cached_token.batch_id >= batch.batch_id:
            return token_position(cached_token, batch), cached_token
        is_next = batch.batch_id > 0 and self._store.record(batch.stream, batch.batch_id - 1) is not None
        if is_next:  # the store has all earlier batches and would have this one
            return TokenPosition.BEHIND, None
        token = self._table.token(batch.stream.query_id)
        return token_position(token, batch), token

    def _unless_missing(self, record: ManifestRecord, batch: Batch) -> Action:
        """A replay. It is only written again if its files are missing; then the old manifest is replaced at
        prepare.

        Until then the old manifest stays, and so do the batches after it: a concurrent driver may be ahead.
        """
        if record.batch != batch:  # the table has it, but never had the rows of the record
            return Action.SKIP
        if missing := self.prepared.missing(record):
            check_replaceable(record, missing)
        return Action.WRITE if missing else Action.SKIP

    def _check_nothing_lost(self, batch: Batch) -> None:
        """The store does not know the batch before. Either the table has it, or it was prepared and is
        lost.
        """
        if batch.batch_id == 0:
            return
        token = self._table.token(batch.stream.query_id)
        last = -1 if token is None else token.batch_id
        if last < batch.batch_id - 1 and not self._may_start_with(batch):
            raise CheckpointMismatchError(_undelivered_lost(batch, last))

    # Prepare --------------------------------------------------------------------------------------

    def prepare(
        self,
        manifest: Manifest,
        committables: Sequence[Committable[PayloadT]],
        digest_before: str | None = None,
    ) -> None:
        """Store the manifest after all tasks have succeeded. After that Spark may continue.

        If an earlier manifest is valid for the batch, no manifest lists the files of this one, and they are
        deleted.

        Args:
            digest_before: digest of the batch before, from the checkpoint, when this batch was planned

        Raises:
            CheckpointMismatchError: the earlier manifest has other source offsets.
            FencedError: another run has taken over. The files are deleted.
            RetryableError: the store failed, or another run has changed it.
        """
        Preparation(self._store, [TargetBatch(self, manifest, committables, digest_before)]).prepare()

    def finish(self, preparation: Preparation, target: TargetBatch, prepared: Prepared) -> None:
        """Do nothing: a delivery process commits the batch."""

    def batch_before(self, batch: Batch, digest_before: str | None = None) -> Batch | None:
        """Return the batch that the store must still have before this one; None if it does not know it.

        Args:
            digest_before: see `prepare`

        Raises:
            CheckpointMismatchError: another copy of the checkpoint has written the batch before.
            RetryableError: neither the store nor the table has it.
        """
        last = batch.batch_id - 1
        before = self._forks.check_before(
            batch, lambda batch_id: digest_before if batch_id == last else None, is_delivered=True
        )
        if before is None:
            self._check_follows_table(batch)
        return None if before is None else before.batch

    def _check_follows_table(self, batch: Batch) -> None:
        """Check the table if the store does not know the batch before.

        Raises:
            RetryableError: the table does not have it either. The store was replaced while the batch was
                written, and records of undelivered batches are lost: the next start reports that.
        """
        token = self._table.token(batch.stream.query_id) if batch.batch_id > 0 else None
        if batch.batch_id == 0 or (token is not None and token.batch_id >= batch.batch_id - 1):
            return
        if self._may_start_with(batch):
            return
        raise RetryableError(
            f"Neither the manifest store nor the table has batch {batch.batch_id - 1} of {batch.stream}: "
            f"the store was replaced while batch {batch.batch_id} was written. Nothing was prepared. Start "
            "the query again."
        )

    def confirm_skipped(self, batch: Batch) -> None:
        """Check, after the tasks, that a skipped batch is really durable."""
        record = self._store.record(batch.stream, batch.batch_id)
        read_token = partial(self._table.token, batch.stream.query_id)
        if decide_when_read(record, batch, read_token, is_decoupled=True) is not Action.SKIP:
            raise RetryableError(
                f"Batch {batch.batch_id} of {batch.stream} was skipped but is neither prepared nor in the "
                "table: it was aborted in the meantime. Start the query again to write it."
            )


class JoiningCommitter(DecoupledCommitter[PayloadT]):
    """Prepares the batches of a table that only some batches of its query have rows for.

    Another target of the query, which is prepared in the same transaction, has all batches: it decides
    whether one has to be written, and that none is missing.
    """

    def __init__(self, store: ManifestStore, table: PayloadCommitter[PayloadT]) -> None:
        super().__init__(store, table, lambda _: True)

    def batch_before(self, batch: Batch, digest_before: str | None = None) -> None:
        """See `BatchCommitter`. The table is not read."""


class DeliveringCommitter(DecoupledCommitter[PayloadT]):
    """Prepares as a decoupled stream, and delivers at once what is prepared; a delivery process may help.

    For a target of a coupled query that is decoupled itself.

    Args:
        retry: limits of the commit loop
        check: called with the stream before batches are delivered; an exception stops that
    """

    def __init__(
        self,
        store: ManifestStore,
        table: PayloadCommitter[PayloadT],
        may_start_with: Callable[[Batch], bool],
        retry: Retry,
        check: Callable[[StreamKey], None] = lambda _: None,
    ) -> None:
        super().__init__(store, table, may_start_with)
        self._check_table = check
        self._recovery = Recovery(store, table, CommitRunner(store, table, retry))

    def finish(self, preparation: Preparation, target: TargetBatch, prepared: Prepared) -> None:
        """Commit the batch, and those before it that a crash has left."""
        self._deliver(prepared.record.batch.stream)

    def confirm_skipped(self, batch: Batch) -> None:
        super().confirm_skipped(batch)
        self._deliver(batch.stream)

    def _deliver(self, stream: StreamKey) -> None:
        """
        Raises:
            RetryableError: a batch is not committed, and stays prepared.
        """
        self._check_table(stream)
        for recovered in self._recovery.recover_each(stream):
            if recovered.state is not ManifestState.COMMITTED:
                raise RetryableError(
                    f"Batch {recovered.record.batch.batch_id} of {stream} is not committed: "
                    f"{recovered.reason}. Start the query again."
                )


def _undelivered_lost(batch: Batch, last: int) -> str:
    holds = "no batch of it" if last < 0 else f"batch {last} as the last one"
    return (
        f"The manifest store does not know the batch before batch {batch.batch_id} of query "
        f"{batch.stream.query_id}, and the table {batch.stream.table_uri} has {holds}: prepared batches "
        "were lost with the store. Nothing was written. Restore the store; or start the query with a new "
        "checkpoint to write the table from the beginning; or, to continue without these rows (or if there "
        "are none because the checkpoint is older than the sink), start it once with delivery=coupled and "
        "newTarget=allow until one batch is committed."
    )
