"""Delivers one stream: commits prepared batches to the table. I/O goes through the store and the table.

Runs in the delivery process. Several processes may deliver the same stream: the lease only saves work; the
table's token and its conflict check decide. One round:

    finish an unfinished delivery    commit it, or abandon it
    settle                           mark batches before the table's token as COMMITTED
    choose                           is a delivery due? which batches? (`due_batches`)
    merge, compact                   one manifest, its small files rewritten
    prepare                          make the delivery durable
    commit, finish                   one table commit with the token of the last batch
    go on                            at once, after a wait, batch by batch, or parked (`retries`)

Protocol: RisingWave RFC 0055 (a log between the stream and the sink, delivered independently), on top of the
two phases of `two_phase`.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Protocol

from .. import crash_points
from ..contract import AlreadyCommitted, Committed, Manifest, ManifestRecord, ManifestState, StreamKey, Token
from ..errors import (
    CheckpointMismatchError,
    FencedError,
    PenstockError,
    RetryableError,
    TableChangedError,
)
from ..protocol.checkpoint_forks import CheckpointForks
from ..protocol.commit_runner import CommitRunner, Retry, stored_manifest
from ..protocol.decision import Action, TokenPosition, decide, token_position
from ..store.contract import ManifestStore
from ..target import Committer
from .contract import Delivery, DeliveryState, DeliveryStore, Lease, Mergeable
from .due_batches import DueBatches
from .policy import DeliveryPolicy, policy_for
from .results import TRANSIENT_ERRORS, Delivered, RefusedError, Round
from .retries import Retries


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


class StreamDelivery:
    """Commits the prepared batches of one decoupled stream to its table. One instance per round.

    Args:
        table: commits to the stream's table; not loaded yet. If it is `Mergeable`, it gets several batches at
            once.
        compact: None: files are not rewritten
        on_start: called when a delivery is prepared, before it is committed; again after a crash
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
        on_start: Callable[[Delivery], None] = lambda _: None,
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
        self._compact = compact
        self._on_start = on_start
        self._check = check
        self._verified_version = verified_version
        self._clock = clock
        self._rng = rng or random.Random()
        policy = policy_for(table, policy)
        self._due_batches = DueBatches(stream, store, deliveries, table, policy, last_checkpointed, clock)
        self._retries = Retries(deliveries, policy, clock, self._rng)
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
        if not self._due_batches.may_be_due(state, trigger):
            return None
        try:
            delivered = self._round(lease, state, trigger)
        except RefusedError as refused:
            return self._retries.refused(lease, state, refused)
        except TRANSIENT_ERRORS as error:
            return self._retries.failed(lease, state, error)
        if delivered is not None:
            self._retries.succeeded(lease, state, delivered)
        return delivered

    def _round(self, lease: Lease, state: DeliveryState, trigger: str | None) -> Delivered | None:
        unfinished = self._deliveries.unfinished(self._stream)
        self._check_table(unfinished)
        if unfinished is not None:
            delivered = self._commit_unfinished(lease, unfinished)
            if delivered is not None:
                return delivered
        self._settle()
        chosen, why = self._due_batches.choose(state, trigger)
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
            RefusedError: the table is no longer the stream's; this affects all batches.
        """
        try:
            self._check()
        except TRANSIENT_ERRORS:
            raise
        except PenstockError as error:
            if unfinished is not None:
                raise RefusedError(error, unfinished.manifest, unfinished) from error
            oldest = self._deliveries.deliverable(self._stream, 1)
            if not oldest:
                raise RetryableError(str(error)) from error
            raise RefusedError(error, self._manifest(oldest[0]), None) from error

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
        for record in self._due_batches.prepared():  # independent of Spark's commit log
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
                dropped_rows=outcome.dropped_rows,
            )
            self._commit_runner.delete_refused_rows(manifest, outcome)

    def _check_token_is_ours(self, token: Token, waiting: ManifestRecord) -> None:
        """Detect a copy of the checkpoint and its store that delivers other batches under the same query
        id.

        Raises:
            RetryableError: the store does not have the table's last batch yet.
            RefusedError: the store has the table's last batch with other source offsets.
        """
        is_known = (
            waiting.batch.batch_id >= token.batch_id
            or self._store.record(self._stream, token.batch_id) is not None
            or any(record.batch.batch_id >= token.batch_id for record in self._due_batches.prepared())
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
            raise RefusedError(error, self._manifest(waiting), None) from error

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
            raise RefusedError(error, manifest, None)

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
            raise RefusedError(error, replace(chosen[-1], merged=batches), None) from error

    def _compacted(self, manifest: Manifest) -> Manifest | None:
        """Return the manifest with its small files rewritten; None if they are not rewritten."""
        if self._compact is None:
            return None
        try:
            return self._compact(manifest, f"delivery-{uuid.UUID(int=self._rng.getrandbits(128))}")
        except TRANSIENT_ERRORS:
            raise
        except PenstockError as error:
            raise RefusedError(error, manifest, None) from error

    # Commit -----------------------------------------------------------------------------------------

    def _commit_and_finish(self, lease: Lease, delivery: Delivery, source_files: int) -> Delivered:
        """Commit and mark.

        Raises:
            FencedError: another process has taken over the lease. It continues with the delivery.
        """
        self._on_start(delivery)
        try:
            outcome = self._commit(delivery.manifest, delivery)
        except FencedError as error:  # another process has delivered some of its batches
            self._deliveries.abandon(lease, delivery, str(error))
            raise RetryableError(str(error)) from error
        self._deliveries.finish(delivery, outcome.table_version, outcome.dead_letters, outcome.dropped_rows)
        crash_points.reach("deliver.done", delivery.manifest.batch.batch_id)
        self._commit_runner.delete_refused_rows(delivery.manifest, outcome)
        return Delivered(delivery, outcome, self._clock(), source_files)

    def _commit(self, manifest: Manifest, delivery: Delivery | None) -> Committed | AlreadyCommitted:
        try:
            return self._commit_runner.commit(manifest)
        except (FencedError, *TRANSIENT_ERRORS):
            raise
        except PenstockError as error:
            raise RefusedError(error, manifest, delivery) from error
