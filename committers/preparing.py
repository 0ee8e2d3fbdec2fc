"""Phase one: make the manifest of a batch durable. Used by coupled and decoupled queries.

Runs on the driver, in the process where Spark commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from . import crash_points
from .checkpoint_forks import mismatch
from .commit_runner import stored_manifest
from .contract import Batch, Committable, Manifest, ManifestRecord, ManifestState, PayloadCommitter, PayloadT
from .decision import is_in_table
from .errors import FencedError, RetryableError
from .recovery import being_delivered
from .store.contract import ManifestStore, Prepared


class Preparation(Generic[PayloadT]):
    """Prepares the batches of one stream, and aborts earlier manifests that they replace."""

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
            RetryableError: one of the batches is being delivered, or another run has changed it.
        """
        reason = "aborted for its replay: the checkpoint has other offsets"
        if not self._store.abort_from(record, reason):
            raise RetryableError(being_delivered(record.batch, reason))

    def prepare(
        self, manifest: Manifest, committables: Sequence[Committable[PayloadT]], follows: Batch | None = None
    ) -> Prepared:
        """Prepare the batch, unless an earlier manifest is valid for it: then that one is used.

        An earlier manifest of the same rows is replaced if its files are missing. This happens if the
        database executes a request of an earlier run late, after this run has looked for pending batches, and
        a vacuum has deleted the files. Later batches follow the same rows and are kept.

        Args:
            follows: raise an error unless the store has this batch and it does not wait for its replay

        Raises:
            CheckpointMismatchError: the earlier manifest has other source offsets.
            FencedError: another run has taken over. The files are deleted.
            RetryableError: the batch is being delivered, or another run has changed it or the batch before.
                The files are deleted.
        """
        batch = manifest.batch
        prepared = self.put(manifest, committables, follows)
        is_same = prepared.record.batch.digest == batch.digest
        if is_same and not prepared.is_ours and self.is_void(prepared.record):
            prepared = self.put(manifest, committables, follows, replacing=prepared.record)
        if not prepared.is_ours and prepared.record.batch.digest != batch.digest:
            raise mismatch(batch, "prepared from other source offsets by another run")
        return prepared

    def put(
        self,
        manifest: Manifest,
        committables: Sequence[Committable[PayloadT]],
        follows: Batch | None = None,
        replacing: ManifestRecord | None = None,
    ) -> Prepared:
        """Claim the stream and store the manifest; raises the errors of `prepare`."""
        batch, run_id = manifest.batch, committables[0].run_id
        try:
            self._store.claim(batch.stream, run_id)
            crash_points.reach("prepare.start", batch.batch_id)
            prepared = self._store.prepare(manifest, run_id, follows=follows, replacing=replacing)
        except (FencedError, RetryableError):
            # nothing was stored and nothing will be: no manifest will list these files
            self.delete(committables)
            raise
        crash_points.reach("prepare.done", batch.batch_id)
        return prepared

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

    def delete_unnamed(self, committables: Sequence[Committable[PayloadT]], earlier: ManifestRecord) -> None:
        """Delete the new files: an earlier manifest of the batch is valid."""
        # file names contain the run id, so the earlier manifest lists none of these
        if earlier.run_id != committables[0].run_id:
            self.delete(committables)

    def delete(self, committables: Sequence[Committable[PayloadT]]) -> int:
        return self._table.discard(c.payload for c in committables if c.payload is not None)
