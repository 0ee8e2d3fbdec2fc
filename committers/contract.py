"""The values that travel between writers and committers, and the contract of the writers.

`target` has the contract of the committers, and `store.contract` the one with the manifest store.

Contains everything that crosses a process boundary: what a task attempt returns, what is made durable, and
the outcome of a commit. Plain values without I/O; executors can import it (standard library only).

The terms follow Flink's unified sink (FLIP-143: writer, committable, committer) and RisingWave's sink
coordinator (RFC 0061: the coordinator first persists the pre-commit metadata of all writers, then commits,
and recovers at start).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeAlias, TypeVar

from .lineage import SourceRange, merged_ranges

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_WRITE_PREFIX = "write-"
"""Prefix of the query ids of batch writes. A batch write is a stream of one batch."""


@dataclass(frozen=True, slots=True)
class StreamKey:
    """One query that writes one table.

    A new checkpoint restarts batch ids at 0 under a new query id, so a table path alone does not identify a
    stream.
    """

    query_id: str
    table_uri: str

    def __str__(self) -> str:
        return f"{self.query_id} -> {self.table_uri}"


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of a stream, as recorded in Spark's offset log.

    `digest` is a hash of the batch's source offsets (hex SHA-256): the same batch id with another digest has
    other rows.
    """

    stream: StreamKey
    batch_id: int
    digest: str


@dataclass(frozen=True, slots=True)
class DataFile:
    """A closed data file, invisible to readers until committed.

    `path` is relative to the location of the table's data files, not encoded. `partition_values` are in the
    order of the partitioning, in the table format's string form (None for NULL). `statistics` are the column
    statistics as JSON in the table format's form. Both are empty if a format has none. Files of a row log
    have a checksum in place of the statistics.
    """

    path: str
    size_bytes: int
    rows: int
    partition_values: tuple[tuple[str, str | None], ...] = ()
    statistics: str = ""


DataFiles: TypeAlias = tuple[DataFile, ...]
"""Payload of file tables."""


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One partition field: a transform of a column."""

    name: str
    """Name of the field, used in paths and partition values."""
    column: tuple[str, ...]
    """Path of the column, through structs."""
    transform: str
    """In Iceberg's notation: `identity`, `bucket[16]`, `truncate[4]`, `year`, `month`, `day`, `hour`,
    `void`.
    """


@dataclass(frozen=True, slots=True)
class SortField:
    """One sort field: a transform of a column."""

    column: tuple[str, ...]
    transform: str = "identity"
    is_descending: bool = False
    nulls_first: bool = False


# Task side ------------------------------------------------------------------------------------------

PayloadT = TypeVar("PayloadT")
PayloadT_co = TypeVar("PayloadT_co", covariant=True)
ContentT = TypeVar("ContentT")
ContentT_contra = TypeVar("ContentT_contra", contravariant=True)

LateRows: TypeAlias = Literal["apply", "ignore"]


EVERY_COLUMN = "*"
"""See `Changes.partial_columns`."""


@dataclass(frozen=True, slots=True)
class History:
    """Columns of a table that keeps all versions of a row: a slowly changing dimension of type 2.

    A version is valid from its change, inclusive, until the next change of its key, exclusive.
    """

    valid_from: str
    """The value of the first column of `Changes.order_by`."""
    valid_to: str
    """NULL: no later change is known."""
    is_current: str


@dataclass(frozen=True, slots=True)
class Changes:
    """The mode of batches whose rows replace or delete the rows with the same key.

    Of the rows of one key in a batch the last one by `order_by` counts. Batches are applied in their order.
    Column names have the case of the query's columns.
    """

    keys: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    """Columns that order the rows of a key, compared one after the other; empty: a batch has no two different
    rows of one key.
    """
    delete_when: str = ""
    """Which rows delete: an expression, or the name of a boolean column; empty: none."""
    drop_columns: tuple[str, ...] = ()
    """Columns of the query that the table does not get."""
    late_rows: LateRows = "apply"
    """`ignore`: a row that is older than the table's, or than the deletion of its key, changes nothing."""
    tombstones_s: float = 0.0
    """With `ignore`: how long deletions are remembered, in seconds."""
    partial_columns: tuple[str, ...] = ()
    """Columns whose NULL keeps the value of the row in the table; `EVERY_COLUMN`: all but keys and order."""
    history: History | None = None
    """None: the table has one row of each key. Otherwise it has all its versions."""
    merge: Literal["on-read", "on-write"] | None = None
    """How deleted rows leave a file of a file table: they are masked, or the file is rewritten. None: as the
    table allows.
    """

    @property
    def identity(self) -> tuple[str, ...]:
        """Columns of which the table has each value once."""
        return self.keys if self.history is None else (*self.keys, self.history.valid_from)

    @property
    def ends(self) -> tuple[str, ...]:
        """Columns that tell when a version ends."""
        return () if self.history is None else (self.history.valid_to, self.history.is_current)

    def is_partial(self, name: str) -> bool:
        """Return True if NULL in this column keeps the value of the row in the table."""
        if EVERY_COLUMN in self.partial_columns:
            return name not in self.keys and name not in self.order_by
        return name in self.partial_columns


Mode: TypeAlias = Literal["append", "overwrite"] | Changes
"""What a batch does with the rows that the table has."""


@dataclass(frozen=True, slots=True)
class AttemptId:
    """One attempt of one task, unique across all attempts and runs.

    `attempt` is unique within the run. It is Spark's task attempt id; the attempt number would restart at 0
    when a stage is retried.
    """

    query_id: str
    run_id: str
    batch_id: int
    partition: int
    attempt: int


class TaskWriter(Protocol[PayloadT_co]):
    """Writes the rows of one task attempt, invisible to readers. Runs on an executor.

    One instance per attempt. Spark calls `write` for each Arrow batch, then `finish`; after an error,
    `abort`.
    """

    def write(self, batch: pa.RecordBatch) -> None:
        """
        Args:
            batch: timestamps have microseconds and the zone UTC or none, whatever the session's time zone is

        Raises:
            SchemaMismatchError: a value does not fit the destination.
        """
        ...

    def finish(self) -> PayloadT_co:
        """Make the written data durable and return what the driver needs to commit or discard it."""
        ...

    def abort(self) -> None:
        """Discard what this attempt wrote. Never raises, so that the original error is reported."""
        ...


class TaskWriterFactory(Protocol[PayloadT_co]):
    """Opens task writers. Created on the driver and pickled; it contains only the secrets that tasks need."""

    def open(self, attempt: AttemptId) -> TaskWriter[PayloadT_co]:
        """Called on the executor, once per task attempt."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedBatch(Generic[PayloadT, ContentT]):
    """Plan of one batch. The destination was checked, and created if needed."""

    writers: TaskWriterFactory[PayloadT]
    """Sent to the tasks."""
    content: ContentT
    """What the batch does to the destination, without payloads. It is pickled and contains no secret: it
    returns with the tasks' messages and becomes part of the manifest.
    """
    target_id: str
    """The target's own id, which changes if the target is re-created; empty if it has none."""
    is_lasting: bool = True
    """True: the plan is reused for some seconds, also while the target does not answer. False: each batch of
    a decoupled stream is planned again, because its tasks need the target anyway and planning is cheap.
    """


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row of a batch that the destination has refused for good. See `dead_letters`."""

    letter_id: str
    """Unique in the batch, and the same if the batch is written or sent again."""
    row_id: str
    """Id of the row's entry in a request; empty if there is none."""
    code: str
    message: str
    refused_at: datetime
    content: bytes = field(repr=False)
    """The row as an Arrow IPC stream."""


DeadLetters: TypeAlias = Mapping[int, Sequence[DeadLetter]]
"""Dead letters by batch id."""
NO_LETTERS: DeadLetters = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Committable(Generic[PayloadT]):
    """The result of one task attempt. Pickled on the executor, read on the driver."""

    batch: Batch
    run_id: str
    partition: int
    attempt: int
    payload: PayloadT | None
    """None if the batch was already committed and nothing was written."""
    oldest_event_at: datetime | None = None
    """Minimum of the query's event-time column; None if no column is configured."""
    dead_letters: tuple[DeadLetter, ...] = ()
    """Rows that were refused while the task wrote the others."""
    rows: int = 0
    """All rows of the task, with the refused ones; 0 if they were not counted."""
    version: int = 2

    @property
    def skipped(self) -> bool:
        return self.payload is None


# Store side -----------------------------------------------------------------------------------------


class ManifestState(str, Enum):
    PREPARED = "PREPARED"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The durable list of one batch's committables.

    `content` is opaque to the two-phase committer and the store: `kind` and `version` select the table
    committer that reads it. The counts are for display.
    """

    batch: Batch
    kind: str
    version: int
    content: bytes = field(repr=False)
    files: int
    rows: int
    size_bytes: int
    is_empty: bool
    """True if committing it would not change the table: then no table commit is made."""
    oldest_event_at: datetime | None = None
    """Minimum event time of its rows, if the query configures an event-time column."""
    merged: tuple[Batch, ...] = ()
    """The batches that a delivery commits together, oldest first; `batch` is the last of them. Empty for a
    batch's own manifest.
    """
    dead_letters: tuple[DeadLetter, ...] = field(default=(), repr=False, compare=False)
    """Rows that its tasks have refused. They are stored with the manifest, and not read with it."""
    sources: tuple[SourceRange, ...] = field(default=(), repr=False, compare=False)
    """What its batches have read of the sources of the query; empty if that is not recorded."""
    planned_at: datetime | None = field(default=None, compare=False)
    """When the batch was planned, before its tasks began; None if that is not known."""
    written_at: datetime | None = field(default=None, compare=False)
    """When all its tasks had ended."""

    @property
    def content_sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def batches(self) -> tuple[Batch, ...]:
        """All batches that this manifest commits."""
        return self.merged or (self.batch,)

    def in_place_of(self, other: Manifest) -> Manifest:
        """Return this manifest, which has the same rows in other files, as the one of the same delivery."""
        return replace(
            self, merged=other.merged, oldest_event_at=other.oldest_event_at, sources=other.sources
        )

    def merging(self, manifests: Sequence[Manifest]) -> Manifest:
        """Return this manifest, whose content is that of these together, as the one of their delivery."""
        events = [one.oldest_event_at for one in manifests if one.oldest_event_at is not None]
        batches = tuple(manifest.batch for manifest in manifests)
        read = merged_ranges(manifest.sources for manifest in manifests)
        return replace(self, merged=batches, oldest_event_at=min(events, default=None), sources=read)


class AbortedBy(str, Enum):
    """What aborted a batch. This decides whether its rows will be written again."""

    REPLAY = "replay"
    """Its rows are missing until Spark runs the batch again, with the same or other source offsets."""
    SKIP = "skip"
    """An operator skipped this batch; the query continues."""
    ABORT = "abort"
    """An operator aborted all undelivered batches of a query whose checkpoint is lost."""


@dataclass(frozen=True, slots=True)
class ManifestRecord:
    """A batch as recorded in the store, without the content."""

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
    """Version of the table that contains the batch, if the committer knows it."""
    reason: str = ""
    """Why the batch was aborted, or the result of the last attempt to commit it."""
    delivery_id: int | None = None
    """The delivery that the batch is part of, or was committed with."""
    aborted_by: AbortedBy | None = None
    """None unless the batch is ABORTED."""
    planned_at: datetime | None = None
    """When the batch was planned, before its tasks began; None if that is not known."""
    written_at: datetime | None = None
    """When all its tasks had ended."""

    @property
    def write_s(self) -> float | None:
        """Seconds in which its tasks have read and written; None if that is not known."""
        return seconds_between(self.planned_at, self.written_at)

    @property
    def prepare_s(self) -> float | None:
        """Seconds from the end of its tasks until it was prepared; None if that is not known."""
        return seconds_between(self.written_at, self.prepared_at)

    @property
    def commit_s(self) -> float | None:
        """Seconds from its prepare to its commit, with the wait for a delivery; None if it is not
        committed.
        """
        is_committed = self.state is ManifestState.COMMITTED
        return seconds_between(self.prepared_at, self.finished_at) if is_committed else None

    @property
    def shown_state(self) -> str:
        """The state for people: PREPARED, COMMITTED, ABORTED or SKIPPED."""
        return "SKIPPED" if self.is_skipped else self.state.value

    @property
    def awaits_replay(self) -> bool:
        return self.aborted_by is AbortedBy.REPLAY

    @property
    def is_dropped(self) -> bool:
        return self.aborted_by is AbortedBy.ABORT

    @property
    def is_skipped(self) -> bool:
        return self.aborted_by is AbortedBy.SKIP


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    """Return the seconds, at least 0: the clocks of two machines may differ. None if a time is not known."""
    return None if start is None or end is None else max((end - start).total_seconds(), 0.0)


@dataclass(frozen=True, slots=True)
class Token:
    """The stream's last batch, stored in the table itself. The token decides what is *committed*."""

    batch_id: int
    digest: str
    """Hex prefix of the batch's digest, as long as the format can store."""

    def matches(self, digest: str) -> bool:
        return digest.startswith(self.digest)


# Outcomes of one commit attempt. Expected outcomes are values, not exceptions. ----------------------


@dataclass(frozen=True, slots=True)
class Committed:
    """This attempt added the batch to the table."""

    table_version: int
    dropped_rows: int = 0
    """Rows that the destination has refused for good, and that the query lets it drop."""
    replaced_rows: int = 0
    """Rows that were not sent, as a later row of the same key replaces them."""
    dead_letters: DeadLetters = field(default_factory=dict, repr=False, compare=False)
    """Rows that the table refused in this commit. They are stored when the batches are marked."""


@dataclass(frozen=True, slots=True)
class AlreadyCommitted:
    """The table already had the batch; nothing was added."""

    table_version: int | None = None
    dead_letters: DeadLetters = field(default_factory=dict, repr=False, compare=False)
    """Rows that the table refused when the batch was committed, if the process that committed it has not
    marked it.
    """
    dropped_rows: int = 0
    """See `Committed`, as far as it is still known."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another writer committed first; the batch was certainly not committed. Try again."""

    reason: str


Outcome: TypeAlias = Committed | AlreadyCommitted | Conflict
"""How an attempt to commit ends, if it is known."""
