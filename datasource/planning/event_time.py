"""The event time of rows, for one metric: the age of a delivery's oldest row when it becomes readable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.errors import ConfigurationError

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST = datetime.min.replace(tzinfo=timezone.utc)
_LAST = datetime.max.replace(tzinfo=timezone.utc)


def event_time_column(rows: pa.Schema, name: str | None) -> str | None:
    """Return the name of the column as the query spells it. Spark ignores case. Runs on the driver.

    Raises:
        ConfigurationError: the column does not exist, or is not a time.
    """
    if name is None:
        return None
    found = [column for column in rows if column.name.lower() == name.lower()]
    if not found:
        raise ConfigurationError(
            f"eventTime={name!r}: the query has no such column. Its columns are {', '.join(rows.names)}. "
            "Correct the option; copy a field of a struct into a column of its own."
        )
    kind = found[0].type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise ConfigurationError(
            f"eventTime={name!r}: the column is {kind}, but must be a timestamp or a date. Choose another "
            "column, or remove the option."
        )
    return str(found[0].name)


class OldestEvent:
    """Track the minimum of a column while rows are written. Executors, one per task attempt."""

    def __init__(self, column: str | None) -> None:
        self._column = column
        self._oldest_us: int | None = None

    def observe(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches unchanged."""
        if self._column is None:
            yield from batches
            return
        for batch in batches:
            self._observe(batch.column(batch.schema.names.index(self._column)))
            yield batch

    def _observe(self, column: pa.Array) -> None:
        zone = column.type.tz if pa.types.is_timestamp(column.type) else None
        least = pc.min(column.cast(pa.timestamp("us", zone)).cast(pa.int64())).as_py()
        if least is not None and (self._oldest_us is None or least < self._oldest_us):
            self._oldest_us = least

    @property
    def at(self) -> datetime | None:
        """The minimum in UTC, within Python's range. Dates and times without a zone count as UTC."""
        if self._oldest_us is None:
            return None
        try:
            return _EPOCH + timedelta(microseconds=self._oldest_us)
        except OverflowError:
            return _FIRST if self._oldest_us < 0 else _LAST


def oldest(moments: Iterable[datetime | None]) -> datetime | None:
    """Return the earliest moment; None if there is none."""
    return min((moment for moment in moments if moment is not None), default=None)
