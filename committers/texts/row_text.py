"""One row as JSON for people, whatever its values."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime, time
from typing import Any

import pyarrow as pa


def row_text(row: pa.Table) -> str:
    """Return the first row as a JSON object. A value that JSON cannot represent is shown as text."""
    values = {name: _value(column) for name, column in zip(row.column_names, row.columns, strict=True)}
    return json.dumps(values, default=_text, ensure_ascii=False)


def _value(column: pa.ChunkedArray) -> Any:
    try:
        value = column[0].as_py()
        json.dumps(value, default=_text, allow_nan=False).encode()
    except (ValueError, OverflowError, TypeError, ArithmeticError, LookupError):
        return _as_text(column)
    return value


def _as_text(column: pa.ChunkedArray) -> str:
    """For values that Python does not have: bytes that are not UTF-8, dates after the year 9999, NaN, times
    of an unknown time zone.
    """
    for data_type in (pa.string(), pa.binary()):
        try:
            value = column.slice(0, 1).cast(data_type)[0].as_py()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeError):
            continue
        return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return f"a value of type {column.type}"


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)
