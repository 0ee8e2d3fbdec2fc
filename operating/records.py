"""What the functions of `operations` return: records that do not change, also as tables."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from ..committers.contract import ManifestRecord
from ..committers.store.delivery_queries import DeliveryRecord
from ..committers.store.listing import StreamState as StreamState
from ..committers.store.status import StreamStatus
from .findings import Finding

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """One stream: a query and one of its tables. Times are in UTC, sizes in bytes."""

    query_name: str
    query_id: str
    table: str
    """Its address."""
    kind: str
    """Of the destination, such as `delta`."""
    state: StreamState
    last_batch_id: int | None
    """The highest batch that was ever prepared; None: none yet."""
    last_batch_at: datetime | None
    """When it was committed, or else prepared."""
    pending_batches: int
    pending_rows: int
    oldest_pending_at: datetime | None
    committed_batches: int
    committed_rows: int
    committed_bytes: int
    table_version: int | None
    """The version that contains the last committed batch; None if the destination has no versions."""
    tries: int
    """Failed deliveries since the last successful one."""
    error: str
    """Of the last delivery; empty if it was successful."""
    parked_by: str
    """The operator who has parked it; empty if Penstock did, or if it is not parked."""
    dead_letters_waiting: int
    """Dead letters that are not in their table yet."""
    skipped_batches: tuple[int, ...]
    """Batches that were skipped, and that nobody has acknowledged."""

    @classmethod
    def of(cls, stream: StreamStatus) -> StreamRecord:
        last, delivery, backlog = stream.last, stream.delivery, stream.backlog
        return cls(
            query_name=stream.query_name,
            query_id=stream.key.query_id,
            table=stream.key.table_uri,
            kind=stream.kind,
            state=_state(stream),
            last_batch_id=None if last is None else last.batch.batch_id,
            last_batch_at=None if last is None else last.finished_at or last.prepared_at,
            pending_batches=backlog.batches,
            pending_rows=backlog.rows,
            oldest_pending_at=backlog.oldest_prepared_at,
            committed_batches=stream.committed_batches,
            committed_rows=stream.committed_rows,
            committed_bytes=stream.committed_bytes,
            table_version=None if stream.written is None else stream.written.table_version,
            tries=delivery.tries,
            error=delivery.error,
            parked_by=delivery.parked_by,
            dead_letters_waiting=stream.dead_letters_waiting,
            skipped_batches=stream.skipped.unacknowledged,
        )


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch of a stream."""

    query_name: str
    table: str
    batch_id: int
    state: str
    """PREPARED, COMMITTED, ABORTED or SKIPPED."""
    rows: int
    files: int
    size_bytes: int
    prepared_at: datetime
    finished_at: datetime | None
    """When it was committed or given up; None: it waits."""
    write_s: float | None
    """Seconds in which its tasks have read and written; None: not known."""
    prepare_s: float | None
    """Seconds from the end of its tasks until it was prepared; None: not known."""
    commit_s: float | None
    """Seconds from its prepare to its commit, with the wait for a delivery; None: it is not committed."""
    table_version: int | None
    reason: str
    """Why it was given up, or the result of the last attempt to commit it."""

    @classmethod
    def of(cls, stream: StreamStatus, batch: ManifestRecord) -> BatchRecord:
        return cls(
            query_name=stream.query_name,
            table=stream.key.table_uri,
            batch_id=batch.batch.batch_id,
            state=batch.shown_state,
            rows=batch.rows,
            files=batch.files,
            size_bytes=batch.size_bytes,
            prepared_at=batch.prepared_at,
            finished_at=batch.finished_at,
            write_s=batch.write_s,
            prepare_s=batch.prepare_s,
            commit_s=batch.commit_s,
            table_version=batch.table_version,
            reason=batch.reason,
        )


@dataclass(frozen=True, slots=True)
class DeliveredRecord:
    """One delivery of a decoupled stream: several batches in one commit."""

    query_name: str
    table: str
    first_batch_id: int
    last_batch_id: int
    batches: int
    state: str
    """PREPARED, COMMITTED or ABANDONED."""
    trigger: str
    """What it was started by."""
    rows: int
    files_before: int
    """Those of the batches."""
    files: int
    """Those of the commit."""
    size_bytes: int
    prepared_at: datetime
    finished_at: datetime | None
    waited_s: float
    """Seconds in which its oldest batch has waited for it."""
    commit_s: float | None
    """Seconds from its prepare to its commit; None: it is not committed."""
    table_version: int | None
    reason: str
    """Why it was abandoned."""

    @classmethod
    def of(cls, stream: StreamStatus, delivery: DeliveryRecord) -> DeliveredRecord:
        return cls(
            query_name=stream.query_name,
            table=stream.key.table_uri,
            first_batch_id=delivery.first_batch_id,
            last_batch_id=delivery.last_batch_id,
            batches=delivery.batches,
            state=delivery.phase.value,
            trigger=delivery.trigger,
            rows=delivery.rows,
            files_before=delivery.source_files,
            files=delivery.files,
            size_bytes=delivery.size_bytes,
            prepared_at=delivery.prepared_at,
            finished_at=delivery.finished_at,
            waited_s=delivery.waited_s,
            commit_s=delivery.commit_s,
            table_version=delivery.table_version,
            reason=delivery.reason,
        )


def _state(stream: StreamStatus) -> StreamState:
    if stream.delivery.parked_at is not None:
        return StreamState.PARKED
    if stream.delivery.tries:
        return StreamState.FAILING
    return StreamState.PENDING if stream.pending else StreamState.IDLE


# As tables ------------------------------------------------------------------------------------------

Record = TypeVar("Record", StreamRecord, BatchRecord, DeliveredRecord, Finding)


class Records(Sequence[Record], Generic[Record]):
    """Records of one type. A notebook shows them as a table.

    Args:
        record_type: also of no records
    """

    def __init__(self, record_type: type[Record], records: Iterable[Record]) -> None:
        self._type: type[Record] = record_type
        self._records: tuple[Record, ...] = tuple(records)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Records[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Records[Record]:
        if isinstance(index, slice):
            return Records(self._type, self._records[index])
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Records) and self._records == other._records

    def __hash__(self) -> int:
        return hash(self._records)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple([field.name for field in fields(self._type)])

    def to_arrow(self) -> pa.Table:
        """Return a table with a column for each field."""
        import pyarrow as pa

        schema = pa.schema([(field.name, _arrow_type(str(field.type))) for field in fields(self._type)])
        rows = [dict(zip(self.columns, map(_plain, astuple(one)), strict=True)) for one in self._records]
        return pa.Table.from_pylist(rows, schema=schema)

    def to_pandas(self) -> Any:
        """Return a DataFrame of pandas, which has to be installed."""
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        """Each record on a line of its own, in columns of equal width."""
        lines = [self._shown_columns, *self._cells()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        def row(cells: Iterable[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(one)}</{tag}>" for one in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in self._cells())
        return f"<table><thead>{row(self._shown_columns, 'th')}</thead><tbody>{body}</tbody></table>"

    @property
    def _shown_columns(self) -> list[str]:
        """Those that have a value in one of the records."""
        empty = (None, "", ())
        return [
            name
            for name in self.columns
            if not self._records or any(getattr(one, name) not in empty for one in self._records)
        ]

    def _cells(self) -> list[list[str]]:
        return [[_text(getattr(one, name)) for name in self._shown_columns] for one in self._records]


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return " ".join(str(value).split())


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else list(value) if isinstance(value, tuple) else value


def _arrow_type(annotation: str) -> pa.DataType:
    import pyarrow as pa

    if annotation.startswith("datetime"):
        return pa.timestamp("us", "UTC")
    if annotation.startswith("tuple"):
        return pa.list_(pa.int64())
    if annotation.startswith("float"):
        return pa.float64()
    return pa.int64() if annotation.startswith("int") else pa.string()
