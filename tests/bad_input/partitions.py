"""Partition values that are odd, the transforms of each type, and which values make no partition."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from pyspark.sql import types as spark_types
from tests.bad_input.kinds import YEAR_1, YEAR_10000, values

from penstock.writers.delta.partitions import directory

ODD_PARTITIONS = [
    "",
    " ",
    ".",
    "..",
    "../..",
    "/",
    "a/b",
    "%",
    "%2F",
    "a b",
    "a ",
    " a",
    "a+b",
    "a=b",
    "a:b",
    "a\nb",
    "a\\b",
    "#",
    "?",
    "&",
    "'",
    '"',
    "[x]",
    "{x}",
    "\0",
    "\x01",
    "\x7f",
    "null",
    "NULL",
    "__HIVE_DEFAULT_PARTITION__",
    "\U0001f600",
    "\U0001f600" * 70,
    "e\u0301",
    "\u00e9",
    "x" * 240,
    "x" * 300,
    "%" * 90,
]

_MICROSECONDS_A_DAY = 24 * 60 * 60 * 10**6


def partition_values(kind: spark_types.DataType) -> st.SearchStrategy[Any]:
    odd = st.sampled_from(ODD_PARTITIONS) if isinstance(kind, spark_types.StringType) else st.nothing()
    return odd | values(kind)


def transforms(kind: spark_types.DataType) -> st.SearchStrategy[str]:
    """All that Iceberg defines for a type, as the option spells them."""
    found = ["{}"]
    is_time = isinstance(kind, spark_types.TimestampType | spark_types.TimestampNTZType)
    if isinstance(kind, spark_types.BooleanType | spark_types.FloatType | spark_types.DoubleType):
        return st.just("{}")
    if is_time or isinstance(kind, spark_types.DateType):
        found += ["year({})", "month({})", "day({})", *(["hour({})"] if is_time else [])]
    widths = st.sampled_from([1, 2, 7, 1000, 2**31 - 1]).map(str)
    strategy = st.sampled_from(found) | widths.map(lambda width: f"bucket({width}, {{}})")
    if not is_time and not isinstance(kind, spark_types.DateType):
        strategy |= widths.map(lambda width: f"truncate({width}, {{}})")
    return strategy


# What is refused ------------------------------------------------------------------------------------------


def is_delta_partition(kind: spark_types.DataType, name: str) -> bool:
    has_room = len(directory(((name, None),)).encode()) <= 255
    return has_room and not isinstance(
        kind, spark_types.FloatType | spark_types.DoubleType | spark_types.BinaryType
    )


def is_refused_by_delta(value: Any, kind: spark_types.DataType, name: str) -> bool:
    """A value that has no spelling, or one too long for the directory's name."""
    if is_far(value, kind) or value == "__HIVE_DEFAULT_PARTITION__":
        return True
    return isinstance(value, str) and len(directory(((name, value),)).encode()) > 255


def is_refused_by_iceberg(value: Any, kind: spark_types.DataType, transform: str) -> bool:
    if transform in ("{}", "day({})", "hour({})"):
        return is_far(value, kind)
    if isinstance(kind, spark_types.DecimalType) and transform.startswith("truncate") and value is not None:
        width = int(transform.removeprefix("truncate(").partition(",")[0])
        return bool(value - value % width <= -(10**kind.precision))
    return False


def is_far(value: Any, kind: spark_types.DataType) -> bool:
    """Outside of the years 1 to 9999."""
    if value is None:
        return False
    if isinstance(kind, spark_types.DateType):
        return not YEAR_1 <= value < YEAR_10000
    if isinstance(kind, spark_types.TimestampType | spark_types.TimestampNTZType):
        return not YEAR_1 <= value // _MICROSECONDS_A_DAY < YEAR_10000
    return False
