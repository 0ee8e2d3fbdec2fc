"""The contract of the manifest store: what is stored of a batch, and which of two manifests is valid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..contract import NO_LETTERS, Batch, DeadLetters, Manifest, ManifestRecord, ManifestState, StreamKey


@dataclass(frozen=True, slots=True)
class Prepared:
    """The manifest that is valid for a batch after `prepare`."""

    record: ManifestRecord
    is_ours: bool
    """False if an earlier manifest is valid: then no manifest lists the files of the given one."""


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """The arguments of `ManifestStore.prepare` for one of several targets."""

    manifest: Manifest
    follows: Batch | None = None
    replacing: ManifestRecord | None = None


@dataclass(frozen=True, slots=True)
class Registration:
    """What the store knows of a stream before its first batch."""

    stream: StreamKey
    kind: str
    query_name: str = ""
    table_id: str = ""
    """Of the table; stored until the first batch is committed, fixed after that."""
    settings: str = ""
    """What a delivery process needs to open the table, as JSON without secrets; if empty, those in the store
    are kept.
    """


class ManifestStore(Protocol):
    """Stores pending manifests, their state, and which run may prepare. Runs on the driver.

    Each method is one short database transaction.
    """

    def register_stream(self, stream: StreamKey, kind: str, query_name: str = "", table_id: str = "") -> None:
        """Insert or update the stream. Idempotent."""
        ...

    def claim(self, stream: StreamKey, run_id: str) -> None:
        """Make `run_id` the run that may prepare batches of the stream.

        A run that is new to the store takes over (the newest start wins). The previous run is fenced for
        good.

        Raises:
            FencedError: a newer run has taken over.
        """
        ...

    def claim_all(self, claimed: Sequence[StreamKey], run_id: str) -> None:
        """Call `claim` for several targets of one query, in one transaction. Raises as `claim`."""
        ...

    def prepare(
        self,
        manifest: Manifest,
        run_id: str,
        *,
        follows: Batch | None = None,
        replacing: ManifestRecord | None = None,
    ) -> Prepared:
        """Store the manifest as PREPARED unless the batch already has one: the first one wins.

        An ABORTED batch is prepared again; a PREPARED or COMMITTED one is returned unchanged.

        Args:
            follows: raise an error unless the store has this batch and it does not wait for its replay
            replacing: a PREPARED record to replace, if it is unchanged and not in a delivery

        Raises:
            FencedError: `run_id` does not hold the claim.
            RetryableError: the store was replaced, or another run has changed one of these batches.
        """
        ...

    def prepare_all(self, requests: Sequence[PrepareRequest], run_id: str) -> Sequence[Prepared]:
        """Call `prepare` for several targets of one query, in one transaction: an error stores none.

        Returns the results in the order of the requests. Raises the errors of `prepare`; also RetryableError
        if one stream would get rows of a batch that another one has from other source offsets.
        """
        ...

    def abort_from(self, expected: ManifestRecord, reason: str) -> bool:
        """Abort all PREPARED batches of the stream from this one on.

        Later batches that an operator has skipped wait for their replay from now on, like these.

        Returns False and aborts nothing if the record has changed, or if one of them is in an unfinished
        delivery.
        """
        ...

    def record(self, stream: StreamKey, batch_id: int) -> ManifestRecord | None:
        """The record of the batch; None if it was never prepared."""
        ...

    def manifest(self, stream: StreamKey, batch_id: int) -> Manifest | None:
        """The whole manifest, after its checksum is verified.

        Raises:
            ManifestCorruptError: the content does not match its checksum.
        """
        ...

    def pending(self, stream: StreamKey) -> Sequence[ManifestRecord]:
        """PREPARED batches in ascending order."""
        ...

    def finish(
        self,
        batch: Batch,
        state: ManifestState,
        *,
        table_version: int | None = None,
        reason: str = "",
        expected: ManifestRecord | None = None,
        dead_letters: DeadLetters = NO_LETTERS,
        dropped_rows: int = 0,
    ) -> bool:
        """Change PREPARED to `state` (compare-and-set on batch, digest and state); return False if that did
        not match.

        Args:
            expected: also compare the whole record: another run may have replaced the files
            dead_letters: rows that the table refused in the commit, stored in the same transaction
            dropped_rows: of the outcome, for the count of committed rows; dead letters may be among them
        """
        ...
