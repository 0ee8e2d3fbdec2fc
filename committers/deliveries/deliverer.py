"""Delivers one stream: commits prepared batches to the table. I/O goes through the store and the table.

Runs in the delivery process. Several processes may deliver the same stream: the lease only saves work; the
table's token and its conflict check decide. One round:

    finish an unfinished delivery    commit it, or abandon it
    settle                           mark batches before the table's token as COMMITTED
    choose                           is a delivery due? which batches?
    merge, compact                   one manifest, its small files rewritten
    prepare                          make the delivery durable
    commit, finish                   one table commit with the token of the last batch

Protocol: RisingWave RFC 0055 (a log between the stream and the sink, delivered independently), on top of the
two phases of `two_phase`.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import chain, takewhile
from typing import Protocol, TypeAlias

from .. import crash_points
from ..checkpoint_forks import CheckpointForks
from ..commit_runner import CommitRunner, Retry, stored_manifest
from ..contract import (
    AlreadyCommitted,
    Committed,
    Committer,
    Manifest,
    ManifestRecord,
    ManifestState,
    StreamKey,
    Token,
)
from ..decision import Action, TokenPosition, decide, token_position
from ..errors import (
    CheckpointMismatchError,
    CommitStateUnknownError,
    FencedError,
    PenstockError,
    RetryableError,
    TableChangedError,
)
from ..store.contract import ManifestStore
from .contract import BATCHES_READ, Delivery, DeliveryState, DeliveryStore, Lease, Mergeable
from .policy import DeliveryPolicy, due, is_put_off

TRANSIENT_ERRORS = (RetryableError, CommitStateUnknownError)
"""Outages and conflicts: retried without limit, and the stream is never parked."""


class Compactor(Protocol):
    """Rewrites the small files of a delivery before they become visible."""

    def __call__(self, manifest: Manifest, run_id: str) -> Manifest | None:
        """Return the manifest with its small files replaced by larger ones; None if that is not worth the
        cost.

        Args:
            run_id: unique; part of the names of the new files

        Raises:
            RetryableError: storage or cluster failed. No new files are left.
        """
        ...


@dataclass(frozen=True, slots=True)
class Delivered:
    """A committed delivery."""

    delivery: Delivery
    outcome: Committed | AlreadyCommitted
    committed_at: datetime
    source_files: int
    """Number of files of its batches before they were rewritten; 0 if another process had prepared the
    delivery.
    """


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed round. The stream's state in the store has the same error."""

    error: PenstockError
    retry_at: datetime | None
    """None if the stream was parked."""


Round: TypeAlias = Delivered | Failed | None
"""None: there was nothing to do."""


class _RefusedError(Exception):
    """The table does not accept these batches, and a retry would not help."""

    def __init__(self, error: PenstockError, manifest: Manifest, delivery: Delivery | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.manifest = manifest
        self.delivery = delivery


class StreamDelivery:
    """Commits the prepared batches of one decoupled stream to its table. One instance per round.

    Args:
        table: commits to the stream's table; not loaded yet. If it is `Mergeable`, it gets several batches at
            once.
        compact: None: files are not rewritten
        check: raises an error if the table is no longer the one that the stream has written
        last_checkpointed: returns the newest batch in Spark's commit log; called if the policy needs it
        verified_version: the table version that `check` starts at: earlier changes were checked, or accepted
            by an operator
        clock, sleep, rng: injected for tests
    """

    def __init__(
        self,
        stream: StreamKey,
        store: ManifestStore,
        deliveries: DeliveryStore,
        table: Committer,
        policy: DeliveryPolicy,
        *,
        compact: Compactor | None = None,
        check: Callable[[], None] = lambda: None,
        last_checkpointed: Callable[[], int] = lambda: -1,
        verified_version: Callable[[], int | None] = lambda: None,
        commit_retry: Retry | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._stream = stream
        self._store = store
        self._deliveries = deliveries
        self._table = table
        self._forks = CheckpointForks(store, table)
        self._policy = policy_for(table, policy)
        self._compact = compact
        self._check = check
        self._last_checkpointed = last_checkpointed
        self._verified_version = verified_version
        self._clock = clock
        self._rng = rng or random.Random()
        self._commit_runner = CommitRunner(store, table, commit_retry, sleep=sleep, rng=self._rng)

    def round(self, lease: Lease, trigger: str | None = None) -> Round:
        """Deliver once, if something is due.

        Args:
            trigger: reason to deliver now, without waiting for thresholds or a back-off; a parked stream is
                still not delivered

        Raises:
            FencedError: another process has taken over the lease.
        """
        state = self._deliveries.state(self._stream)
        if not self._is_wanted(state, trigger):
            return None
        try:
            delivered = self._round(lease, state, trigger)
        except _RefusedError as refused:
            return self._refused(lease, state, refused)
        except TRANSIENT_ERRORS as error:
            return self._failed(lease, state, error)
        if delivered is not None:
            self._succeeded(lease, state, delivered)
        return delivered

    def _is_wanted(self, state: DeliveryState, trigger: str | None) -> bool:
        """Return True if a round may have something to do. Called about once per second and before each
        delivery, so it is cheap for a backlog of any length.
        """
        if state.parked_at is not None:
            return False
        if trigger is None and is_put_off(state, self._policy, self._clock()):
            return False
        backlog = self._deliveries.backlog(self._stream, limit=self._policy.after_batches)
        if not backlog.batches:
            return False
        is_begun = trigger is not None or state.tries > 0 or state.isolate_until >= 0
        if is_begun or due(backlog, self._policy, self._clock()):
            return True
        return self._deliveries.unfinished(self._stream) is not None

    def _round(self, lease: Lease, state: DeliveryState, trigger: str | None) -> Delivered | None:
        unfinished = self._deliveries.unfinished(self._stream)
        self._check_table(unfinished)
        if unfinished is not None:
            delivered = self._commit_unfinished(lease, unfinished)
            if delivered is not None:
                return delivered
        self._settle()
        chosen, why = self._choose(state, trigger)
        if not chosen:
            return None
        merged = self._merged(chosen)
        crash_points.reach("deliver.start", merged.batch.batch_id)
        self._check_files(merged)
        compacted = self._compacted(merged)
        delivery = self._deliveries.prepare(
            lease, compacted or merged, why, is_compacted=compacted is not None
        )
        crash_points.reach("deliver.prepared", merged.batch.batch_id)
        return self._commit_and_finish(lease, delivery, sum(manifest.files for manifest in chosen))

    def _check_table(self, unfinished: Delivery | None) -> None:
        """
        Raises:
            _RefusedError: the table is no longer the stream's; this affects all batches.
        """
        try:
            self._check()
        except TRANSIENT_ERRORS:
            raise
        except PenstockError as error:
            if unfinished is not None:
                raise _RefusedError(error, unfinished.manifest, unfinished) from error
            oldest = self._deliveries.deliverable(self._stream, 1)
            if not oldest:
                raise RetryableError(str(error)) from error
            raise _RefusedError(error, self._manifest(oldest[0]), None) from error

    # Unfinished work of other processes -------------------------------------------------------------

    def _commit_unfinished(self, lease: Lease, delivery: Delivery) -> Delivered | None:
        """Commit a delivery that another process has prepared; return None if it had to be abandoned."""
        token = self._table.token(self._stream.query_id)
        if token_position(token, delivery.manifest.batch) is TokenPosition.BEHIND:
            missing = self._table.missing(delivery.manifest)
            if missing:  # if they were rewritten, the batches still have their own files
                reason = (
                    f"{len(missing)} of its {delivery.manifest.files} files are missing, first {missing[0]}"
                )
                self._deliveries.abandon(lease, delivery, reason)
                return None
        return self._commit_and_finish(lease, delivery, 0)

    def _settle(self) -> None:
        """Mark the batches before the table's token as COMMITTED: the table has them, but the store does not
        know it.
        """
        token = self._table.token(self._stream.query_id)
        if token is None:
            return
        for record in self._prepared():  # independent of Spark's commit log
            action = decide(record, token_position(token, record.batch), record.batch)
            # Committing these again adds nothing, but checks in the table that it is this batch.
            manifest = self._manifest(record)
            outcome = None if action is Action.COMMIT else self._commit(manifest, None)
            self._check_token_is_ours(token, record)
            if outcome is None:
                return
            self._store.finish(
                record.batch,
                ManifestState.COMMITTED,
                table_version=outcome.table_version,
                dead_letters=outcome.dead_letters,
            )
            self._commit_runner.delete_refused_rows(manifest, outcome)

    def _check_token_is_ours(self, token: Token, waiting: ManifestRecord) -> None:
        """Detect a copy of the checkpoint and its store that delivers other batches under the same query
        id.

        Raises:
            RetryableError: the store does not have the table's last batch yet.
            _RefusedError: the store has the table's last batch with other source offsets.
        """
        is_known = (
            waiting.batch.batch_id >= token.batch_id
            or self._store.record(self._stream, token.batch_id) is not None
            or any(record.batch.batch_id >= token.batch_id for record in self._prepared())
        )
        if not is_known:
            raise RetryableError(
                f"The table {self._stream.table_uri} has batch {token.batch_id} of {self._stream.query_id}, "
                "which the manifest store does not know: the store was restored from a backup, or a copy "
                "of the query's checkpoint is delivered too. Nothing was committed. Deliveries continue "
                "once the query has reached that batch. To trust the table, run `penstock recover`."
            )
        try:
            self._forks.check_token(self._stream, token)
        except CheckpointMismatchError as error:
            raise _RefusedError(error, self._manifest(waiting), None) from error

    # Choose -----------------------------------------------------------------------------------------

    def _choose(self, state: DeliveryState, trigger: str | None) -> tuple[list[Manifest], str]:
        """Return the batches of the next delivery, oldest first, and its reason; an empty list if none is
        due.
        """
        table = self._table
        last = self._last_checkpointed() if self._policy.after_checkpoint else None
        records = self._deliverable(last)
        first = next(records, None)
        if first is None:
            return [], ""
        if first.batch.batch_id <= state.isolate_until:
            return [self._manifest(first)], trigger or "retry"
        why = trigger or self._due(last)
        if why is None:
            return [], ""
        manifests = (self._manifest(record) for record in chain([first], records))
        return table.mergeable(manifests) if isinstance(table, Mergeable) else [next(manifests)], why

    def _due(self, last: int | None) -> str | None:
        """Return why a delivery of batches up to `last` is due. Adds up only as many as decide that."""
        before = None if last is None else last + 1
        backlog = self._deliveries.backlog(self._stream, before, self._policy.after_batches)
        return due(backlog, self._policy, self._clock())

    def _deliverable(self, last: int | None) -> Iterator[ManifestRecord]:
        """Yield the batches that may be delivered, oldest first.

        Args:
            last: the newest batch in Spark's commit log; None: any batch may be delivered
        """
        return takewhile(lambda one: last is None or one.batch.batch_id <= last, self._prepared())

    def _prepared(self) -> Iterator[ManifestRecord]:
        """Yield the batches that are in no delivery, oldest first. Reads one first, then twice as many each
        time: the cost depends on how many are used, not on how many wait.
        """
        limit, after = 1, None
        while some := self._deliveries.deliverable(self._stream, limit, after):
            yield from some
            if len(some) < limit:
                return
            limit, after = min(2 * limit, BATCHES_READ), some[-1].batch.batch_id

    def _manifest(self, record: ManifestRecord) -> Manifest:
        return stored_manifest(self._store, record.batch)

    # Before the commit ------------------------------------------------------------------------------

    def _check_files(self, manifest: Manifest) -> None:
        missing = self._table.missing(manifest)
        if missing:
            error = TableChangedError(
                f"{len(missing)} of the {manifest.files} files of batches {manifest.batches[0].batch_id} to "
                f"{manifest.batch.batch_id} of {self._stream} are missing, first {missing[0]}. Nothing was "
                "committed. Was the checkpoint or the row log moved, or the query started with another "
                "rowLog? Then start the query once with the place where the files are now, and run `penstock "
                "retry`. Were they deleted by hand, or by a vacuum with a retention shorter than the backlog?"
                " Restore them and run `penstock retry`. Only if they are lost for good, and their rows with "
                "them: `penstock skip`."
            )
            raise _RefusedError(error, manifest, None)

    def _merged(self, chosen: Sequence[Manifest]) -> Manifest:
        if not isinstance(self._table, Mergeable):
            (one,) = chosen
            return replace(one, merged=(one.batch,))
        try:
            return self._table.merge(chosen, self._verified_version())
        except TRANSIENT_ERRORS:
            raise
        except PenstockError as error:
            batches = tuple(manifest.batch for manifest in chosen)
            raise _RefusedError(error, replace(chosen[-1], merged=batches), None) from error

    def _compacted(self, manifest: Manifest) -> Manifest | None:
        """Return the manifest with its small files rewritten; None if they are not rewritten."""
        if self._compact is None:
            return None
        try:
            return self._compact(manifest, f"delivery-{uuid.UUID(int=self._rng.getrandbits(128))}")
        except TRANSIENT_ERRORS:
            raise
        except PenstockError as error:
            raise _RefusedError(error, manifest, None) from error

    # Commit -----------------------------------------------------------------------------------------

    def _commit_and_finish(self, lease: Lease, delivery: Delivery, source_files: int) -> Delivered:
        """Commit and mark.

        Raises:
            FencedError: another process has taken over the lease. It continues with the delivery.
        """
        try:
            outcome = self._commit(delivery.manifest, delivery)
        except FencedError as error:  # another process has delivered some of its batches
            self._deliveries.abandon(lease, delivery, str(error))
            raise RetryableError(str(error)) from error
        self._deliveries.finish(delivery, outcome.table_version, outcome.dead_letters)
        crash_points.reach("deliver.done", delivery.manifest.batch.batch_id)
        self._commit_runner.delete_refused_rows(delivery.manifest, outcome)
        return Delivered(delivery, outcome, self._clock(), source_files)

    def _commit(self, manifest: Manifest, delivery: Delivery | None) -> Committed | AlreadyCommitted:
        try:
            return self._commit_runner.commit(manifest)
        except (FencedError, *TRANSIENT_ERRORS):
            raise
        except PenstockError as error:
            raise _RefusedError(error, manifest, delivery) from error

    # Result of a round ------------------------------------------------------------------------------

    def _succeeded(self, lease: Lease, state: DeliveryState, delivered: Delivered) -> None:
        is_past = delivered.delivery.manifest.batch.batch_id >= state.isolate_until
        done = replace(
            state, tries=0, retry_at=None, error="", isolate_until=-1 if is_past else state.isolate_until
        )
        if done != state:
            self._deliveries.set_state(lease, done)

    def _refused(self, lease: Lease, state: DeliveryState, refused: _RefusedError) -> Failed:
        """Deliver the batches one by one after a failure, so that those before the bad one are committed;
        then park.
        """
        if refused.delivery is not None:
            self._deliveries.abandon(lease, refused.delivery, str(refused.error))
        last = refused.manifest.batch.batch_id
        if len(refused.manifest.batches) > 1 and last > state.isolate_until:
            self._deliveries.set_state(lease, replace(state, isolate_until=last, error=str(refused.error)))
            return Failed(refused.error, self._clock())
        if state.tries + 1 < self._policy.tries_max:
            return self._failed(lease, state, refused.error)
        now = self._clock()
        parked = replace(
            state,
            tries=state.tries + 1,
            retry_at=None,
            error=str(refused.error),
            parked_at=now,
            parked_by="",
            parked_why=f"batch {last} was refused {state.tries + 1} times",
        )
        self._deliveries.set_state(lease, parked)
        return Failed(refused.error, None)

    def _failed(self, lease: Lease, state: DeliveryState, error: PenstockError) -> Failed:
        tries = state.tries + 1
        retry_at = self._clock() + timedelta(seconds=self._policy.wait_s(tries, self._rng))
        self._deliveries.set_state(lease, replace(state, tries=tries, retry_at=retry_at, error=str(error)))
        return Failed(error, retry_at)


def policy_for(table: Committer, policy: DeliveryPolicy) -> DeliveryPolicy:
    """Without merging, there is no reason to wait for more batches."""
    return policy if isinstance(table, Mergeable) else replace(policy, after_batches=1)
