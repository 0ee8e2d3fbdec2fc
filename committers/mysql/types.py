"""Arrow types and the MySQL types that store them without loss.

SQL types are as `information_schema.columns.column_type` lists them, without the display widths of integers,
which only some versions list. A session of Penstock has a strict `sql_mode`: a value that does not fit its
column is refused, not changed.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

BOOLEAN = "tinyint(1)"
_SQL_TYPES = {
    pa.bool_(): BOOLEAN,
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "longtext",
    pa.binary(): "longblob",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "datetime(6)",
    pa.timestamp("us"): "datetime(6)",
}
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_DIGITS = dict(zip(_INTEGERS, (3, 5, 7, 10, 19), strict=True))
_TEXTS = ("tinytext", "text", "mediumtext", "longtext", "json")
_BLOBS = ("tinyblob", "blob", "mediumblob", "longblob")
_VARCHAR = re.compile(r"varchar\((\d+)\)")
_VARBINARY = re.compile(r"varbinary\((\d+)\)")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)( unsigned)?")
SCALE_MAX = 30
KEY_CHARS, KEY_BYTES = 255, 2_800
"""Of the texts in the keys of a new table."""
_WIDTH = re.compile(r"^(tinyint|smallint|mediumint|int|bigint)\(\d+\)")
_OTHERS = {BOOLEAN, "float", "double", "date", "datetime(6)", "timestamp(6)", *_TEXTS, *_BLOBS}


def normalized(column_type: str) -> str:
    """The type of a column without its display width, except for `tinyint(1)`."""
    kind = column_type.lower().removesuffix(" zerofill")
    return kind if kind == BOOLEAN else _WIDTH.sub(r"\1", kind)


def sql_type(data_type: pa.DataType) -> str | None:
    """See `TypeRules`."""
    if pa.types.is_decimal128(data_type):
        return f"decimal({data_type.precision},{data_type.scale})" if data_type.scale <= SCALE_MAX else None
    return _SQL_TYPES.get(data_type)


def arrow_type(column: str) -> pa.DataType:
    """See `TypeRules`."""
    if column.startswith("timestamp"):
        return pa.timestamp("us", "UTC")
    if match := _DECIMAL.fullmatch(column):
        precision, scale = int(match[1]), int(match[2])
        return pa.decimal128(precision, scale) if precision <= 38 else pa.string()
    if column in _BLOBS or _VARBINARY.fullmatch(column):
        return pa.binary()
    if _integer(column):
        return pa.int64()
    own = [arrow for arrow, kind in _SQL_TYPES.items() if kind == column]
    return own[-1] if own else pa.string()


def holds(column: str, data_type: pa.DataType) -> bool:
    """See `TypeRules`. `timestamp(6)` refuses years before 1970 and after 2038."""
    own = sql_type(data_type)
    if own is None:
        return False
    if column == "timestamp(6)":
        return pa.types.is_timestamp(data_type) and data_type.tz is not None
    return takes(column, own)


def may_hold(column: str, data_type: pa.DataType) -> bool:
    """See `TypeRules`."""
    if holds(column, data_type):
        return True
    is_number = pa.types.is_signed_integer(data_type) or pa.types.is_decimal128(data_type)
    return is_number and (_integer(column) is not None or _DECIMAL.fullmatch(column) is not None)


def takes(column: str, staged: str) -> bool:
    """See `TypeRules`."""
    if staged == column:
        return True
    if staged in _TEXTS or _VARCHAR.fullmatch(staged):
        return column in _TEXTS or _VARCHAR.fullmatch(column) is not None
    if staged in _BLOBS or _VARBINARY.fullmatch(staged):
        return column in _BLOBS or _VARBINARY.fullmatch(column) is not None
    if staged in ("datetime(6)", "timestamp(6)"):
        return column in ("datetime(6)", "timestamp(6)")
    if staged == "float":
        return column == "double"
    given, wanted = _number(staged), _number(column)
    if given is None or wanted is None:
        return False
    return wanted[1] >= given[1] and wanted[0] - wanted[1] >= given[0] - given[1]


def widened(column: str, data_type: pa.DataType) -> str | None:
    """See `TypeRules`."""
    own = sql_type(data_type)
    if own is None or own == column or "unsigned" in column:
        return None
    if own in _INTEGERS and column in _INTEGERS:
        return own if _INTEGERS.index(own) > _INTEGERS.index(column) else None
    if (column, own) == ("float", "double"):
        return own
    if _DECIMAL.fullmatch(own) and _DECIMAL.fullmatch(column):
        given, has = _number(own), _number(column)
        return own if given and has and given[1] == has[1] and takes(own, column) else None
    return None


def can_widen(column: str, staged: str) -> bool:
    """See `TypeRules`."""
    return widened(column, arrow_of_column(staged)) == staged


def arrow_of_column(column: str) -> pa.DataType:
    """The Arrow type whose own column type this is; else any that has its values."""
    own = [arrow for arrow, kind in _SQL_TYPES.items() if kind == column]
    return own[0] if own else arrow_type(column)


def is_text(column: str) -> bool:
    return column in _TEXTS or _VARCHAR.fullmatch(column) is not None


def widest(column: str) -> str:
    """The SQL type that stores the values of this one, and those after a column of it was widened."""
    if _integer(column):
        return "bigint unsigned" if column.endswith("unsigned") else "bigint"
    if match := _DECIMAL.fullmatch(column):
        return f"decimal(65,{match[2]})"
    return "datetime(6)" if column == "timestamp(6)" else column


def key_type(column: str, count: int) -> str:
    """The type of a key column of a new table. All columns of an index have at most 3,072 bytes.

    Args:
        count: number of key columns
    """
    chars = min(KEY_CHARS, KEY_BYTES // 4 // count)
    if column in _TEXTS:
        return f"varchar({chars})"
    return f"varbinary({chars})" if column in _BLOBS else column


def text_of(value: Any) -> Any:
    """A text of the catalog. MySQL 8 lists some of them as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def is_staged_as(column: str) -> bool:
    """See `TypeRules`."""
    if column in _OTHERS or _integer(column):
        return True
    return any(form.fullmatch(column) for form in (_VARCHAR, _VARBINARY, _DECIMAL))


def text_type(column: str, data_type: pa.DataType) -> pa.DataType:
    """See `TypeRules`. The shortest text of a float gives another number when it is read as a double."""
    if pa.types.is_floating(data_type):
        return pa.float32() if column == "float" else pa.float64()
    if holds(column, data_type):
        return data_type
    if column in _DIGITS:
        return {"tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32()}.get(column, pa.int64())
    if (match := _DECIMAL.fullmatch(column)) and int(match[1]) <= 38:
        return pa.decimal128(int(match[1]), int(match[2]))
    return arrow_type(column)


def staged_type(column: str) -> str:
    """The type of a column of a staging table, which takes every value that the writer sends. The commit then
    refuses the single rows that do not fit the table.
    """
    if _integer(column) or column == BOOLEAN:
        return "bigint"
    if column in _TEXTS or _VARCHAR.fullmatch(column):
        return "longtext"
    if column in _BLOBS or _VARBINARY.fullmatch(column):
        return "longblob"
    return {"float": "double", "timestamp(6)": "datetime(6)"}.get(column, column.removesuffix(" unsigned"))


def length_max(column: str) -> int | None:
    """The number of characters of a `varchar(n)`, bytes of a `varbinary(n)`; None for any other type."""
    match = _VARCHAR.fullmatch(column) or _VARBINARY.fullmatch(column)
    return None if match is None else int(match[1])


def bytes_max(column: str) -> int | None:
    """The number of bytes of a text or blob type; None for any other type."""
    sizes = {"tiny": 255, "": 65_535, "medium": 16_777_215, "long": 4_294_967_295}
    return next((size for name, size in sizes.items() if column in (f"{name}text", f"{name}blob")), None)


def _integer(column: str) -> str | None:
    kind = column.removesuffix(" unsigned")
    return kind if kind in _INTEGERS else None


def _number(column: str) -> tuple[int, int] | None:
    """(precision, scale) of a number without binary fractions. An unsigned one refuses negative numbers."""
    if match := _DECIMAL.fullmatch(column):
        return int(match[1]), int(match[2])
    kind = _integer(column)
    return None if kind is None else (_DIGITS[kind], 0)
