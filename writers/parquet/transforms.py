"""Transforms of columns, as Iceberg defines them ("Partition Transforms" in its specification).

They partition Iceberg tables, and sort rows of any.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import numeric_scalar

_SPELLED = re.compile(r"(?P<name>[a-z]+)(\[(?P<parameter>\d+)\])?")
_PLAIN = ("year", "month", "day", "hour")
_WITH_PARAMETER = ("bucket", "truncate")


def apply_transform(transform: str, column: pa.Array) -> pa.Array:
    """`transform` of every value; NULL stays NULL, and all of `void` is NULL.

    Raises:
        ValueError: there is no such transform, or not of this type.
    """
    if transform == "identity":
        return column
    if transform == "void":
        return pa.nulls(len(column), column.type)
    from pyiceberg_core import transform as core  # of Rust, and light: no catalog comes with it

    spelled = _SPELLED.fullmatch(transform)
    name, parameter = (spelled["name"], spelled["parameter"]) if spelled else (transform, None)
    if name in _PLAIN and parameter is None:
        if pa.types.is_timestamp(column.type):
            return _hours(column) if name == "hour" else getattr(core, name)(_days(column))
        return getattr(core, name)(column)
    if name in _WITH_PARAMETER and parameter is not None and int(parameter) > 0:
        return getattr(core, name)(column, int(parameter))
    raise ValueError(f"there is no transform '{transform}'")


def _days(moments: pa.Array) -> pa.Array:
    """By Arrow: the Iceberg library puts fractions of the last second of days before 1970 a day late."""
    return _in_utc(moments).cast(pa.date32())


def _hours(moments: pa.Array) -> pa.Array:
    hours = pc.floor_temporal(_in_utc(moments), unit="hour").cast(pa.int64())
    return pc.divide(hours, numeric_scalar(60 * 60 * 10**6)).cast(pa.int32())


def _in_utc(moments: pa.Array) -> pa.Array:
    """Microseconds without a zone: UTC's, which Arrow then need not look up."""
    return moments.cast(pa.timestamp("us", moments.type.tz)).cast(pa.int64()).cast(pa.timestamp("us"))


def transform_problem(transform: str, kind: pa.DataType) -> str | None:
    """Why there is no such transform of a type; None if there is."""
    if pa.types.is_nested(kind):
        return f"{kind} has no order and no partitions; name one of its fields"
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    try:
        apply_transform(transform, pa.nulls(0, storage))
    except ValueError as error:
        return str(error).partition("=>")[2].strip() or str(error)
    return None
