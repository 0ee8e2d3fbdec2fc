"""Arrow types and the ClickHouse types that store them without loss. See `TypeRules`.

A ClickHouse type is a text as `system.columns` lists it, such as `Nullable(Decimal(9, 2))`. Arrays and maps
have no NULL of their own, so a column of one is always NOT NULL. There is no type for points in time without
a zone, and structs are left out: `Tuple` has no NULL.
"""

from __future__ import annotations

import re

import pyarrow as pa

_PLAIN = {
    pa.bool_(): "Bool",
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.string(): "String",
    pa.binary(): "String",
    pa.date32(): "Date32",
    pa.timestamp("us", "UTC"): "DateTime64(6, 'UTC')",
}
_ARROW_TYPES = {
    **{kind: data_type for data_type, kind in _PLAIN.items() if data_type != pa.binary()},
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
    "Date": pa.date32(),
}
_BITS = {"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64}
_DECIMAL = re.compile(r"Decimal\((\d{1,2}), (\d{1,2})\)")
_TIME = re.compile(r"DateTime(?:64\(([0369])(?:, '[A-Za-z0-9_+/-]+')?\)|\('[A-Za-z0-9_+/-]+'\))?")


def sql_type(data_type: pa.DataType) -> str | None:
    """The type of a new column; None if ClickHouse has no type that stores it without loss."""
    kind = _type_of(data_type)
    return f"Nullable({kind})" if kind and not is_nested(kind) else kind


def _type_of(data_type: pa.DataType) -> str | None:
    """The type without NULL. Elements and items may be NULL, unless they are nested themselves."""
    if pa.types.is_decimal128(data_type):
        return f"Decimal({data_type.precision}, {data_type.scale})" if data_type.scale >= 0 else None
    if pa.types.is_list(data_type):
        element = sql_type(data_type.value_type)
        return f"Array({element})" if element else None
    if pa.types.is_map(data_type):
        key, item = _type_of(data_type.key_type), sql_type(data_type.item_type)
        return f"Map({key}, {item})" if key in _KEYS and item else None
    return _PLAIN.get(data_type)


_KEYS = {"String", "Int8", "Int16", "Int32", "Int64", "Date32", "Bool"}


def is_nested(column: str) -> bool:
    return column.startswith(("Array(", "Map("))


def is_version(column: str) -> bool:
    """True if a ReplacingMergeTree can compare rows by a column of the type."""
    return column in _BITS or column in ("Date", "Date32") or fraction_digits(column) is not None


def is_nullable(column: str) -> bool:
    return column.startswith(("Nullable(", "LowCardinality(Nullable("))


def without_null(column: str) -> str:
    """The type inside of `Nullable` and `LowCardinality`."""
    for wrapper in ("LowCardinality(", "Nullable("):
        if column.startswith(wrapper):
            column = column[len(wrapper) : -1]
    return column


def arrow_type(column: str) -> pa.DataType:
    """The Arrow type that has every value of a staged column, or its text."""
    found = _arrow_type(column)
    return pa.string() if found is None else found


def _arrow_type(column: str) -> pa.DataType | None:
    plain = without_null(column)
    if (size := _decimal(plain)) is not None:
        return pa.decimal128(*size)
    if fraction_digits(plain) is not None:
        return pa.timestamp("us", "UTC")
    if plain.startswith("Array("):
        element = _arrow_type(plain[6:-1])
        return None if element is None else pa.list_(element)
    if plain.startswith("Map("):
        key, _, item = plain[4:-1].partition(", ")
        kinds = _arrow_type(key), _arrow_type(item)
        return None if None in kinds else pa.map_(*kinds)
    return _ARROW_TYPES.get(plain)


def holds(column: str, data_type: pa.DataType) -> bool:
    """True if a column of the type stores every value of the Arrow type unchanged, or the writer refuses it:
    NULL in a column that is not Nullable, dates beyond its own, and fractions of a second that it has not.
    """
    own = sql_type(data_type)
    return own is not None and takes(column, own)


def may_hold(column: str, data_type: pa.DataType) -> bool:
    """True if `holds`, or if some values fit and the writer can tell which."""
    if holds(column, data_type):
        return True
    plain = without_null(column)
    if pa.types.is_decimal128(data_type):
        return _decimal(plain) is not None
    return bool(pa.types.is_signed_integer(data_type)) and plain in _BITS


def widened(column: str, data_type: pa.DataType) -> str | None:
    """None: columns are not widened."""
    return None


def can_widen(column: str, staged: str) -> bool:
    return False


def takes(column: str, staged: str) -> bool:
    """True if every value of the second type is stored unchanged in a column of the first one, or the writer
    refuses it.
    """
    wanted, given = without_null(column), without_null(staged)
    if wanted == given or (given, wanted) in (("Float32", "Float64"), ("Date32", "Date")):
        return True
    if given in _BITS and wanted in _BITS:
        return _BITS[wanted] >= _BITS[given]
    sizes = _decimal(wanted), _decimal(given)
    if sizes[0] and sizes[1]:
        (precision, scale), (digits, fraction) = sizes[0], sizes[1]
        return scale >= fraction and precision - scale >= digits - fraction
    return fraction_digits(wanted) is not None and fraction_digits(given) is not None


def is_staged_as(column: str) -> bool:
    """True if `may_hold` can have accepted the type. It is inserted in statements."""
    return _arrow_type(column) is not None


def text_type(column: str, data_type: pa.DataType) -> pa.DataType:
    """The Arrow type in which the writer sends values of a column."""
    if pa.types.is_binary(data_type) or is_nested(column):
        return data_type
    return arrow_type(column)


def fraction_digits(column: str) -> int | None:
    """The digits after the seconds of a type of points in time; None: it is another type."""
    match = _TIME.fullmatch(column)
    return None if match is None else int(match[1] or 0)


def _decimal(column: str) -> tuple[int, int] | None:
    """(precision, scale) of a type that Arrow's 128 bits hold."""
    match = _DECIMAL.fullmatch(column)
    return None if match is None or int(match[1]) > 38 else (int(match[1]), int(match[2]))
