"""Recovery: finishes phase two of batches that a crash, an outage or conflicts have left PREPARED.

Runs on the driver at the start of each batch, and in `penstock recover`. The store knows what is pending, the
table knows what is committed. If they disagree, the table is right. `docs/protocol.md` describes, for each
crash point, what a restart finds and does.

Protocol: RisingWave RFC 0061 (the coordinator recovers at start), with the idempotency token in the table's
own commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import crash_points
from ..contract import NO_LETTERS, Batch, DeadLetters, ManifestRecord, ManifestState, StreamKey
from ..errors import RetryableError, SchemaMismatchError, TableChangedError
from ..store.contract import ManifestStore
from ..target import Committer, HoldsRefusedRows
from .checkpoint_forks import CheckpointForks, mismatch, never_came_back, refused
from .commit_runner import CommitRunner, stored_manifest
from .decision import REFUSALS, Action, decide, is_in_table, token_position


@dataclass(frozen=True, slots=True)
class Recovered:
    """Outcome of recovery for one pending batch."""

    record: ManifestRecord
    state: ManifestState
    reason: str


class Recovery:
    """Recovers the pending batches of one stream.

    Args:
        commit_runner: commits the batches; None: one with the default limits of the commit loop
    """

    def __init__(
        self, store: ManifestStore, table: Committer, commit_runner: CommitRunner | None = None
    ) -> None:
        self._store = store
        self._table = table
        self._commit_runner = commit_runner or CommitRunner(store, table)
        self._forks = CheckpointForks(store, table)

    def recover(self, stream: StreamKey, replay: Batch | None = None) -> list[Recovered]:
        """Finish phase two of each pending batch of the stream, in ascending order.

        Stops at the first batch that is not committed: the token of a later one would mean that it is.

        Args:
            replay: the batch that Spark is about to run. Only this batch may be aborted for its replay. If
                the checkpoint was rewound, later batches stay as they are until they are replayed.

        Raises:
            CheckpointMismatchError: a batch before the replay follows one that was aborted and has not been
                replayed.
            TableChangedError, TableNotSupportedError, SchemaMismatchError: the table does not accept a
                pending batch, and no replay will write it again. The batch stays PREPARED.
            RetryableError: a batch write started too long ago, and is ABORTED.
        """
        return list(self.recover_each(stream, replay))

    def recover_each(self, stream: StreamKey, replay: Batch | None = None) -> Iterator[Recovered]:
        """Same as `recover`, but yields batch by batch, to show progress."""
        for record in self._store.pending(stream):
            if replay is not None and record.batch.batch_id > replay.batch_id:
                return
            gap = self._forks.gap_before(record.batch)
            if gap is not None and replay is not None and record.batch.batch_id < replay.batch_id:
                raise mismatch(replay, never_came_back(gap))  # its token would hide both
            recovered = self._recover_one(record, replay) if gap is None else _left_behind(record, gap)
            yield recovered
            if recovered.state is not ManifestState.COMMITTED:
                return

    def accept_pending(self, stream: StreamKey) -> list[Recovered]:
        """Mark pending batches whose token the table has, even if their rows were removed.

        Only used when an operator accepts a table that was restored after the batches were committed.
        """
        token = self._table.token(stream.query_id)
        committed = [record for record in self._store.pending(stream) if is_in_table(token, record.batch)]
        reason = "accepted by an operator with the table as it is"
        return [
            self._finish(record, ManifestState.COMMITTED, reason, self._refused_rows(record))
            for record in committed
        ]

    def _refused_rows(self, record: ManifestRecord) -> DeadLetters:
        """Rows of a committed batch that the table refused and still holds; clean-up deletes them later."""
        if not isinstance(self._table, HoldsRefusedRows):
            return NO_LETTERS
        return self._table.refused_rows(stored_manifest(self._store, record.batch))

    def _recover_one(self, record: ManifestRecord, replay: Batch | None) -> Recovered:
        batch = record.batch
        crash_points.reach("recover.start", batch.batch_id)
        recovered = self._recovery_of(record, replay)
        crash_points.reach("recover.done", batch.batch_id)
        return recovered

    def _recovery_of(self, record: ManifestRecord, replay: Batch | None) -> Recovered:
        batch = record.batch
        token = self._table.token(batch.stream.query_id)
        action = decide(record, token_position(token, batch), batch)
        if action is Action.MARK:
            self._commit_runner.commit_and_mark(stored_manifest(self._store, batch))
            return Recovered(record, ManifestState.COMMITTED, "found in the table")
        is_replayed = replay is not None and replay.batch_id == batch.batch_id
        if action in REFUSALS:
            if not is_replayed:  # no replay would write it again
                raise refused(action, batch, token)
            return self._finish(record, ManifestState.ABORTED, "the table has it from other source offsets")
        if is_replayed and replay is not None and replay.digest != batch.digest:
            return Recovered(record, ManifestState.PREPARED, "the checkpoint has other offsets")
        self._commit_runner.check_age(batch, was_tried=True)
        manifest = stored_manifest(self._store, batch)
        missing = self._table.missing(manifest)
        if missing and self._commit_runner.state(batch) is ManifestState.COMMITTED:  # with other files
            return Recovered(record, ManifestState.COMMITTED, "delivered meanwhile")
        if missing and is_in_table(self._table.token(batch.stream.query_id), batch):
            return self._recovery_of(record, replay)  # committed since the token was read
        if missing:
            reason = f"{len(missing)} of {record.files} files are missing, first {missing[0]}"
            return self._left_for_replay(record, replay, reason)
        self._forks.check_token(batch.stream, self._table.token(batch.stream.query_id))
        try:
            outcome = self._commit_runner.commit_and_mark(manifest)
        except (SchemaMismatchError, TableChangedError) as error:
            if not is_replayed:
                raise
            return self._left_for_replay(record, replay, str(error))
        return Recovered(record, ManifestState.COMMITTED, type(outcome).__name__)

    def _left_for_replay(self, record: ManifestRecord, replay: Batch | None, why: str) -> Recovered:
        """The batch's files are missing or no longer fit the table. Nothing is lost as long as Spark runs the
        batch again.

        It stays PREPARED until its replay replaces it: a concurrent decoupled driver may have prepared later
        batches.

        Raises:
            RetryableError: the batch is being delivered.
            TableChangedError: Spark will not run the batch again.
        """
        batch = record.batch
        if replay is None:
            return Recovered(record, ManifestState.PREPARED, f"{why}; the query's next start writes it again")
        if replay.batch_id != batch.batch_id:
            raise TableChangedError(
                f"Batch {batch.batch_id} of {batch.stream} cannot be committed ({why}), and its rows would "
                f"be lost: the checkpoint is already at batch {replay.batch_id}. Restore the files (was the "
                "table vacuumed with a short retention?), or set the checkpoint back to that batch."
            )
        check_replaceable(record, why)
        return Recovered(record, ManifestState.PREPARED, f"the replay writes it again: {why}")

    def _finish(
        self,
        record: ManifestRecord,
        state: ManifestState,
        reason: str,
        dead_letters: DeadLetters = NO_LETTERS,
    ) -> Recovered:
        """
        Raises:
            RetryableError: the batch cannot be aborted: it is in an unfinished delivery, or another run has
                prepared it again.
        """
        batch = record.batch
        # Abort only the record that was read: a concurrent driver may have prepared the batch again with
        # other files.
        expected = record if state is ManifestState.ABORTED else None
        is_finished = self._store.finish(
            batch, state, reason=reason, expected=expected, dead_letters=dead_letters
        )
        is_kept = not is_finished and self._commit_runner.state(batch) is ManifestState.PREPARED
        if is_kept and state is ManifestState.ABORTED:
            raise RetryableError(being_delivered(batch, reason))
        return Recovered(record, state, reason)


def check_replaceable(record: ManifestRecord, why: str) -> None:
    """
    Raises:
        RetryableError: the batch has to be written again, but is being delivered.
    """
    if record.delivery_id is not None:
        raise RetryableError(being_delivered(record.batch, why))


def being_delivered(batch: Batch, reason: str) -> str:
    return (
        f"Batch {batch.batch_id} of {batch.stream} must be written again ({reason}), but it or a later "
        "batch is being delivered, or another run has just changed it. Nothing was written. Start the "
        "query again when the delivery has ended; `penstock status` shows its progress."
    )


def _left_behind(record: ManifestRecord, gap: ManifestRecord) -> Recovered:
    reason = f"the earlier batch {gap.batch.batch_id} was aborted, and the query's next start writes it again"
    return Recovered(record, ManifestState.PREPARED, reason)
