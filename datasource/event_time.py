"""The event time of rows, for one figure: how old the oldest row of a delivery is when it can be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.compute as pc

from ..committers.errors import ConfigurationError

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST = datetime.min.replace(tzinfo=timezone.utc)
_LAST = datetime.max.replace(tzinfo=timezone.utc)


def event_time_column(rows: pa.Schema, name: str | None) -> str | None:
    """The column as the query spells it; Spark compares names without case. Runs on the driver.

    Raises:
        ConfigurationError: there is no such column, or it holds no time.
    """
    if name is None:
        return None
    found = [column for column in rows if column.name.lower() == name.lower()]
    if not found:
        raise ConfigurationError(
            f"eventTime={name!r}: the query has no such column; columns: {', '.join(rows.names)}. Correct "
            "the option; a field of a struct must be made a column of its own."
        )
    kind = found[0].type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise ConfigurationError(
            f"eventTime={name!r}: the column is {kind}, and must be a timestamp or a date. Name another one, "
            "or leave the option out."
        )
    return str(found[0].name)


class OldestEvent:
    """The least value of a column, while its rows go by. Executors, one per task attempt."""

    def __init__(self, column: str | None) -> None:
        self._column = column
        self._oldest_us: int | None = None

    def observe(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches as they are."""
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
        """In UTC, which dates and times without a zone count as; bounded by what Python has dates for."""
        if self._oldest_us is None:
            return None
        try:
            return _EPOCH + timedelta(microseconds=self._oldest_us)
        except OverflowError:
            return _FIRST if self._oldest_us < 0 else _LAST


def oldest(moments: Iterable[datetime | None]) -> datetime | None:
    """The earliest one there is."""
    return min((moment for moment in moments if moment is not None), default=None)
