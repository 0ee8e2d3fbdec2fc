"""Transforms of columns as defined by Iceberg ("Partition Transforms" in its specification).

Used for partitions of Iceberg tables, and for the sort order of all tables.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import numeric_scalar

_TRANSFORM = re.compile(r"(?P<name>[a-z]+)(\[(?P<parameter>\d+)\])?")
_PLAIN = ("year", "month", "day", "hour")
_WITH_PARAMETER = ("bucket", "truncate")


def apply_transform(transform: str, column: pa.Array) -> pa.Array:
    """Apply `transform` to every value; NULL stays NULL, and `void` gives only NULLs.

    Raises:
        ValueError: the transform does not exist, or is not defined for this type.
    """
    if transform == "identity":
        return column
    if transform == "void":
        return pa.nulls(len(column), column.type)
    from pyiceberg_core import transform as core  # implemented in Rust, and cheap to load: without a catalog

    parsed = _TRANSFORM.fullmatch(transform)
    name, parameter = (parsed["name"], parsed["parameter"]) if parsed else (transform, None)
    if name in _PLAIN and parameter is None:
        if pa.types.is_timestamp(column.type):
            return _hours(column) if name == "hour" else getattr(core, name)(_days(column))
        return getattr(core, name)(column)
    if name in _WITH_PARAMETER and parameter is not None and int(parameter) > 0:
        return getattr(core, name)(column, int(parameter))
    raise ValueError(f"there is no transform '{transform}'")


def _days(timestamps: pa.Array) -> pa.Array:
    """Computed by Arrow: for the last second of days before 1970, the Iceberg library returns the next
    day.
    """
    return _in_utc(timestamps).cast(pa.date32())


def _hours(timestamps: pa.Array) -> pa.Array:
    hours = pc.floor_temporal(_in_utc(timestamps), unit="hour").cast(pa.int64())
    return pc.divide(hours, numeric_scalar(60 * 60 * 10**6)).cast(pa.int32())


def _in_utc(timestamps: pa.Array) -> pa.Array:
    """Microseconds in UTC without a zone, so that Arrow does not look up the zone."""
    return timestamps.cast(pa.timestamp("us", timestamps.type.tz)).cast(pa.int64()).cast(pa.timestamp("us"))


def transform_problem(transform: str, data_type: pa.DataType) -> str | None:
    """Why the transform is not defined for a type; None if it is."""
    if pa.types.is_nested(data_type):
        return f"{data_type} cannot be sorted or partitioned; use one of its fields"
    storage = data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type
    try:
        apply_transform(transform, pa.nulls(0, storage))
    except ValueError as error:
        return str(error).partition("=>")[2].strip() or str(error)
    return None
