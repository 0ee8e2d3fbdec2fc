"""Iceberg's types: values of each, the transforms that it takes, and literals in duckdb's SQL."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal
from typing import Any, Literal

import pyarrow as pa
from hypothesis import strategies as st
from pyiceberg import types as ice

WIDE = Context(prec=76)

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - read with and without a zone
ODD_CHARACTERS = "ab\x1f\x7f\u00e9\u2028\ud7ff\ue000\uffff\U00010000\U0001f600\U0010ffff\"\\'/%=& "


@dataclass(frozen=True)
class Kind:
    iceberg: ice.PrimitiveType
    arrow: pa.DataType
    values: st.SearchStrategy[Any]
    transforms: tuple[str, ...]

    def __str__(self) -> str:
        return str(self.iceberg)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    """Not within a truncation's width of the least: it would not fit."""
    unscaled = st.integers(0, precision).flatmap(lambda n: st.integers(-(10**n) // 2 + 1, 10**n - 1))
    return unscaled.map(lambda number: Decimal(number).scaleb(-scale, WIDE))


def floats(width: Literal[32, 64]) -> st.SearchStrategy[float]:
    return st.floats(width=width) | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan])


def _decimal(precision: int, scale: int) -> Kind:
    return Kind(
        ice.DecimalType(precision, scale),
        pa.decimal128(precision, scale),
        decimals(precision, scale),
        ("identity", "bucket[7]", "truncate[50]"),
    )


_MOMENTS = st.datetimes() | st.datetimes(datetime(1969, 12, 1), datetime(1970, 1, 31))  # noqa: DTZ001
_TEXTS = st.text(st.sampled_from(ODD_CHARACTERS), max_size=24) | st.text(max_size=3).filter(
    lambda text: "\0" not in text
)
_INTEGERS = ("identity", "bucket[7]", "truncate[10]")
_DAYS = ("identity", "bucket[7]", "year", "month", "day")

KINDS = [
    Kind(ice.BooleanType(), pa.bool_(), st.booleans(), ("identity",)),
    Kind(ice.IntegerType(), pa.int32(), st.integers(-(2**31) + 9, 2**31 - 1), _INTEGERS),
    Kind(ice.LongType(), pa.int64(), st.integers(-(2**63) + 9, 2**63 - 1) | st.integers(-40, 40), _INTEGERS),
    Kind(ice.FloatType(), pa.float32(), floats(32), ("identity",)),
    Kind(ice.DoubleType(), pa.float64(), floats(64), ()),
    _decimal(9, 2),
    _decimal(18, 4),
    _decimal(38, 10),
    Kind(ice.DateType(), pa.date32(), st.dates() | st.dates(date(1969, 1, 1), date(1971, 1, 1)), _DAYS),
    Kind(ice.TimeType(), pa.time64("us"), st.times(), ("identity", "bucket[7]")),
    Kind(ice.TimestampType(), pa.timestamp("us"), _MOMENTS, (*_DAYS, "hour")),
    Kind(
        ice.TimestamptzType(),
        pa.timestamp("us", "UTC"),
        _MOMENTS.map(lambda value: value.replace(tzinfo=timezone.utc)),
        (*_DAYS, "hour"),
    ),
    Kind(ice.StringType(), pa.string(), _TEXTS, ("identity", "bucket[7]", "truncate[3]")),
    Kind(ice.BinaryType(), pa.binary(), st.binary(max_size=24), ("identity", "bucket[7]", "truncate[3]")),
    Kind(ice.FixedType(3), pa.binary(3), st.binary(min_size=3, max_size=3), ("identity", "bucket[7]")),
    Kind(ice.UUIDType(), pa.uuid(), st.uuids(), ("identity", "bucket[7]")),
]


def column(kind: Kind, values: list[Any]) -> pa.Array:
    if isinstance(kind.iceberg, ice.UUIDType):  # as Spark has them
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    return pa.array(values, kind.arrow)


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def same(left: Any, right: Any) -> bool:
    """As SQL has it, but NaN equals NaN, as most engines have it."""
    return left is not None and right is not None and (left == right or (is_nan(left) and is_nan(right)))


def to_iceberg(value: Any) -> Any:
    """As pyiceberg has values inside: numbers since the epoch or midnight, bytes."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - EPOCH.date()).days
    if isinstance(value, time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 10**6 + value.microsecond
    return value.bytes if isinstance(value, uuid.UUID) else value


def literal(kind: Kind, value: Any) -> str:
    """`value` in duckdb's SQL."""
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, Decimal):
        return f"CAST('{value:f}' AS DECIMAL({kind.arrow.precision}, {kind.arrow.scale}))"
    names: dict[Any, str] = {
        ice.FloatType: "FLOAT",
        ice.DoubleType: "DOUBLE",
        ice.DateType: "DATE",
        ice.TimeType: "TIME",
        ice.TimestampType: "TIMESTAMP",
        ice.TimestamptzType: "TIMESTAMPTZ",
        ice.UUIDType: "UUID",
    }
    name = names.get(type(kind.iceberg))
    return f"'{value}'::{name}" if name else str(value)
