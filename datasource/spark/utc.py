"""Timestamps reach all writers in UTC, whatever the time zone of the Spark session. Executors only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from ...writers.time_zones import relabelled, with_zone


@contextmanager
def process_in_utc() -> Iterator[None]:
    """Set the time zone of this process to UTC.

    Spark 4.0 passes timestamps as datetimes without a zone, in the local time of the worker, and without
    the flag (`fold`) that tells the two hours apart that have the same local time when clocks are set back.
    It converts each row when the writer asks for it.
    """
    before = os.environ.get("TZ")
    _set_zone("UTC")
    try:
        yield
    finally:
        _set_zone(before)


def _set_zone(zone: str | None) -> None:
    if zone is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = zone
    time.tzset()


def in_utc(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same instants, without a copy.

    Spark passes timestamps with the time zone of its session (`spark.sql.session.timeZone`). In Arrow the
    zone is part of the type and does not change the values, but it changes the Python objects and texts that
    are made of them.
    """
    for batch in batches:
        schema = pa.schema([field.with_type(with_zone(field.type, "UTC")) for field in batch.schema])
        if schema != batch.schema:
            columns = zip(batch.columns, schema.types, strict=True)
            batch = pa.RecordBatch.from_arrays([relabelled(*column) for column in columns], schema=schema)
        yield batch
