"""Phase one: make the manifests of a batch durable, those of all targets of the query or none.

Runs on the driver, in the process where Spark commits. After it the targets are independent: each is
committed, delivered, parked and skipped on its own. A replay finds the batch prepared for all targets, except
for those whose batch was aborted meanwhile; only these are written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Protocol, runtime_checkable

from .. import crash_points
from ..contract import Batch, Committable, Manifest, ManifestRecord, ManifestState, PayloadT
from ..errors import FencedError, PenstockError, RetryableError, of_target
from ..store.contract import ManifestStore, Prepared, PrepareRequest
from ..target import PayloadCommitter
from .checkpoint_forks import mismatch
from .commit_runner import stored_manifest
from .decision import is_in_table
from .recovery import being_delivered


@runtime_checkable
class RefusesOtherRows(Protocol):
    """Capability of a target: a batch that is prepared stays, whatever rows its replay has."""

    def check_supersede(self, record: ManifestRecord) -> None:
        """
        Raises:
            CheckpointMismatchError: the batch comes back with other rows.
        """
        ...


class PreparedBatches(Generic[PayloadT]):
    """What the batches of one stream that are prepared already are worth."""

    def __init__(self, store: ManifestStore, table: PayloadCommitter[PayloadT]) -> None:
        self._store = store
        self._table = table

    def supersede(self, record: ManifestRecord) -> None:
        """Abort a batch that comes back with other rows, and all batches after it, if the record is
        unchanged.

        Batches after it follow rows that are written again. If they were committed, their token would mean
        that this batch is committed too. The record is compared because a concurrent driver may have prepared
        the batch again in the meantime, and Spark may have logged it.

        Raises:
            CheckpointMismatchError: the target refuses that.
            RetryableError: one of the batches is being delivered, or another run has changed it.
        """
        reason = "aborted for its replay: the checkpoint has other offsets"
        if isinstance(self._table, RefusesOtherRows):
            self._table.check_supersede(record)
        if not self._store.abort_from(record, reason):
            raise RetryableError(being_delivered(record.batch, reason))

    def missing(self, record: ManifestRecord) -> str:
        """Names of missing files of a PREPARED batch; empty if all are there or the table already has the
        batch.
        """
        if not record.files:
            return ""
        missing = self._table.missing(stored_manifest(self._store, record.batch))
        if not missing or is_in_table(self._table.token(record.batch.stream.query_id), record.batch):
            return ""
        return f"{len(missing)} of {record.files} files are missing, first {missing[0]}"

    def is_void(self, record: ManifestRecord) -> bool:
        """Return True if the batch is PREPARED and its files are missing."""
        return record.state is ManifestState.PREPARED and bool(self.missing(record))

    def discard(self, committables: Sequence[Committable[PayloadT]]) -> int:
        return self._table.discard(c.payload for c in committables if c.payload is not None)


class BatchCommitter(Protocol):
    """Both phases of the batches of one target."""

    @property
    def prepared(self) -> PreparedBatches[Any]: ...

    def batch_before(self, batch: Batch, digest_before: str | None) -> Batch | None:
        """Return the batch that the store must still have before this one; None if it need not have one.

        Args:
            digest_before: of the batch before, from the checkpoint, when this batch was planned

        Raises:
            CheckpointMismatchError: another copy of the checkpoint has written the batch before.
            RetryableError: the batch before is lost.
        """
        ...

    def finish(self, preparation: Preparation, target: TargetBatch, prepared: Prepared) -> Any:
        """Go on with a batch that is prepared.

        Args:
            prepared: the valid manifest of the target: its own, or an earlier one
        """
        ...

    def confirm_skipped(self, batch: Batch) -> None:
        """Check, after the tasks, that a batch which they have not written is durable.

        Raises:
            RetryableError: it is not.
        """
        ...


@dataclass(frozen=True, slots=True)
class TargetBatch:
    """A batch that was written for one of the targets."""

    committer: BatchCommitter
    manifest: Manifest
    committables: Sequence[Committable[Any]]
    """With the payloads of this target."""
    digest_before: str | None = None
    """See `BatchCommitter.batch_before`."""
    part: int = 0
    """Targets with the same part share their payloads."""
    name: str = ""
    """For messages; empty if the query has one target."""


class PreparationObserver:
    """Observes both phases of a batch. The methods do nothing unless they are overridden, and never raise."""

    def preparing(self, batch: Batch) -> AbstractContextManager[None]:
        """Entered around phase one."""
        return nullcontext()

    def finishing(self, target: TargetBatch) -> AbstractContextManager[None]:
        """Entered around what the committer of a target does after phase one."""
        return nullcontext()

    def finished(self, target: TargetBatch, result: Any) -> None:
        """Called with what the committer of a target has returned."""


class Preparation:
    """Prepares one batch for all targets of a query that its tasks have written.

    Args:
        targets: at least one, all of the same batch and run
    """

    def __init__(
        self,
        store: ManifestStore,
        targets: Sequence[TargetBatch],
        observer: PreparationObserver | None = None,
    ) -> None:
        self._store = store
        self._targets = targets
        self._observer = observer or PreparationObserver()
        self._run_id = targets[0].committables[0].run_id
        self._batch_id = targets[0].manifest.batch.batch_id
        self._listed: set[int] = set()
        """Parts whose payloads a manifest in the store lists."""

    def prepare(self) -> list[Any]:
        """Store all manifests after all tasks have succeeded, then let the committer of each target go on.
        Return what these return.

        Where an earlier manifest of the same rows is valid, it stays, unless its files are missing: then it
        is replaced. This happens if the database executes a request of an earlier run late, after this run
        has looked for pending batches, and a vacuum has deleted the files. Later batches follow the same rows
        and are kept. Payloads that no manifest lists in the end are deleted.

        Raises:
            CheckpointMismatchError: an earlier manifest has other source offsets.
            FencedError: another run has taken over. Nothing was stored.
            RetryableError: the store failed, or another run has changed it. Nothing was stored.
            PenstockError: that of a committer. The manifests are stored.
        """
        try:
            with self._observer.preparing(self._targets[0].manifest.batch):
                prepared = self._prepared()
        except (FencedError, RetryableError):  # no manifest will list these payloads
            self._discard_unlisted()
            raise
        for target, one in zip(self._targets, prepared, strict=True):
            if not one.is_ours and one.record.batch.digest != target.manifest.batch.digest:
                raise mismatch(target.manifest.batch, "prepared from other source offsets by another run")
        try:
            finished = list(map(self._finish, self._targets, prepared))
        except PenstockError:
            self._discard_unlisted()
            raise
        self._discard_unlisted()
        return finished

    def replace(self, target: TargetBatch, earlier: ManifestRecord) -> bool:
        """Put the manifest of a target in place of an earlier one of the same rows, which its table refuses.
        Return False if another run has done so.

        Raises:
            FencedError, RetryableError: as `prepare`.
        """
        (replaced,) = self._put([target], [PrepareRequest(target.manifest, None, earlier)])
        return replaced.is_ours

    def _finish(self, target: TargetBatch, prepared: Prepared) -> Any:
        with of_target(target.name):
            with self._observer.finishing(target):
                result = target.committer.finish(self, target, prepared)
        self._observer.finished(target, result)
        return result

    def _prepared(self) -> list[Prepared]:
        targets = self._targets
        follows = [one.committer.batch_before(one.manifest.batch, one.digest_before) for one in targets]
        requests = [
            PrepareRequest(one.manifest, before) for one, before in zip(targets, follows, strict=True)
        ]
        prepared = self._put(targets, requests)
        void = [
            number
            for number, (target, one) in enumerate(zip(targets, prepared, strict=True))
            if not one.is_ours
            and one.record.batch.digest == target.manifest.batch.digest
            and target.committer.prepared.is_void(one.record)
        ]
        replaced = self._put(
            [targets[number] for number in void],
            [
                PrepareRequest(targets[number].manifest, follows[number], prepared[number].record)
                for number in void
            ],
        )
        for number, one in zip(void, replaced, strict=True):
            prepared[number] = one
        return prepared

    def _put(self, targets: Sequence[TargetBatch], requests: Sequence[PrepareRequest]) -> list[Prepared]:
        """Claim the streams, and store the manifests in one transaction."""
        if not targets:
            return []
        self._store.claim_all([target.manifest.batch.stream for target in targets], self._run_id)
        crash_points.reach("prepare.start", self._batch_id)
        prepared = list(self._store.prepare_all(requests, self._run_id))
        crash_points.reach("prepare.done", self._batch_id)
        # A manifest of this run lists the same files: their names contain the run.
        listed = (one.is_ours or one.record.run_id == self._run_id for one in prepared)
        self._listed |= {target.part for target, is_listed in zip(targets, listed, strict=True) if is_listed}
        return prepared

    def _discard_unlisted(self) -> None:
        for part in {target.part for target in self._targets} - self._listed:
            target = next(target for target in self._targets if target.part == part)
            target.committer.prepared.discard(target.committables)
