"""Timestamps reach all writers in UTC, whatever the time zone of the Spark session. Executors only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from ..writers.time_zones import with_zone


def in_utc(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same instants, without a copy.

    Spark passes timestamps with the time zone of its session (`spark.sql.session.timeZone`). In Arrow the
    zone is part of the type and does not change the values, but it changes the Python objects and texts that
    are made of them.
    """
    for batch in batches:
        schema = pa.schema([field.with_type(with_zone(field.type, "UTC")) for field in batch.schema])
        if schema != batch.schema:
            # Not `cast`: Spark 4.0 sends empty lists without offsets, and a view does not read them.
            views = [
                column if column.type == field.type else column.view(field.type)
                for column, field in zip(batch.columns, schema, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(views, schema=schema)
        yield batch
