"""The contract between request-based destinations and what delivers to them. Imported on executors, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

    from ..changes.key_files import Keys
    from ..contract import LateRows

ROWS_MAX = 1000
"""Rows that are converted to entries at a time."""


@dataclass(frozen=True, slots=True)
class RowPlace:
    """The place of some consecutive rows: the first one's place in its partition, and in the order of
    entries.

    The places of rows are the same in each replay of a row log, and so are the ids of entries.
    """

    query_id: str
    batch_id: int
    partition: int
    row: int
    position: int
    is_fixed: bool = True
    """False: another attempt of the task may have another row here, because Spark can repeat a task with its
    rows in another order.
    """
    numbers: Sequence[int] | None = None
    """Places of the rows behind the first one, if some between them are left out. None: consecutive rows."""

    def ids(self, count: int) -> list[str]:
        """Return an id for each of so many rows: `<query>-<batch>-<partition>-<row>`."""
        prefix = f"{self.query_id}-{self.batch_id}-{self.partition}-"
        return [f"{prefix}{self.row + number}" for number in self.numbers or range(count)]


NOWHERE = RowPlace("", 0, 0, 0, 0)
"""To check rows before they have a place."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What has become of the rows of a task, or of a delivery."""

    rows: int = 0
    """All rows of the task: delivered, dropped or not needed."""
    size_bytes: int = 0
    """Size of the entries."""
    dropped: int = 0
    """Rows that the destination has refused, and that are dropped or dead letters."""

    def __add__(self, other: Sent) -> Sent:
        return Sent(self.rows + other.rows, self.size_bytes + other.size_bytes, self.dropped + other.dropped)


@dataclass(frozen=True, slots=True)
class RefusedEntry:
    """An entry that the destination will never accept, and that the query keeps as a dead letter."""

    position: int
    entry_id: str
    code: str
    message: str
    at: datetime


@dataclass(slots=True)
class Counters:
    """What a writer has done so far: counts of entries, if nothing else is said. All but the last five only
    grow.
    """

    sent: int = 0
    """Each attempt counts."""
    delivered: int = 0
    retried: int = 0
    """Attempts after which an entry was put back."""
    throttled: int = 0
    """Attempts that the destination refused because of its load."""
    dropped: int = 0
    dead_letters: int = 0
    """Refused for good."""
    bytes: int = 0
    """Sent."""
    requests: int = 0
    """Requests sent."""
    throttled_requests: int = 0
    """Requests with a throttled entry."""
    timed_out_requests: int = 0
    waited_s: float = 0.0
    """Time that callers waited in `write` and `flush`."""
    in_flight: int = 0
    in_flight_requests: int = 0
    """Requests that wait for a response."""
    in_flight_max: float = 0.0
    """How many may be in flight, as the destination's throttling has taught."""
    buffered: int = 0
    """Entries that wait to be sent, or to be sent again."""
    buffered_bytes: int = 0


class EntryWriter(Protocol):
    """Sends entries. `writers.requests` has the implementation; used by one thread."""

    @property
    def acknowledged_up_to(self) -> int | None:
        """All entries up to this position are acknowledged. None: not even the first one."""
        ...

    @property
    def counters(self) -> Counters:
        """The live counters. They can be read in any thread."""
        ...

    def check_with(self, check: Callable[[], None]) -> None:
        """Call `check` in `write` and `flush`, about once a second while they wait, and raise its error."""
        ...

    def take_refused(self) -> Sequence[RefusedEntry]:
        """Return the entries that became dead letters since the last call. Called in `on_acknowledged`, and
        after `flush`.
        """
        ...

    def write(self, entries: Sequence[Any]) -> None:
        """Take the entries; block while the buffer is full.

        Raises:
            PenstockError: of any entry so far.
        """
        ...

    def flush(self) -> None:
        """Block until all entries are acknowledged."""
        ...

    def stop(self) -> None:
        """Send nothing more. Requests in flight get a few seconds for their responses. Raises nothing."""
        ...

    def abort(self) -> None:
        """End. Nothing is in flight afterwards. Raises nothing."""
        ...


@runtime_checkable
class RecordsRefused(Protocol):
    """Capability of an `EntryWriter` whose destination remembers the last entry of a query (a fence).

    Such a destination takes entries before its fence for delivered. So a refused entry must be recorded
    before a later one moves the fence.
    """

    def record_refused_with(self, record: Callable[[], None]) -> None:
        """Call `record` after each refused entry is acknowledged, before anything more is sent."""
        ...


class Requests(Protocol):
    """How rows become requests. Made from the options of a query, and pickled for its tasks."""

    def check_schema(self, rows: pa.Schema) -> None:
        """
        Raises:
            SchemaMismatchError: the destination cannot receive these columns.
        """
        ...

    def checker(self) -> Callable[[pa.RecordBatch], object]:
        """Return a check of values before they are written to a row log. It is pickled for tasks, without
        secrets, and raises `SchemaMismatchError` if a value cannot be converted.
        """
        ...

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Any]:
        """Convert rows to entries, one for each row. The position of an entry is that of its row.

        Raises:
            SchemaMismatchError: a value cannot be converted.
        """
        ...

    def open_writer(self, on_acknowledged: Callable[[], None] = lambda: None) -> EntryWriter:
        """Return a new writer.

        Args:
            on_acknowledged: called after some entries were acknowledged, in the thread that sends. An
                exception stops the writer.
        """
        ...


@dataclass(frozen=True, slots=True)
class RowChanges:
    """What rows do that insert, replace or delete by key. Rows without a key are left out: they are bad rows.

    All rows that insert or replace come first, then those that delete.
    """

    numbers: pa.Array
    """Place of each row among those that were given (int64)."""
    keys: Keys
    upserts: pa.RecordBatch
    """The columns that the destination gets, of the rows that insert or replace."""
    is_partial: pa.Array
    """True for rows that keep values which the destination has."""


@runtime_checkable
class ChangesRows(Protocol):
    """Capability of `Requests`: rows insert, replace and delete by key (`writeMode=upsert`)."""

    @property
    def late_rows(self) -> LateRows: ...

    def changes_of(self, rows: pa.RecordBatch) -> RowChanges: ...

    def folding(self, earlier: Mapping[int, pa.RecordBatch]) -> Requests:
        """Return requests that make one entry of several rows of a key.

        Args:
            earlier: by the position of a row, the rows that it completes, in their order
        """
        ...


@runtime_checkable
class ChecksDestination(Protocol):
    """Capability of `Requests`: it can look at the destination before any row moves. Driver only."""

    def check_destination(self, rows: pa.Schema) -> None:
        """Make one call.

        Raises:
            ConfigurationError: the destination does not exist, or cannot receive these columns.
            RetryableError: it does not answer.
        """
        ...


@runtime_checkable
class CountsRequests(Protocol):
    """Capability of a committer: the progress of its requests can be watched, and they can be stopped."""

    def watched(self, watch: Callable[[Counters], None], check: Callable[[], None]) -> Self:
        """Return a copy that calls `watch` with the live counters of each of its writers, before the writer
        sends anything.

        Args:
            check: called while requests are sent; an exception stops the delivery, see `EntryWriter`
        """
        ...
