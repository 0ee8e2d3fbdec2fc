"""Phase one of a decoupled stream: every decision of its driver, and no I/O of its own.

Runs on the driver. A batch is done once its manifest is durable; a delivery process takes it into the table.
So the store is asked first here, and the table only where the store cannot know: at the start of a run, when
a batch comes back, and when a batch follows on none that the store has seen.

What delivery relies on: batches are delivered in ascending order, and a token ahead of a prepared batch says
that the batch is in the table. So whatever waits behind a batch that comes back with other rows is given up
with it, and nothing is delivered past one that was given up and has not come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Generic

from .checkpoint_forks import CheckpointForks, DigestOf, refused
from .contract import (
    Batch,
    Committable,
    Manifest,
    ManifestRecord,
    ManifestState,
    ManifestStore,
    PayloadCommitter,
    PayloadT,
    Token,
)
from .decision import REFUSALS, Action, TokenPosition, decide, decide_when_read, token_position
from .errors import CheckpointMismatchError, RetryableError
from .preparing import Preparation
from .recovery import check_replaceable


class DecoupledCommitter(Generic[PayloadT]):
    """Takes the batches of one decoupled stream through prepare; delivery does the rest, some time later."""

    def __init__(self, store: ManifestStore, table: PayloadCommitter[PayloadT]) -> None:
        self._store = store
        self._table = table
        self._forks = CheckpointForks(store, table)
        self._preparation = Preparation(store, table)

    # Before the write -----------------------------------------------------------------------------

    def begin(
        self,
        batch: Batch,
        digest_of: DigestOf = lambda _: None,
        cached_token: Token | None = None,
    ) -> Action:
        """Say whether the executors have to write this batch.

        Called once per batch, after Spark has logged its offsets and before any task starts. The table is
        not asked if the store knows the batch before this one, unless a batch has to be given up.

        Args:
            seen: the token that the table had when it was last looked at

        Returns:
            `Action.WRITE` or `Action.SKIP`

        Raises:
            CheckpointMismatchError: as in coupled mode, or the store has lost batches that were not delivered
                yet.
            RetryableError: the batch must be given up, but is just being delivered. Start again.
        """
        record = self._store.record(batch.stream, batch.batch_id)
        action = self._decide(batch, record, cached_token)
        is_pending = record is not None and record.state is ManifestState.PREPARED
        if action is not Action.SKIP or is_pending:
            before = self._forks.check_before(batch, digest_of, is_delivered=True)
            if before is None and record is None:
                self._check_nothing_lost(batch)
        if action is Action.SUPERSEDE and record is not None:
            self._preparation.supersede(record)
        return Action.SKIP if action is Action.SKIP else Action.WRITE

    def _decide(self, batch: Batch, record: ManifestRecord | None, cached_token: Token | None) -> Action:
        position, token = self._position(batch, record, cached_token)
        if record is None and position not in (TokenPosition.BEHIND, TokenPosition.NOT_READ):
            # Since the store was asked, a twin may have prepared the batch, and somebody delivered it.
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
        """Where the token stands; not read if the store may decide without it."""
        if record is not None:
            return TokenPosition.NOT_READ, None
        if (
            cached_token is not None and cached_token.batch_id >= batch.batch_id
        ):  # delivered from another store
            return token_position(cached_token, batch), cached_token
        is_next = batch.batch_id > 0 and self._store.record(batch.stream, batch.batch_id - 1) is not None
        if is_next:  # the store has all that came before, and would have this one
            return TokenPosition.BEHIND, None
        token = self._table.token(batch.stream.query_id)
        return token_position(token, batch), token

    def _unless_missing(self, record: ManifestRecord, batch: Batch) -> Action:
        """A replay. It need not be written again, unless its files are gone: then it gives way at prepare.

        Until then it stays, and with it what follows on its rows: a twin may have come further.
        """
        if record.batch != batch:  # the table has it, and has never had the rows that the record names
            return Action.SKIP
        if missing := self._preparation.missing(record):
            check_replaceable(record, missing)
        return Action.WRITE if missing else Action.SKIP

    def _check_nothing_lost(self, batch: Batch) -> None:
        """The store does not know the batch before. Then the table has it, or it was prepared and is lost."""
        if batch.batch_id == 0:
            return
        token = self._table.token(batch.stream.query_id)
        last = -1 if token is None else token.batch_id
        if last < batch.batch_id - 1:
            raise CheckpointMismatchError(_undelivered_lost(batch, last))

    # Prepare --------------------------------------------------------------------------------------

    def prepare(
        self,
        manifest: Manifest,
        committables: Sequence[Committable[PayloadT]],
        digest_before: str | None = None,
    ) -> None:
        """Make a batch durable whose tasks have all succeeded. Then Spark may go on.

        If an earlier manifest holds for the batch, the files of this one, which nothing names, are deleted.

        Args:
            digest_before: of the batch before, as the checkpoint had it when this one was planned

        Raises:
            CheckpointMismatchError: the earlier one has other source offsets.
            FencedError: another run has taken over. The files are deleted.
            RetryableError: the store failed, or was changed by another run meanwhile.
        """
        last = manifest.batch.batch_id - 1
        before = self._forks.check_before(
            manifest.batch,
            lambda batch_id: digest_before if batch_id == last else None,
            is_delivered=True,
        )
        if before is None:
            self._check_follows_table(manifest.batch, committables)
        follows = None if before is None else before.batch
        prepared = self._preparation.prepare(manifest, committables, follows)
        if not prepared.is_ours:
            self._preparation.delete_unnamed(committables, prepared.record)

    def _check_follows_table(self, batch: Batch, committables: Sequence[Committable[PayloadT]]) -> None:
        """The store does not know the batch before. If the table has it, nothing hides behind this one.

        Raises:
            RetryableError: it has not. The store was replaced while the batch was written, and what it knew
                of batches that were not delivered is gone: the next start says so.
        """
        token = self._table.token(batch.stream.query_id) if batch.batch_id > 0 else None
        if batch.batch_id == 0 or (token is not None and token.batch_id >= batch.batch_id - 1):
            return
        self._preparation.delete(committables)
        raise RetryableError(
            f"The manifest store knows no batch {batch.batch_id - 1} of {batch.stream}, nor does the "
            f"table: it was replaced while batch {batch.batch_id} was written. Nothing was prepared. "
            "Start the query again."
        )

    def confirm_skipped(self, batch: Batch) -> None:
        """Check, after the tasks, that a batch which no task wrote is durable indeed."""
        record = self._store.record(batch.stream, batch.batch_id)
        read_token = partial(self._table.token, batch.stream.query_id)
        if decide_when_read(record, batch, read_token, is_decoupled=True) is not Action.SKIP:
            raise RetryableError(
                f"Batch {batch.batch_id} of {batch.stream} was skipped but is neither prepared nor in the "
                "table: it was given up meanwhile. Start the query again, and it is written."
            )


def _undelivered_lost(batch: Batch, last: int) -> str:
    holds = "no batch of it" if last < 0 else f"batch {last} as the last one"
    return (
        f"The query {batch.stream.query_id} is at batch {batch.batch_id}, but the manifest store does not "
        f"know the batch before, and the table {batch.stream.table_uri} holds {holds}: batches that were "
        "prepared and not delivered went with the store. Nothing was written. Put the store back; or "
        "start the query with a new checkpoint to write the table from the beginning; or, to go on without "
        "these rows (or if there are none: the checkpoint is older than the sink), start it once with "
        "delivery=coupled until a batch is through."
    )
