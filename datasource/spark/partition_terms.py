"""Iceberg's partition transforms as Spark expressions, without UDFs: all rows of a partition get the same
value.

The values may differ from Iceberg's. It only matters that all rows of a partition have the same value, and
that rows of other partitions rarely have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the usual name
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    TimestampType,
)

from ...committers.contract import PartitionField
from ...committers.errors import ConfigurationError

ZERO_SEED = -1693959553
"""An integer whose Spark hash is 0. Spark uses the hash of one column as the seed of the next: the hash of
this value
and a column is the column's Murmur3 with seed 0, as in Iceberg's buckets. Spark's own seed is 42."""

_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US
_SPELLED = re.compile(r"(bucket|truncate)\[(\d+)\]")
_MASK = 0xFFFFFFFF


def quoted(path: Sequence[str]) -> Column:
    """Return the column at a path through structs. The names may contain any characters."""
    return F.col(".".join("`" + name.replace("`", "``") + "`" for name in path))


def partition_term(field: PartitionField, kind: DataType) -> Column:
    """Return the expression of a partition field.

    Raises:
        ConfigurationError: the transform does not apply to this type.
    """
    column = quoted(field.column)
    spelled = _SPELLED.fullmatch(field.transform)
    if spelled is not None:
        make = _bucket if spelled[1] == "bucket" else _truncated
        return make(column, kind, int(spelled[2]))
    if field.transform == "identity":
        return F.nullif(column, F.lit("")) if isinstance(kind, StringType) else column
    if field.transform == "hour" and isinstance(kind, TimestampType):
        return _floor(F.unix_micros(column), _HOUR_US)
    if field.transform == "hour":
        return F.date_trunc("hour", column)
    if isinstance(kind, DateType) or kind.typeName() in ("timestamp", "timestamp_ntz"):
        return _calendar(column, kind, field.transform)
    raise ConfigurationError(
        f"The transform {field.transform} does not apply to '{'.'.join(field.column)}', which is "
        f"{kind.simpleString()}."
    )


def _calendar(column: Column, kind: DataType, transform: str) -> Column:
    """Return year, month, day or hour in UTC, independent of the session's time zone."""
    if isinstance(kind, TimestampType):
        days = _floor(F.unix_micros(column), _DAY_US) / _DAY_US
        day = F.date_add(F.lit("1970-01-01").cast("date"), days.cast("int"))
    else:
        day = column.cast("date")
    if transform == "day":
        return day
    return F.year(day) if transform == "year" else F.year(day) * 12 + F.month(day)


def _floor(value: Column, width: int) -> Column:
    return value - F.pmod(value, F.lit(width))


def _truncated(column: Column, kind: DataType, width: int) -> Column:
    if isinstance(kind, DecimalType):
        return column - F.pmod(column, F.lit(width).cast(DecimalType(38, 0)) / 10**kind.scale)
    if isinstance(kind, IntegralType):
        return _floor(column.cast("decimal(20,0)"), width)
    return F.substring(column, 1, width)


# Buckets: the specification's Murmur3 (x86, 32 bits, seed 0) ---------------------------------------


def _bucket(column: Column, kind: DataType, buckets: int) -> Column:
    """Return the bucket; for decimals the value itself, so that one bucket may get several values."""
    if isinstance(kind, (IntegralType, DateType, TimestampType)) or kind.typeName() == "timestamp_ntz":
        hashed = _seed_0(_as_long(column, kind)).cast("long").bitwiseAND(F.lit(_MASK))
    elif kind.typeName() in ("string", "binary"):
        hashed = _hash_of_bytes(column.cast("binary"))
    else:
        return column
    return F.when(column.isNotNull(), F.pmod(hashed.bitwiseAND(F.lit(0x7FFFFFFF)), F.lit(buckets)))


def _as_long(column: Column, kind: DataType) -> Column:
    if isinstance(kind, DateType):
        return F.unix_date(column).cast("long")
    if isinstance(kind, TimestampType):
        return F.unix_micros(column)
    if kind.typeName() == "timestamp_ntz":
        day = column.cast("date")
        in_day = F.hour(column) * 3600 + F.minute(column) * 60
        seconds = F.date_part(F.lit("SECOND"), column) * 1_000_000
        return (
            F.unix_date(day).cast("long") * _DAY_US + in_day.cast("long") * 1_000_000 + seconds.cast("long")
        )
    return column.cast("long")


def _seed_0(column: Column) -> Column:
    return F.hash(F.lit(ZERO_SEED), column)


def _hash_of_bytes(data: Column) -> Column:
    """Return the Murmur3 of bytes. Spark's own hash differs for the last bytes if the length is no multiple
    of 4.

    So Spark hashes the bytes before these, then its last step is undone and repeated with the remaining
    bytes.
    """
    length = F.length(data)
    rest = F.pmod(length, F.lit(4))
    whole = data.substr(F.lit(1), length - rest)
    state = _unmixed(_seed_0(whole).cast("long").bitwiseAND(F.lit(_MASK)), length - rest)
    tail = F.lit(0).cast("long")
    for at in range(3):
        byte = F.conv(F.hex(data.substr(length - rest + at + 1, F.lit(1))), 16, 10).cast("long")
        tail = tail + F.when(rest > at, byte * 256**at).otherwise(F.lit(0).cast("long"))
    taken_in = _times(_let(_times(tail, 0xCC9E2D51), lambda k: _rotated(k, 15)), 0x1B873593)
    return _mixed(state.bitwiseXOR(taken_in), length)


def _mixed(state: Column, length: Column) -> Column:
    """Apply the last step of Murmur3."""
    h = _shifted(state.bitwiseXOR(length.cast("long")), 16)
    return _shifted(_times(_shifted(_times(h, 0x85EBCA6B), 13), 0xC2B2AE35), 16)


def _unmixed(hashed: Column, length: Column) -> Column:
    """Return the state before the last step of Murmur3: each part of it can be inverted."""
    h = _times(_shifted(hashed, 16), pow(0xC2B2AE35, -1, 2**32))
    h = _shifted(_shifted(h, 13), 26)
    h = _times(h, pow(0x85EBCA6B, -1, 2**32))
    return _shifted(h, 16).bitwiseXOR(length.cast("long"))


def _shifted(h: Column, bits: int) -> Column:
    return _let(h, lambda h: h.bitwiseXOR(F.shiftrightunsigned(h, bits)))


def _rotated(h: Column, bits: int) -> Column:
    left = F.shiftleft(h, bits).bitwiseAND(F.lit(_MASK))
    return left.bitwiseOR(F.shiftrightunsigned(h, 32 - bits))


def _times(h: Column, factor: int) -> Column:
    """Multiply 32-bit values, in steps that fit into 64 bits."""
    return _let(h, lambda h: (h * (factor & 0xFFFF) + _high(h, factor)).bitwiseAND(F.lit(_MASK)))


def _high(h: Column, factor: int) -> Column:
    return F.shiftleft((h * (factor >> 16)).bitwiseAND(F.lit(0xFFFF)), 16)


def _let(value: Column, body: Callable[[Column], Column]) -> Column:
    """Compute the value once, however often the body uses it: nested repetitions would grow exponentially."""
    return F.transform(F.array(value), body)[0]


def salt_term(rows: DataFrame, count: int) -> Column:
    """Return 0 to `count` - 1, the same for the same row: a retried task must get the same rows."""
    hashable = [F.col(f"`{f.name}`") for f in rows.schema if not _has_map(f.dataType)]
    return F.pmod(F.xxhash64(*hashable), F.lit(count)) if hashable else F.lit(0)


def _has_map(kind: DataType) -> bool:
    """Return True if the type contains a map or variant, which Spark cannot hash."""
    if isinstance(kind, MapType) or kind.typeName() == "variant":
        return True
    inner = getattr(kind, "fields", None) or ([kind.elementType] if hasattr(kind, "elementType") else [])
    return any(_has_map(getattr(part, "dataType", part)) for part in inner)
