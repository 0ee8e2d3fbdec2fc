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
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

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


DataFiles: TypeAlias = tuple[DataFile, ...]
"""The payload of file tables."""


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


# What tasks write ---------------------------------------------------------------------------------

PayloadT = TypeVar("PayloadT")
PayloadT_co = TypeVar("PayloadT_co", covariant=True)
PayloadT_contra = TypeVar("PayloadT_contra", contravariant=True)
ContentT = TypeVar("ContentT")
ContentT_contra = TypeVar("ContentT_contra", contravariant=True)

Mode: TypeAlias = Literal["append", "overwrite"]


@dataclass(frozen=True, slots=True)
class AttemptId:
    """One attempt of one task. No other attempt, of this run or another, has the same.

    `attempt` is unique within the run: Spark's task attempt id, not the attempt number, which starts at 0
    again when a stage is retried.
    """

    query_id: str
    run_id: str
    batch_id: int
    partition: int
    attempt: int


class TaskWriter(Protocol[PayloadT_co]):
    """Writes the rows of one task attempt, invisible to readers. Runs on an executor.

    One instance per attempt: `write` for each Arrow batch, then `finish`; after any error `abort`.
    """

    def write(self, batch: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaMismatchError: a value does not fit the destination.
        """
        ...

    def finish(self) -> PayloadT_co:
        """What was written, durable: all that the driver needs to commit or to discard it."""
        ...

    def abort(self) -> None:
        """Discard what this attempt wrote. Never raises: the error that led here is the one to see."""
        ...


class TaskWriterFactory(Protocol[PayloadT_co]):
    """Opens task writers. Made on the driver and pickled: it holds only the secrets that tasks need."""

    def open(self, attempt: AttemptId) -> TaskWriter[PayloadT_co]:
        """Executor, once per task attempt."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedBatch(Generic[PayloadT, ContentT]):
    """How one batch is written. The destination was checked, and created if it was not there."""

    writers: TaskWriterFactory[PayloadT]
    """For the tasks."""
    content: ContentT
    """What the batch does to the destination, payloads left out. Pickles, and holds no secret: it comes back
    with the tasks' messages, for the manifest.
    """
    target_id: str
    """The target's own id, by which a re-created one is told from it; empty if it has none."""
    is_lasting: bool = True
    """False if each batch of a decoupled stream is planned anew: its tasks need the target anyway, and a plan
    is cheap. Else a plan is used for some seconds, also while the target does not answer.
    """


@dataclass(frozen=True, slots=True)
class Committable(Generic[PayloadT]):
    """What one task attempt hands back. Pickled on the executor, read on the driver."""

    batch: Batch
    run_id: str
    partition: int
    attempt: int
    payload: PayloadT | None
    """None if the batch was done with before this attempt ran, and nothing was written."""
    oldest_event_at: datetime | None = None
    """The least value of the column that the query names as its event time; None without one."""
    version: int = 2

    @property
    def skipped(self) -> bool:
        return self.payload is None


# What the store keeps -----------------------------------------------------------------------------


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


class Committer(Protocol):
    """Commits manifests to one target. Runs on the driver and in the delivery process, one per call.

    An instance looks at the target when it is first asked, and again at the start of every `commit`.
    """

    def token(self, query_id: str) -> Token | None:
        """The last batch of the query that the target holds."""
        ...

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """Names of what the manifest needs and is not there any more, such as deleted data files."""
        ...

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """Make the batch and its token visible in one atomic step, if the token is not there yet.

        The token is checked on the very version of the target that the commit is based on. Idempotent.

        Args:
            check_token: asked about the token that the batch comes behind; what it raises ends the attempt

        Raises:
            SchemaMismatchError: the target can no longer take these rows; the batch did not land.
            CommitStateUnknownError: the batch may have landed. Delete nothing.
            CheckpointMismatchError: the target holds the batch id with other offsets.
            FencedError: the target holds some of the merged batches, not all: another process was faster.
        """
        ...


class PayloadCommitter(Committer, Protocol[PayloadT_contra]):
    """A committer that can discard what its tasks handed back."""

    def discard(self, payloads: Iterable[PayloadT_contra]) -> int:
        """Delete what tasks wrote and no manifest names; how many things were deleted. What is gone already
        is no error.
        """
        ...


class Target(PayloadCommitter[PayloadT], Protocol[PayloadT, ContentT]):
    """The target of one stream, with the options of its query. Driver, one per call."""

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedBatch[PayloadT, ContentT]:
        """Check that the target takes such rows; create it if it is not there. Before any data moves.

        Raises:
            ConfigurationError, SchemaMismatchError, TableNotSupportedError: it does not take them.
            RetryableError: it cannot be reached now.
        """
        ...

    def manifest(self, batch: Batch, content: ContentT, payloads: Sequence[PayloadT]) -> Manifest:
        """All that the tasks of one batch have written, as one manifest.

        Args:
            content: from the plan of the batch
        """
        ...


class ManifestStore(Protocol):
    """The truth about *pending*: manifests, their state, and which run may prepare. Runs on the driver.

    Every method is one short database transaction.
    """

    def register_stream(self, stream: StreamKey, kind: str, query_name: str = "", table_id: str = "") -> None:
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

    def abort_from(self, expected: ManifestRecord, reason: str) -> bool:
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
        expected: ManifestRecord | None = None,
    ) -> bool:
        """PREPARED -> `state`, compare-and-set on (batch, digest, PREPARED); False if it was not so.

        Args:
            seen: compare the whole record with this one, too: the files may be another run's by now
        """
        ...
