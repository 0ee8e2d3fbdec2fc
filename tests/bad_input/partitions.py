"""Partition values and transforms of each type, and the columns and values that cannot be partitions."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from pyspark.sql import types as spark_types
from tests.bad_input.kinds import is_far

from penstock.writers.delta.partitions import directory


def transforms(kind: spark_types.DataType) -> st.SearchStrategy[str]:
    """The transforms that Iceberg defines for a type, in the syntax of the option."""
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


def is_delta_partition(kind: spark_types.DataType, name: str) -> bool:
    no_partitions = spark_types.FloatType | spark_types.DoubleType | spark_types.BinaryType
    return _has_room(name, None) and not isinstance(kind, no_partitions)


def is_refused_by_delta(value: Any, kind: spark_types.DataType, name: str) -> bool:
    """Return True for a value that has no text, or whose directory would have too long a name."""
    if is_far(value, kind) or value == "__HIVE_DEFAULT_PARTITION__":
        return True
    return isinstance(value, str) and not _has_room(name, value)


def is_refused_by_iceberg(value: Any, kind: spark_types.DataType, transform: str) -> bool:
    if transform in ("{}", "day({})", "hour({})"):
        return is_far(value, kind)
    if isinstance(kind, spark_types.DecimalType) and transform.startswith("truncate") and value is not None:
        width = int(transform.removeprefix("truncate(").partition(",")[0])
        return bool(value - value % width <= -(10**kind.precision))
    return False


def _has_room(name: str, value: str | None) -> bool:
    return len(directory(((name, value),)).encode()) <= 255
