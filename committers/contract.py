"""The contract between writers, committers and the manifest store.

Everything that crosses a process boundary is here: what one task attempt hands back, what is made
durable, what a commit ends in. Plain values, no I/O; importable on executors (standard library only).

The words follow Flink's unified sink (FLIP-143: writer, committable, committer) and RisingWave's sink
coordinator (RFC 0061: the coordinator persists the pre-commit metadata of all writers first, commits
after, and recovers at start).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol, TypeAlias

BATCH_WRITE_PREFIX = "write-"
"""Of the query ids of batch writes, which are streams of one batch."""


@dataclass(frozen=True, slots=True)
class StreamKey:
    """One query writing one table.

    A fresh checkpoint restarts batch ids at 0 under a new query id, so a path alone names nothing.
    """

    query_id: str
    table_uri: str

    def __str__(self) -> str:
        return f"{self.query_id} -> {self.table_uri}"


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of a stream, as Spark's offset log has it.

    `digest` covers the batch's source offsets (hex SHA-256): the same batch id with another digest is
    other rows.
    """

    stream: StreamKey
    batch_id: int
    digest: str


@dataclass(frozen=True, slots=True)
class DataFile:
    """A closed data file, invisible until committed.

    `path` is relative to the location of the table's data files, unencoded. `partition_values` are in the
    order of the partitioning, as the table format spells them (NULL is None). `statistics` is the column
    statistics as JSON in the table format's own form. Both are empty where a format has none.
    """

    path: str
    size_bytes: int
    rows: int
    partition_values: tuple[tuple[str, str | None], ...] = ()
    statistics: str = ""


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a table's partitioning: a transform of a column."""

    name: str
    """Of the field itself: it stands in paths and partition values."""
    column: tuple[str, ...]
    """The column's path, through structs."""
    transform: str
    """As Iceberg spells it: `identity`, `bucket[16]`, `truncate[4]`, `year`, `month`, `day`, `hour`,
    `void`.
    """


@dataclass(frozen=True, slots=True)
class SortField:
    """One field of the order that rows are sorted in: a transform of a column."""

    column: tuple[str, ...]
    transform: str = "identity"
    is_descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class Committable:
    """What one task attempt hands back. Pickled on the executor, read on the driver."""

    batch: Batch
    run_id: str
    partition: int
    attempt: int
    files: tuple[DataFile, ...]
    skipped: bool = False
    """True if the batch was done with before this attempt ran, and nothing was written."""
    oldest_event_at: datetime | None = None
    """The least value of the column that the query names as its event time; None without one."""
    version: int = 1


class ManifestState(str, Enum):
    PREPARED = "PREPARED"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The durable list of one batch's committables.

    To the two-phase committer and the store `content` is opaque: `kind` and `version` say which table
    committer reads it. The counts are for people.
    """

    batch: Batch
    kind: str
    version: int
    content: bytes = field(repr=False)
    files: int
    rows: int
    size_bytes: int
    is_empty: bool
    """True if committing it would change nothing in the table: then there is no table commit."""
    oldest_event_at: datetime | None = None
    """The least event time of its rows, where the query names a column for it."""
    merged: tuple[Batch, ...] = ()
    """The batches that a delivery commits at once, oldest first and `batch` the last of them; empty for a
    batch's own manifest.
    """

    @property
    def content_sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def batches(self) -> tuple[Batch, ...]:
        """All batches that it commits."""
        return self.merged or (self.batch,)


class AbortedBy(str, Enum):
    """What has aborted a batch, and so whether its rows come back."""

    REPLAY = "replay"
    """Its rows are nowhere until Spark runs it again, with the same or with other source offsets."""
    SKIP = "skip"
    """An operator gave up this batch of a query that goes on."""
    ABORT = "abort"
    """An operator gave up all undelivered batches of a query whose checkpoint is lost."""


@dataclass(frozen=True, slots=True)
class ManifestRecord:
    """What the store knows of one batch, without the content."""

    batch: Batch
    state: ManifestState
    kind: str
    version: int
    files: int
    rows: int
    size_bytes: int
    run_id: str
    prepared_at: datetime
    finished_at: datetime | None = None
    table_version: int | None = None
    """Version of the table that holds the batch, where the committer knows it."""
    reason: str = ""
    """Why the batch was aborted, or what the last attempt to commit it ended in."""
    delivery_id: int | None = None
    """The delivery that the batch is part of, or went into the table with."""
    aborted_by: AbortedBy | None = None
    """None unless the batch is ABORTED."""

    @property
    def awaits_replay(self) -> bool:
        return self.aborted_by is AbortedBy.REPLAY

    @property
    def is_dropped(self) -> bool:
        return self.aborted_by is AbortedBy.ABORT

    @property
    def is_skipped(self) -> bool:
        return self.aborted_by is AbortedBy.SKIP


@dataclass(frozen=True, slots=True)
class Prepared:
    """The manifest that holds for a batch after `prepare`."""

    record: ManifestRecord
    is_ours: bool
    """False if an earlier manifest holds: then no manifest names the files of the one given."""


@dataclass(frozen=True, slots=True)
class Token:
    """The stream's last batch, as the table itself has it. The table is the truth about *committed*."""

    batch_id: int
    digest: str
    """As many leading bytes of the batch's digest as the format can hold, hex."""

    def matches(self, digest: str) -> bool:
        return digest.startswith(self.digest)


# Outcomes of one attempt to commit: expected endings are values -----------------------------------


@dataclass(frozen=True, slots=True)
class Committed:
    """The table holds the batch since this attempt."""

    table_version: int


@dataclass(frozen=True, slots=True)
class AlreadyCommitted:
    """The table held the batch before this attempt; nothing was added."""

    table_version: int | None = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another writer took the version; the batch provably did not land. Try again."""

    reason: str


Outcome: TypeAlias = Committed | AlreadyCommitted | Conflict

CheckToken: TypeAlias = Callable[[Token | None], None]
"""Raises if a batch must not go into a table with this token."""


class TableCommitter(Protocol):
    """Commits manifests to one table. Runs on the driver and in the delivery process, one per call.

    An instance looks at the table when it is first asked, and again at the start of every `commit`.
    """

    def token(self, query_id: str) -> Token | None:
        """The last batch of the query that the table holds."""
        ...

    def missing_files(self, manifest: Manifest) -> Sequence[str]:
        """Files that the manifest names and that are gone."""
        ...

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """Add all files of the manifest and its token in one table commit, if the token is not there yet.

        The token is checked on the very table version that the commit is based on. Idempotent.

        Args:
            check_token: asked about the token that the batch comes behind; what it raises ends the attempt

        Raises:
            SchemaMismatchError: the table can no longer take these files; the batch did not land.
            CommitStateUnknownError: the batch may have landed. Delete nothing.
            CheckpointMismatchError: the table holds the batch id with other offsets.
            FencedError: the table holds some of the merged batches, not all: another process was faster.
        """
        ...

    def delete_files(self, paths: Iterable[str]) -> int:
        """Delete uncommitted data files; the number deleted. Files already gone are no error."""
        ...


class ManifestStore(Protocol):
    """The truth about *pending*: manifests, their state, and which run may prepare. Runs on the driver.

    Every method is one short database transaction.
    """

    def register(self, stream: StreamKey, kind: str, query_name: str = "", table_id: str = "") -> None:
        """Make the stream known. Idempotent."""
        ...

    def claim(self, stream: StreamKey, run_id: str) -> None:
        """Make `run_id` the run that may prepare batches of the stream.

        A run that was never seen takes over (the newest start wins). The one that was taken over is
        fenced for good.

        Raises:
            FencedError: another run has taken over since.
        """
        ...

    def prepare(
        self,
        manifest: Manifest,
        run_id: str,
        *,
        follows: Batch | None = None,
        replacing: ManifestRecord | None = None,
    ) -> Prepared:
        """Make the manifest durable, PREPARED, unless the batch has one: first prepared wins.

        An ABORTED batch is prepared anew; a PREPARED or COMMITTED one is left as it is and returned.

        Args:
            follows: refuse it unless the store knows this batch, which does not wait for its replay
            replacing: a PREPARED record that gives way, if it still is as it was seen and not in a delivery

        Raises:
            FencedError: `run_id` does not hold the claim.
            RetryableError: the store was replaced meanwhile, or another run has changed one of these batches.
        """
        ...

    def give_up_from(self, seen: ManifestRecord, reason: str) -> bool:
        """Abort all PREPARED batches of the stream from this one on.

        Those after it that an operator has skipped wait for their replay from now on, like these.

        False, and nothing is aborted, if the record is not as it was seen any more, or one of them is in an
        unfinished delivery.
        """
        ...

    def record(self, stream: StreamKey, batch_id: int) -> ManifestRecord | None:
        """What is known of the batch; None if it was never prepared."""
        ...

    def manifest(self, stream: StreamKey, batch_id: int) -> Manifest | None:
        """The whole manifest, its content checked against the checksum written with it.

        Raises:
            ManifestCorruptError: the content is not what was written.
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
        seen: ManifestRecord | None = None,
    ) -> bool:
        """PREPARED -> `state`, compare-and-set on (batch, digest, PREPARED); False if it was not so.

        Args:
            seen: compare the whole record with this one, too: the files may be another run's by now
        """
        ...
