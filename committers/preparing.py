"""Phase one: make the manifest of a batch durable. Used by coupled and decoupled queries.

Runs on the driver, in the process that Spark commits in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from . import crash_points
from .checkpoint_forks import mismatch
from .commit_runner import stored_manifest
from .contract import (
    Batch,
    Committable,
    Manifest,
    ManifestRecord,
    ManifestState,
    ManifestStore,
    PayloadCommitter,
    PayloadT,
    Prepared,
)
from .decision import is_in_table
from .errors import FencedError, RetryableError
from .recovery import being_delivered


class Preparation(Generic[PayloadT]):
    """Prepares the batches of one stream, and gives up earlier ones that they replace."""

    def __init__(self, store: ManifestStore, table: PayloadCommitter[PayloadT]) -> None:
        self._store = store
        self._table = table

    def supersede(self, record: ManifestRecord) -> None:
        """Give up a batch that comes back with other rows, and those behind it, if it is as it was seen.

        They follow on rows that are not written: in the table, their token would say that the batch has
        landed. And whoever slept since the record was read must not give up what a twin has prepared, and
        Spark has logged, meanwhile.

        Raises:
            RetryableError: one of them is being delivered, or was changed by somebody else.
        """
        reason = "given up for its replay: the checkpoint has other offsets"
        if not self._store.abort_from(record, reason):
            raise RetryableError(being_delivered(record.batch, reason))

    def prepare(
        self, manifest: Manifest, committables: Sequence[Committable[PayloadT]], follows: Batch | None = None
    ) -> Prepared:
        """Prepare the batch, unless an earlier manifest holds for it: then that one is taken.

        An earlier one of the same rows whose files are gone gives way. The database may do what an earlier
        run has asked for only after this one has looked for pending batches, and a vacuum may have taken the
        files meanwhile. Those behind it, which follow on the same rows, stay.

        Args:
            follows: refuse it unless the store knows this batch, which does not wait for its replay

        Raises:
            CheckpointMismatchError: the earlier one has other source offsets.
            FencedError: another run has taken over. The files are deleted.
            RetryableError: it is being delivered, or it was changed by another run, or what it follows. The
                files are deleted.
        """
        batch = manifest.batch
        prepared = self.put(manifest, committables, follows)
        is_same = prepared.record.batch.digest == batch.digest
        if is_same and not prepared.is_ours and self._is_void(prepared.record):
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
        """Claim the stream and put the manifest into the store; raises as `prepare`."""
        batch, run_id = manifest.batch, committables[0].run_id
        try:
            self._store.claim(batch.stream, run_id)
            crash_points.reach("prepare.start", batch.batch_id)
            prepared = self._store.prepare(manifest, run_id, follows=follows, replacing=replacing)
        except (FencedError, RetryableError):
            self.delete(committables)  # nothing was written down, nor will be: nothing ever names them
            raise
        crash_points.reach("prepare.done", batch.batch_id)
        return prepared

    def missing(self, record: ManifestRecord) -> str:
        """Which files of a PREPARED batch are gone; empty if none, or if the table holds them already."""
        if not record.files:
            return ""
        missing = self._table.missing(stored_manifest(self._store, record.batch))
        if not missing or is_in_table(self._table.token(record.batch.stream.query_id), record.batch):
            return ""
        return f"{len(missing)} of {record.files} files are gone, first {missing[0]}"

    def _is_void(self, record: ManifestRecord) -> bool:
        return record.state is ManifestState.PREPARED and bool(self.missing(record))

    def delete_unnamed(self, committables: Sequence[Committable[PayloadT]], earlier: ManifestRecord) -> None:
        """Delete what was written in vain, for an earlier manifest of the batch holds."""
        if earlier.run_id != committables[0].run_id:  # file names carry the run: that one names none of these
            self.delete(committables)

    def delete(self, committables: Sequence[Committable[PayloadT]]) -> int:
        return self._table.discard(c.payload for c in committables if c.payload is not None)
