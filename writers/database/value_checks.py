"""Checks values that types of databases do not have. Executors only."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.errors import SchemaMismatchError

_YEAR_1_DAYS, _YEAR_9999_DAYS = -719_162, 2_932_896
_DAY_US = 86_400_000_000


def check_years(array: pa.Array, column: str) -> None:
    """Check dates or timestamps in microseconds.

    Raises:
        SchemaMismatchError: a value is outside of the years 1 to 9999.
    """
    if pa.types.is_date(array.type):
        low, high, numbers = _YEAR_1_DAYS, _YEAR_9999_DAYS, array.view(pa.int32())
    else:
        low, high = _YEAR_1_DAYS * _DAY_US, (_YEAR_9999_DAYS + 1) * _DAY_US - 1
        numbers = array.view(pa.int64())
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and (bounds["min"] < low or bounds["max"] > high):
        raise SchemaMismatchError(
            f"A value in {column} is outside of the years 1 to 9999. Filter these rows, or cast the column "
            "to STRING in the query."
        )
