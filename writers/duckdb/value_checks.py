"""Checks values that the types of DuckDB do not have. Executors only."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.errors import SchemaMismatchError

TIME_MIN, TIME_MAX = -9_223_372_022_400_000_000, 2**63 - 2
"""Microseconds since 1970. Later ones are DuckDB's `infinity`, earlier ones are no points in time."""
DAY_MIN, DAY_MAX = -2_147_483_646, 2_147_483_646
"""Days since 1970. DuckDB's `infinity` is beyond."""


def check_times(column: pa.Array, name: str) -> None:
    """
    Raises:
        SchemaMismatchError: a date or a point in time, also inside of nested values, is none in DuckDB.
    """
    data_type = column.type
    if pa.types.is_struct(data_type):
        for field in column.flatten():
            check_times(field, name)
    elif pa.types.is_map(data_type):
        check_times(column.keys, name)
        check_times(column.items, name)
    elif pa.types.is_list(data_type):
        check_times(column.flatten(), name)
    elif pa.types.is_timestamp(data_type):
        _check(column.view(pa.int64()), name, TIME_MIN, TIME_MAX)
    elif pa.types.is_date32(data_type):
        _check(column.view(pa.int32()), name, DAY_MIN, DAY_MAX)


def _check(numbers: pa.Array, name: str, low: int, high: int) -> None:
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and (bounds["min"] < low or bounds["max"] > high):
        raise SchemaMismatchError(
            f"A value in {name} is beyond the dates of DuckDB, which end in the years -290308 and 294246. "
            "Filter these rows, or cast the column to STRING in the query."
        )
