"""What the footer of a Parquet file says of its row groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .predicates import ONLY_NULL, UNKNOWN, Ranges, ValueRange
from .values import Path, days, microseconds


def is_in_bytes(group: pq.RowGroupMetaData, start: int, end: int | None) -> bool:
    """Return True if the middle of a row group is in a part of the file, so that it is in one part only."""
    if end is None and start == 0:
        return True
    column = group.column(0)
    first = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        first = min(first, column.dictionary_page_offset)
    size = sum(group.column(number).total_compressed_size for number in range(group.num_columns))
    middle = first + size // 2
    return start <= middle and (end is None or middle < end)


def group_ranges(
    parquet: pq.ParquetFile, names: Mapping[str, str], types: pa.Schema
) -> Callable[[pq.RowGroupMetaData], Ranges]:
    """Return what a row group's footer tells of the columns at the top level.

    Args:
        names: in the file, of the columns of the table that it stores
        types: their types in the condition
    """
    stored = parquet.schema_arrow
    places = {
        parquet.schema.column(number).path: number
        for number in range(len(parquet.schema))
        if "." not in parquet.schema.column(number).path
    }

    def ranges_of(group: pq.RowGroupMetaData) -> Ranges:
        def known(path: Path) -> ValueRange:
            name = names.get(path[0]) if len(path) == 1 else None
            if name is None or name not in places:
                return UNKNOWN
            if stored.field(name).type != types.field(path[0]).type:
                return UNKNOWN  # widened since, or in another form
            return _range(group.column(places[name]), types.field(path[0]).type, group.num_rows)

        return known

    return ranges_of


def _range(column: pq.ColumnChunkMetaData, data_type: pa.DataType, rows: int) -> ValueRange:
    found = column.statistics if column.is_stats_set else None
    if found is None:
        return UNKNOWN
    nulls = found.null_count if found.has_null_count else None
    if nulls == rows:
        return ONLY_NULL
    low, high = (None, None) if not found.has_min_max else _bounds(found, data_type)
    return ValueRange(low, high, may_be_null=nulls != 0, may_be_nan=pa.types.is_floating(data_type))


def _bounds(found: pq.Statistics, data_type: pa.DataType) -> tuple[Any, Any]:
    try:
        low, high = _bound(found.min, data_type), _bound(found.max, data_type)
    except (ValueError, OverflowError, TypeError, pa.ArrowException):
        return None, None
    return (None, None) if low != low or high != high else (low, high)


def _bound(value: Any, data_type: pa.DataType) -> Any:
    types = pa.types
    if types.is_boolean(data_type):
        return int(value)
    if types.is_signed_integer(data_type):
        return _checked(value, int)
    if types.is_floating(data_type):
        return float(value)
    if types.is_string(data_type):
        return _checked(value, str)
    if types.is_date32(data_type):
        return days(value)
    if types.is_timestamp(data_type):
        return microseconds(value)
    if types.is_decimal(data_type):
        return _checked(value, Decimal)
    return None


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(value)
    return value
