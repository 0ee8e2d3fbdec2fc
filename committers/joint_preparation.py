"""Phase one of a query with several targets: all manifests become durable in one transaction, or none does.

Runs on the driver, in the process where Spark commits. After it the targets are independent: each is
delivered, parked and skipped on its own. A replay finds the batch prepared for all targets, except for those
whose batch was aborted meanwhile; only these are written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import crash_points
from .checkpoint_forks import mismatch
from .contract import Committable, Manifest
from .decoupled import DecoupledCommitter
from .errors import FencedError, RetryableError
from .store.contract import JointManifestStore, Prepared, PrepareRequest


@dataclass(frozen=True, slots=True)
class TargetBatch:
    """A batch that was written for one of the targets."""

    committer: DecoupledCommitter[Any]
    manifest: Manifest
    committables: Sequence[Committable[Any]]
    """With the payloads of this target."""
    part: int
    """Targets with the same part share their payloads."""


class JointPreparation:
    """Prepares one batch for all targets of a query that its tasks have written.

    Args:
        targets: at least one, all of the same batch and run
    """

    def __init__(self, store: JointManifestStore, targets: Sequence[TargetBatch]) -> None:
        self._store = store
        self._targets = targets
        self._run_id = targets[0].committables[0].run_id
        self._batch_id = targets[0].manifest.batch.batch_id
        self._listed: set[int] = set()
        """Parts whose payloads a manifest in the store lists."""

    def prepare(self, digest_before: str | None = None) -> None:
        """Store all manifests after all tasks have succeeded. After that Spark may continue.

        Where an earlier manifest is valid, it stays. Payloads that no manifest lists are deleted.

        Args:
            digest_before: see `DecoupledCommitter.prepare`

        Raises:
            CheckpointMismatchError: an earlier manifest has other source offsets.
            FencedError: another run has taken over. Nothing was stored.
            RetryableError: the store failed, or another run has changed it. Nothing was stored.
        """
        try:
            prepared = self._prepared(digest_before)
        except (FencedError, RetryableError):  # no manifest will list these payloads
            self._delete_unlisted()
            raise
        for target, one in zip(self._targets, prepared, strict=True):
            if not one.is_ours and one.record.batch.digest != target.manifest.batch.digest:
                raise mismatch(target.manifest.batch, "prepared from other source offsets by another run")
        self._delete_unlisted()

    def _prepared(self, digest_before: str | None) -> list[Prepared]:
        follows = [one.committer.batch_before(one.manifest.batch, digest_before) for one in self._targets]
        requests = [
            PrepareRequest(one.manifest, before) for one, before in zip(self._targets, follows, strict=True)
        ]
        prepared = self._put(self._targets, requests)
        void = [
            number
            for number, (target, one) in enumerate(zip(self._targets, prepared, strict=True))
            if not one.is_ours
            and one.record.batch.digest == target.manifest.batch.digest
            and target.committer.preparation.is_void(one.record)
        ]
        replaced = self._put(
            [self._targets[number] for number in void],
            [
                PrepareRequest(self._targets[number].manifest, follows[number], prepared[number].record)
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
        for target in targets:
            self._store.claim(target.manifest.batch.stream, self._run_id)
        crash_points.reach("prepare.start", self._batch_id)
        prepared = list(self._store.prepare_all(requests, self._run_id))
        crash_points.reach("prepare.done", self._batch_id)
        # A manifest of this run lists the same files: their names contain the run.
        listed = (one.is_ours or one.record.run_id == self._run_id for one in prepared)
        self._listed |= {target.part for target, is_listed in zip(targets, listed, strict=True) if is_listed}
        return prepared

    def _delete_unlisted(self) -> None:
        for part in {target.part for target in self._targets} - self._listed:
            target = next(target for target in self._targets if target.part == part)
            target.committer.preparation.delete(target.committables)
