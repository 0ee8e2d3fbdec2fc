"""The two-phase committer: every decision of the commit protocol, and no I/O of its own.

Runs on the driver (and later in the delivery process). The store knows what is *pending*, the table what
is *committed*; where they disagree the table is right. `docs/protocol.md` draws the states and says, for
each crash point, what a restart finds and does.

Protocol: RisingWave RFC 0061 (persist the metadata of all writers, commit after, recover at start), with
the idempotency token inside the table's own commit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from . import crash_points
from .checkpoint_copies import CheckpointCopies, DigestBefore, mismatch, never_came_back
from .contract import (
    AlreadyCommitted,
    Batch,
    Committable,
    Committed,
    Conflict,
    Manifest,
    ManifestRecord,
    ManifestState,
    ManifestStore,
    Prepared,
    StreamKey,
    TableCommitter,
    Token,
)
from .errors import (
    NEXT_TRY,
    CheckpointMismatchError,
    FencedError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
)


class Decision(Enum):
    """What the executors shall do with a batch."""

    WRITE = "write"
    SKIP = "skip"
    """The batch is in the table already, with the same source offsets, or was given up for good."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """How recovery ended for one pending batch."""

    record: ManifestRecord
    state: ManifestState
    reason: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Bounds of the commit loop. The wait doubles from `wait_s` up to `wait_s_max`, with full jitter."""

    attempts_max: int = 100
    wait_s: float = 0.05
    wait_s_max: float = 5.0

    def waits(self, rng: random.Random) -> Iterator[float]:
        for attempt in range(self.attempts_max - 1):
            yield rng.uniform(0, min(self.wait_s * 2**attempt, self.wait_s_max))


class TwoPhaseCommitter:
    """Takes the batches of one stream through prepare, commit and mark; recovers what a crash left.

    Args:
        store: the manifest store
        table: commits to the stream's table
        retry: bounds of the commit loop
        sleep, rng: injected, so that tests run without waiting
    """

    def __init__(
        self,
        store: ManifestStore,
        table: TableCommitter,
        retry: Retry | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._store = store
        self._table = table
        self._copies = CheckpointCopies(store, table)
        self._retry = retry or Retry()
        self._sleep = sleep
        self._rng = rng or random.Random()

    # Before the write -----------------------------------------------------------------------------

    def begin(self, batch: Batch, digest_before: DigestBefore = lambda: None) -> Decision:
        """Recover what is pending, then say whether the executors have to write this batch.

        Called once per batch, after Spark has logged its offsets and before any task starts.

        Raises:
            CheckpointMismatchError: the batch id is committed with other source offsets, or another copy of
                the checkpoint has written other rows than this one under the batch before.
        """
        self.recover(batch.stream, replay=batch)
        # The table before the store: what a twin lands meanwhile is on record by the time it is looked for.
        token = self._table.token(batch.stream.query_id)
        record = self._store.record(batch.stream, batch.batch_id)
        if record is not None and record.state is ManifestState.COMMITTED:
            if record.batch.digest != batch.digest:
                raise mismatch(batch, "committed from other source offsets")
            return Decision.SKIP
        decision = self._decide_by_token(batch, token)
        if decision is Decision.SKIP or is_skipped(record, batch):
            return Decision.SKIP
        self._copies.check_before(batch, digest_before)
        if record is not None and record.batch.digest != batch.digest:
            self._supersede(record)
        return decision

    def _decide_by_token(self, batch: Batch, token: Token | None) -> Decision:
        """The store has not seen the batch committed. The table may have, if the store was lost."""
        if token is None or token.batch_id < batch.batch_id:
            return Decision.WRITE
        if _holds(token, batch):
            return Decision.SKIP
        if token.batch_id == batch.batch_id:
            raise mismatch(batch, "in the table from other source offsets")
        raise mismatch(batch, f"behind the table, which holds batch {token.batch_id} of this query already")

    # Recovery -------------------------------------------------------------------------------------

    def recover(self, stream: StreamKey, replay: Batch | None = None) -> list[Recovered]:
        """Finish phase two of every pending batch of the stream, in ascending order.

        Ends with the first one that is not committed: the token of a later one would say that it landed.

        Args:
            replay: the batch that Spark is about to run. Only that batch may be given up for its replay;
                those after it (the checkpoint was rewound) are left for their own.

        Raises:
            CheckpointMismatchError: a batch before the replay waits behind one that was given up and has not
                come back.
            TableChangedError, TableNotSupportedError, SchemaMismatchError: the table cannot take a pending
                batch and no replay will write it again. The batch stays PREPARED.
        """
        return list(self.recover_each(stream, replay))

    def recover_each(self, stream: StreamKey, replay: Batch | None = None) -> Iterator[Recovered]:
        """`recover`, batch by batch, for who wants to see how it goes on."""
        for record in self._store.pending(stream):
            if replay is not None and record.batch.batch_id > replay.batch_id:
                return
            gap = self._copies.gap_before(record.batch)
            if gap is not None and replay is not None and record.batch.batch_id < replay.batch_id:
                raise mismatch(replay, never_came_back(gap))  # its token would hide both
            recovered = self._recover_one(record, replay) if gap is None else _left_behind(record, gap)
            yield recovered
            if recovered.state is not ManifestState.COMMITTED:
                return

    def accept_pending(self, stream: StreamKey) -> list[Recovered]:
        """Mark pending batches whose token the table has, whatever became of their rows.

        Only on an operator's word: the table was restored after they had landed, and shall stay so.
        """
        landed = [record for record in self._store.pending(stream) if self._is_in_table(record.batch)]
        reason = "accepted by an operator with the table as it is"
        return [self._finish(record, ManifestState.COMMITTED, reason) for record in landed]

    def _recover_one(self, record: ManifestRecord, replay: Batch | None) -> Recovered:
        batch = record.batch
        crash_points.reach("recover.start", batch.batch_id)
        recovered = self._recovery_of(record, replay)
        crash_points.reach("recover.done", batch.batch_id)
        return recovered

    def _recovery_of(self, record: ManifestRecord, replay: Batch | None) -> Recovered:
        batch = record.batch
        if self._is_in_table(batch):
            self._land(self._manifest(batch))  # adds nothing: it learns the version, and of a RESTORE since
            return Recovered(record, ManifestState.COMMITTED, "found in the table")
        is_replayed = replay is not None and replay.batch_id == batch.batch_id
        if self._has_token_of(batch.batch_id, batch.stream):
            if not is_replayed:  # nobody would write it again
                raise mismatch(batch, "in the table from other source offsets")
            return self._finish(record, ManifestState.ABORTED, "the table holds it from other source offsets")
        if is_replayed and replay is not None and replay.digest != batch.digest:
            return Recovered(record, ManifestState.PREPARED, "the checkpoint has other offsets")
        manifest = self._manifest(batch)
        missing = self._table.missing_files(manifest)
        if missing and self._state(batch) is ManifestState.COMMITTED:  # delivered just now, in other files
            return Recovered(record, ManifestState.COMMITTED, "delivered meanwhile")
        if missing:
            reason = f"{len(missing)} of {record.files} files are gone, first {missing[0]}"
            return self._left_for_replay(record, replay, reason)
        self._copies.check_token(batch.stream)
        try:
            outcome = self._land(manifest)
        except (SchemaMismatchError, TableChangedError) as error:
            if not is_replayed:
                raise
            return self._left_for_replay(record, replay, str(error))
        return Recovered(record, ManifestState.COMMITTED, type(outcome).__name__)

    def _supersede(self, record: ManifestRecord) -> None:
        """Give up a batch that comes back with other rows, and those behind it, if it is as it was seen.

        They follow on rows that are not written: in the table, their token would say that the batch has
        landed. And whoever slept since the record was read must not give up what a twin has prepared, and
        Spark has logged, meanwhile.

        Raises:
            RetryableError: one of them is being delivered, or was changed by somebody else.
        """
        reason = "given up for its replay: the checkpoint has other offsets"
        if not self._store.give_up_from(record, reason):
            raise RetryableError(being_delivered(record.batch, reason))

    def _left_for_replay(self, record: ManifestRecord, replay: Batch | None, why: str) -> Recovered:
        """Its files are gone, or fit the table no more: no loss as long as Spark runs the batch again.

        Until its replay takes its place it stays PREPARED: a decoupled twin may have gone on behind it.

        Raises:
            RetryableError: it is being delivered.
            TableChangedError: Spark will not run it again.
        """
        batch = record.batch
        if replay is None:
            return Recovered(record, ManifestState.PREPARED, f"{why}; the query's next start writes it again")
        if replay.batch_id != batch.batch_id:
            raise TableChangedError(
                f"Batch {batch.batch_id} of {batch.stream} cannot be committed ({why}), and the "
                f"checkpoint has moved on to batch {replay.batch_id}: its rows would be lost. Restore the "
                "files (was the table vacuumed with a short retention?), or set the checkpoint back to that "
                "batch."
            )
        check_replaceable(record, why)
        return Recovered(record, ManifestState.PREPARED, f"the replay writes it again: {why}")

    def _finish(self, record: ManifestRecord, state: ManifestState, reason: str) -> Recovered:
        """
        Raises:
            RetryableError: the batch cannot be given up, for it is part of a delivery that may land, or was
                prepared anew by another run.
        """
        batch = record.batch
        # Given up is only what was seen: a twin may have prepared the batch anew since, with other files.
        seen = record if state is ManifestState.ABORTED else None
        is_finished = self._store.finish(batch, state, reason=reason, seen=seen)
        is_kept = not is_finished and self._state(batch) is ManifestState.PREPARED
        if is_kept and state is ManifestState.ABORTED:
            raise RetryableError(being_delivered(batch, reason))
        return Recovered(record, state, reason)

    # Prepare and commit ---------------------------------------------------------------------------

    def commit(self, manifest: Manifest, committables: Sequence[Committable]) -> Committed | AlreadyCommitted:
        """Phase one and two of a batch whose tasks have all succeeded.

        If an earlier manifest holds for the batch, that one is committed instead, and the files of this
        one, which nothing names, are deleted. If files of the earlier one are gone, or the table takes them
        no more, this one takes its place.

        Raises:
            FencedError: a newer run of the query has taken over.
            RetryableError: the table was too busy; the batch stays PREPARED.
            CommitStateUnknownError: the batch may have landed; it stays PREPARED.
        """
        prepared = self._prepare_or_take(manifest, committables)
        if prepared.is_ours:
            return self._land(manifest)
        return self._land_earlier(prepared.record, manifest, committables)

    def _land_earlier(
        self, earlier: ManifestRecord, manifest: Manifest, committables: Sequence[Committable]
    ) -> Committed | AlreadyCommitted:
        try:
            outcome = self._land(self._manifest(manifest.batch))
        except PenstockError as error:
            is_refused = isinstance(error, (SchemaMismatchError, TableChangedError))
            is_refused = is_refused and earlier.state is ManifestState.PREPARED
            if is_refused and self._prepare(manifest, committables, replacing=earlier).is_ours:
                return self._land(manifest)
            self._delete_unnamed(committables, earlier)
            raise
        self._delete_unnamed(committables, earlier)
        return outcome

    def _prepare_or_take(
        self, manifest: Manifest, committables: Sequence[Committable], follows: Batch | None = None
    ) -> Prepared:
        """Prepare the batch, unless an earlier manifest holds for it: then that one is taken.

        An earlier one of the same rows whose files are gone gives way. The database may do what an earlier
        run has asked for only after this one has looked for pending batches, and a vacuum may have taken the
        files meanwhile. Those behind it, which follow on the same rows, stay.

        Raises:
            RetryableError: it is being delivered, or it was changed by another run, or what it follows.
        """
        batch = manifest.batch
        prepared = self._prepare(manifest, committables, follows)
        is_same = prepared.record.batch.digest == batch.digest
        if is_same and not prepared.is_ours and self._is_void(prepared.record):
            prepared = self._prepare(manifest, committables, follows, replacing=prepared.record)
        if not prepared.is_ours and prepared.record.batch.digest != batch.digest:
            raise mismatch(batch, "prepared from other source offsets by another run")
        return prepared

    def _prepare(
        self,
        manifest: Manifest,
        committables: Sequence[Committable],
        follows: Batch | None = None,
        replacing: ManifestRecord | None = None,
    ) -> Prepared:
        batch, run_id = manifest.batch, committables[0].run_id
        try:
            self._store.claim(batch.stream, run_id)
            crash_points.reach("prepare.start", batch.batch_id)
            prepared = self._store.prepare(manifest, run_id, follows=follows, replacing=replacing)
        except (FencedError, RetryableError):
            self._delete(committables)  # nothing was written down, nor will be: nothing ever names them
            raise
        crash_points.reach("prepare.done", batch.batch_id)
        return prepared

    def _is_void(self, record: ManifestRecord) -> bool:
        return record.state is ManifestState.PREPARED and bool(self._gone(record))

    def _gone(self, record: ManifestRecord) -> str:
        """Which files of a PREPARED batch are gone; empty if none, or if the table holds them already."""
        if not record.files:
            return ""
        missing = self._table.missing_files(self._manifest(record.batch))
        if not missing or self._is_in_table(record.batch):
            return ""
        return f"{len(missing)} of {record.files} files are gone, first {missing[0]}"

    def confirm_skipped(self, batch: Batch) -> None:
        """Check, after the tasks, that a batch which no task wrote is in the table indeed."""
        record = self._store.record(batch.stream, batch.batch_id)
        if is_skipped(record, batch) or (record is not None and record.state is ManifestState.COMMITTED):
            return
        if not self._is_in_table(batch):
            raise RetryableError(
                f"Batch {batch.batch_id} of {batch.stream} was skipped but is not in the table."
            )

    def _delete_unnamed(self, committables: Sequence[Committable], earlier: ManifestRecord) -> None:
        """Delete what was written in vain, for an earlier manifest of the batch holds."""
        if earlier.run_id != committables[0].run_id:  # file names carry the run: that one names none of these
            self._delete(committables)

    def _delete(self, committables: Sequence[Committable]) -> int:
        return self._table.delete_files(file.path for c in committables for file in c.files)

    def _land(self, manifest: Manifest) -> Committed | AlreadyCommitted:
        """Commit with bounded retries, then mark. The token is checked anew on every attempt."""
        batch = manifest.batch
        try:
            outcome = commit_with_retries(self._table, manifest, self._retry, self._sleep, self._rng)
        except CheckpointMismatchError as error:  # it can never land, and later tokens must not hide that
            self._store.finish(batch, ManifestState.ABORTED, reason=str(error))
            raise
        marked = self._store.finish(batch, ManifestState.COMMITTED, table_version=outcome.table_version)
        crash_points.reach("mark.done", batch.batch_id)
        if not marked and self._state(batch) is not ManifestState.COMMITTED:
            raise FencedError(
                f"Batch {batch.batch_id} of {batch.stream} landed, but another run has given it up "
                "meanwhile. Let one driver run the query; its next start finds the batch in the table."
            )
        return outcome

    def _state(self, batch: Batch) -> ManifestState | None:
        record = self._store.record(batch.stream, batch.batch_id)
        return record.state if record is not None and record.batch.digest == batch.digest else None

    def _is_in_table(self, batch: Batch) -> bool:
        """True if the table holds the batch.

        A token ahead of a pending batch means that it landed: the next one is begun only after.
        """
        token = self._table.token(batch.stream.query_id)
        return token is not None and (token.batch_id > batch.batch_id or _holds(token, batch))

    def _has_token_of(self, batch_id: int, stream: StreamKey) -> bool:
        token = self._table.token(stream.query_id)
        return token is not None and token.batch_id == batch_id

    def _manifest(self, batch: Batch) -> Manifest:
        manifest = self._store.manifest(batch.stream, batch.batch_id)
        if manifest is None or manifest.batch != batch:
            what = "no manifest" if manifest is None else "the manifest of other rows"
            raise RetryableError(
                f"The store had a record of batch {batch.batch_id} of {batch.stream} and has {what}: it was "
                "replaced meanwhile, or changed by hand. Start the query again."
            )
        return manifest


def commit_with_retries(
    table: TableCommitter,
    manifest: Manifest,
    retry: Retry,
    sleep: Callable[[float], None],
    rng: random.Random,
) -> Committed | AlreadyCommitted:
    """Commit, again after each conflict, up to a bound; raises as `TableCommitter.commit`.

    Raises:
        RetryableError: the table was too busy; the batch did not land.
    """
    if manifest.is_empty:
        return AlreadyCommitted()
    waits = retry.waits(rng)
    while True:
        outcome = table.commit(manifest)
        if not isinstance(outcome, Conflict):
            return outcome
        wait_s = next(waits, None)
        if wait_s is None:
            raise RetryableError(
                f"Batch {manifest.batch.batch_id} of {manifest.batch.stream} lost against other writers "
                f"{retry.attempts_max} times, last: {outcome.reason}. It stays prepared. {NEXT_TRY} To try "
                "longer, raise maxCommitAttempts."
            )
        sleep(wait_s)


def _holds(token: Token, batch: Batch) -> bool:
    return token.batch_id == batch.batch_id and token.matches(batch.digest)


def check_replaceable(record: ManifestRecord, why: str) -> None:
    """
    Raises:
        RetryableError: the batch, which has to be written again, is being delivered.
    """
    if record.delivery_id is not None:
        raise RetryableError(being_delivered(record.batch, why))


def being_delivered(batch: Batch, reason: str) -> str:
    return (
        f"Batch {batch.batch_id} of {batch.stream} must be written again ({reason}), but it or one behind it "
        "is being delivered, or has just been changed by another run. Nothing was written. Start the query "
        "again, once its delivery has ended; `penstock status` shows how that goes."
    )


def _left_behind(record: ManifestRecord, gap: ManifestRecord) -> Recovered:
    reason = f"batch {gap.batch.batch_id} before it was given up and comes back with the query's next start"
    return Recovered(record, ManifestState.PREPARED, reason)


def is_skipped(record: ManifestRecord | None, batch: Batch) -> bool:
    """Has an operator given up these very rows? Others may have come under the batch id."""
    return record is not None and record.is_skipped and record.batch.digest == batch.digest
