"""Timestamps reach all writers in UTC, whatever the time zone of the Spark session. Executors only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyarrow import types


def in_utc(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same instants, without a copy.

    Spark passes timestamps with the time zone of its session (`spark.sql.session.timeZone`). In Arrow the
    zone is part of the type and does not change the values, but it changes the Python objects and texts that
    are made of them.
    """
    for batch in batches:
        schema = pa.schema([_field(field) for field in batch.schema])
        if schema != batch.schema:
            # Not `cast`: Spark 4.0 sends empty lists without offsets, and a view does not read them.
            views = [
                column if column.type == field.type else column.view(field.type)
                for column, field in zip(batch.columns, schema, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(views, schema=schema)
        yield batch


def _utc(data_type: pa.DataType) -> pa.DataType:
    if types.is_timestamp(data_type) and data_type.tz:
        return pa.timestamp(data_type.unit, "UTC")
    if types.is_struct(data_type):
        return pa.struct([_field(field) for field in data_type])
    if types.is_map(data_type):
        return pa.map_(_field(data_type.key_field), _field(data_type.item_field), data_type.keys_sorted)
    if types.is_large_list(data_type):
        return pa.large_list(_field(data_type.value_field))
    if types.is_list(data_type):
        return pa.list_(_field(data_type.value_field))
    return data_type


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_utc(field.type))
