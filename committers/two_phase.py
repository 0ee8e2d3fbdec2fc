"""The two-phase committer: what becomes of a batch on the driver, and no I/O of its own.

`begin` recovers what is pending (`recovery`) and says whether the batch is to be written; `commit` makes its
manifest durable and takes it into the table (`landing`). The store knows what is *pending*, the table what is
*committed*; where they disagree the table is right. `docs/protocol.md` draws the states and says, for each
crash point, what a restart finds and does.

Protocol: RisingWave RFC 0061 (persist the metadata of all writers, commit after, recover at start), with
the idempotency token inside the table's own commit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from enum import Enum

from . import crash_points
from .checkpoint_copies import CheckpointCopies, DigestOf, mismatch
from .contract import (
    AlreadyCommitted,
    Batch,
    Committable,
    Committed,
    Manifest,
    ManifestRecord,
    ManifestState,
    ManifestStore,
    Prepared,
    TableCommitter,
    Token,
)
from .errors import FencedError, PenstockError, RetryableError, SchemaMismatchError, TableChangedError
from .landing import Lander, Retry, holds
from .recovery import Recovery, being_delivered


class Decision(Enum):
    """What the executors shall do with a batch."""

    WRITE = "write"
    SKIP = "skip"
    """The batch is in the table already, with the same source offsets, or was given up for good."""


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
        self._lander = Lander(store, table, retry, sleep=sleep, rng=rng)
        self.recovery = Recovery(store, table, self._lander)

    # Before the write -----------------------------------------------------------------------------

    def begin(self, batch: Batch, digest_of: DigestOf = lambda _: None) -> Decision:
        """Recover what is pending, then say whether the executors have to write this batch.

        Called once per batch, after Spark has logged its offsets and before any task starts.

        Raises:
            CheckpointMismatchError: the batch id is committed with other source offsets, or another copy of
                the checkpoint has written other rows than this one under the batch before.
        """
        self.recovery.recover(batch.stream, replay=batch)
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
        self._copies.check_before(batch, digest_of)
        if record is not None and record.batch.digest != batch.digest:
            self._supersede(record)
        return decision

    def _decide_by_token(self, batch: Batch, token: Token | None) -> Decision:
        """The store has not seen the batch committed. The table may have, if the store was lost."""
        if token is None or token.batch_id < batch.batch_id:
            return Decision.WRITE
        if holds(token, batch):
            return Decision.SKIP
        if token.batch_id == batch.batch_id:
            raise mismatch(batch, "in the table from other source offsets")
        raise mismatch(batch, f"behind the table, which holds batch {token.batch_id} of this query already")

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
            return self._lander.land(manifest)
        return self._land_earlier(prepared.record, manifest, committables)

    def _land_earlier(
        self, earlier: ManifestRecord, manifest: Manifest, committables: Sequence[Committable]
    ) -> Committed | AlreadyCommitted:
        try:
            outcome = self._lander.land(self._lander.manifest(manifest.batch))
        except PenstockError as error:
            is_refused = isinstance(error, (SchemaMismatchError, TableChangedError))
            is_refused = is_refused and earlier.state is ManifestState.PREPARED
            if is_refused and self._prepare(manifest, committables, replacing=earlier).is_ours:
                return self._lander.land(manifest)
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
        missing = self._table.missing_files(self._lander.manifest(record.batch))
        if not missing or self._lander.is_in_table(record.batch):
            return ""
        return f"{len(missing)} of {record.files} files are gone, first {missing[0]}"

    def confirm_skipped(self, batch: Batch) -> None:
        """Check, after the tasks, that a batch which no task wrote is in the table indeed."""
        record = self._store.record(batch.stream, batch.batch_id)
        if is_skipped(record, batch) or (record is not None and record.state is ManifestState.COMMITTED):
            return
        if not self._lander.is_in_table(batch):
            raise RetryableError(
                f"Batch {batch.batch_id} of {batch.stream} was skipped but is not in the table."
            )

    def _delete_unnamed(self, committables: Sequence[Committable], earlier: ManifestRecord) -> None:
        """Delete what was written in vain, for an earlier manifest of the batch holds."""
        if earlier.run_id != committables[0].run_id:  # file names carry the run: that one names none of these
            self._delete(committables)

    def _delete(self, committables: Sequence[Committable]) -> int:
        return self._table.delete_files(file.path for c in committables for file in c.files)


def is_skipped(record: ManifestRecord | None, batch: Batch) -> bool:
    """Has an operator given up these very rows? Others may have come under the batch id."""
    return record is not None and record.is_skipped and record.batch.digest == batch.digest
