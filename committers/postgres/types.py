"""Arrow types and the Postgres types that store them without loss."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from functools import cache

import pyarrow as pa

_SQL_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp with time zone",
    pa.timestamp("us"): "timestamp without time zone",
}
"""In the form of Postgres' own `format_type`."""

_CONVERTED_TO = {
    "smallint": {"integer", "bigint"},
    "integer": {"bigint"},
    "real": {"double precision"},
    "text": {"character varying"},
    "character varying": {"text"},
}
"""Pairs of types that Postgres converts implicitly and without loss."""
_ALSO_READ_BY = {"text": {"uuid", "json", "jsonb"}}
"""Types that parse the text form, or reject it."""
_NAMES = {"numeric", *_SQL_TYPES.values()}.union(*_CONVERTED_TO.values(), *_ALSO_READ_BY.values())
_STAGED = re.compile(rf"({'|'.join(sorted(_NAMES))}|numeric\(\d+,\d+\))(\[\])?")
_LIMITED_TEXT = re.compile(r"character varying\((\d+)\)")
_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19}


def sql_type(data_type: pa.DataType) -> str | None:
    """The type of a new column; None if Postgres has no type that stores it without loss."""
    if pa.types.is_decimal128(data_type):
        return f"numeric({data_type.precision},{data_type.scale})"
    if pa.types.is_list(data_type) and not pa.types.is_nested(data_type.value_type):
        element = sql_type(data_type.value_type)
        return f"{element}[]" if element else None
    return _SQL_TYPES.get(data_type)


def arrow_type(column: str) -> pa.DataType:
    """The Arrow type that has every value of a staged column, or its text."""
    if column.endswith("[]"):
        return pa.list_(arrow_type(column[:-2]))
    match = re.fullmatch(r"numeric\((\d+),(\d+)\)", column)
    if match and int(match[1]) <= 38:
        return pa.decimal128(int(match[1]), int(match[2]))
    own = (arrow for arrow, kind in _SQL_TYPES.items() if kind == column and arrow != pa.int8())
    return next(own, pa.string())


def holds(column: str, data_type: pa.DataType) -> bool:
    """True if a column of the SQL type stores every value of the Arrow type unchanged, or rejects it."""
    own = sql_type(data_type)
    if own is None:
        return False
    if own.endswith("[]") and column.endswith("[]"):
        return holds(column[:-2], data_type.value_type)
    return takes(column, own) or column in _ALSO_READ_BY.get(own, ())


def may_hold(column: str, data_type: pa.DataType) -> bool:
    """True if `holds`, or if some values fit and the writer can tell which."""
    if holds(column, data_type) or (is_text(data_type) and length_max(column) is not None):
        return True
    is_decimal = pa.types.is_decimal128(data_type) and column.startswith("numeric(")
    return is_decimal or (pa.types.is_signed_integer(data_type) and column in _DIGITS)


_WIDENED_TO = {
    "smallint": ("integer", "bigint"),
    "integer": ("bigint",),
    "real": ("double precision",),
}


def widened(column: str, data_type: pa.DataType) -> str | None:
    """The SQL type that a column gets so that it `holds` the Arrow type, without loss of what it has; None if
    there is none.
    """
    own = sql_type(data_type)
    if own is None:
        return None
    if own in _WIDENED_TO.get(column, ()) or (own == "text" and length_max(column) is not None):
        return own
    if own.startswith("numeric(") and column.startswith("numeric("):
        return own if _has_same_scale(own, column) and takes(own, column) else None
    return None


def _has_same_scale(one: str, other: str) -> bool:
    first, second = _numeric(one), _numeric(other)
    return first is not None and second is not None and first[1] == second[1]


def can_widen(column: str, staged: str) -> bool:
    """True if `widened` can have chosen the second type for a column of the first one."""
    return widened(column, arrow_type(staged)) == staged


def is_text(data_type: pa.DataType) -> bool:
    return sql_type(data_type) == "text"


def length_max(column: str) -> int | None:
    """The number of characters of a `character varying(n)`; None for any other type."""
    match = _LIMITED_TEXT.fullmatch(column)
    return None if match is None else int(match[1])


def takes(column: str, staged: str) -> bool:
    """True if Postgres stores every value of the second SQL type unchanged in a column of the first one."""
    if staged == column:
        return True
    if staged.endswith("[]"):
        return column.endswith("[]") and takes(column[:-2], staged[:-2])
    if column == "numeric":
        return staged.startswith("numeric") or staged in _DIGITS
    given, wanted = _numeric(staged), _numeric(column)
    if given and wanted:
        return wanted[1] >= given[1] and wanted[0] - wanted[1] >= given[0] - given[1]
    return column in _CONVERTED_TO.get(staged, ())


def compared(expression: str, column: str) -> str:
    """The expression in a form whose values are compared by their bytes if they are text.

    Args:
        column: its SQL type
    """
    is_string = column == "text" or column.startswith("character varying")
    return f'{expression} COLLATE "C"' if is_string else expression


def widest(column: str) -> str:
    """The SQL type that stores the values of this one, and those after a column of it was widened."""
    if column in _DIGITS:
        return "bigint"
    if column.startswith("numeric("):
        return "numeric"
    return "text" if column.startswith("character varying") else column


def is_staged_as(column: str) -> bool:
    """True if `may_hold` can have accepted the SQL type."""
    return _STAGED.fullmatch(column) is not None or length_max(column) is not None


def text_type(column: str, data_type: pa.DataType) -> pa.DataType:
    """The Arrow type to format values with, so that a column that `holds` the type reads the same values.

    The shortest text of a float gives another number when it is read as a double.
    """
    if column == "double precision":
        return pa.float64()
    if not holds(column, data_type):  # see `may_hold`
        if column in _DIGITS:
            return {"smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64()}[column]
        if (size := _numeric(column)) is not None and pa.types.is_decimal(data_type):
            return pa.decimal128(*size)
        if not may_hold(column, data_type):  # the writer checks each value
            return arrow_type(column)
    if column.endswith("[]"):
        return pa.list_(text_type(column[:-2], data_type.value_type))
    return data_type


def _numeric(column: str) -> tuple[int, int] | None:
    """(precision, scale) of a number without binary fractions."""
    match = re.fullmatch(r"numeric\((\d+),(\d+)\)", column)
    if match:
        return int(match[1]), int(match[2])
    return (_DIGITS[column], 0) if column in _DIGITS else None


# Encodings ------------------------------------------------------------------------------------------------

UTF8 = "UTF8"


def can_encode(text: str, encoding: str) -> bool:
    """Return True if a database with this encoding can store the text, or if the encoding is not known."""
    try:
        text.encode(_codec(encoding))
    except UnicodeEncodeError:
        return False
    return True


@cache
def _codec(encoding: str) -> str:
    """Return Python's name of an encoding of Postgres. SQL_ASCII stores any bytes."""
    for name in (encoding, encoding.replace("WIN", "cp"), encoding.replace("KOI8", "KOI8_")):
        with suppress(LookupError):
            return codecs.lookup(name).name
    return "utf-8"
