"""Partitions of Iceberg tables: splitting of rows by transforms, string form of values, directories.

Iceberg does not interpret paths: manifests have the partition values, and files have all columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from decimal import Context

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import numeric_scalar, string_array
from ...committers.contract import PartitionField
from ...committers.errors import SchemaMismatchError
from ..parquet.columns import field_at, reach
from ..parquet.splitting import in_one, split_by
from ..parquet.table_format import PartitionSlice, PartitionValues
from ..parquet.transforms import apply_transform, transform_problem

DIRECTORY_NAME_BYTES_MAX = 100
"""File systems allow 255 bytes, object stores 1024 for the whole path."""

_EPOCH = date(1970, 1, 1)
_FIRST_DAY = (date.min - _EPOCH).days
_LAST_DAY = (date.max - _EPOCH).days

_EXACT = Context(prec=76)

_HASH_BITS = 20
_HASH_DIRECTORIES = (4, 4, 4, 8)

_ESCAPED_BY_URLS = re.compile(r"[^0-9A-Za-z_.~-]")


def partition_problems(schema: pa.Schema, partitioning: Sequence[PartitionField]) -> Iterator[str]:
    """Why rows of this schema cannot be partitioned this way."""
    for partition in partitioning:
        name = ".".join(partition.column)
        field = field_at(schema, partition.column)
        if partition.transform == "void":
            continue
        if field is None:
            yield f"Column '{name}' of the partition field '{partition.name}' is not in the table."
        elif problem := transform_problem(partition.transform, field.type):
            yield (
                f"The partition field '{partition.name}' is {partition.transform} of '{name}' ({field.type}):"
                f" {problem}."
            )


def split(rows: pa.Table, partitioning: Sequence[PartitionField], where: str) -> Iterator[PartitionSlice]:
    """Split the rows by table partition, with all columns, keeping the order within each.

    Raises:
        SchemaMismatchError: a partition value is outside the years 1 to 9999, or outside of its column's
            type.
    """
    effective = [partition for partition in partitioning if partition.transform != "void"]
    sources = in_one(rows.select(list(dict.fromkeys(partition.column[0] for partition in effective))))
    for partition in effective:
        _check_truncated(sources, partition, where)
        _check_years(sources, partition, where)
    keys = {partition.name: _key(sources, partition) for partition in effective}
    if not keys:
        yield PartitionSlice(tuple((partition.name, None) for partition in partitioning), in_one(rows))
        return
    for row, own in split_by([_comparable(key) for key in keys.values()], rows):
        values = {name: format_value(key.slice(row, 1)) for name, key in keys.items()}
        yield PartitionSlice(
            tuple((partition.name, values.get(partition.name)) for partition in partitioning), own
        )


def _key(rows: pa.RecordBatch, partition: PartitionField) -> pa.Array:
    return apply_transform(partition.transform, _source(rows, partition))


def _source(rows: pa.RecordBatch, partition: PartitionField) -> pa.Array:
    top, *below = partition.column
    return reach(rows.column(top), below)


def _check_truncated(rows: pa.RecordBatch, partition: PartitionField, where: str) -> None:
    """Truncation rounds down, and the result may be outside of the type.

    The Iceberg library cannot commit such decimals. Integers wrap around, as in Java.
    """
    if not partition.transform.startswith("truncate"):
        return
    column = _source(rows, partition)
    smallest = pc.min_max(column)["min"].as_py() if pa.types.is_decimal(column.type) else None
    if smallest is None:
        return
    unscaled = int(smallest.scaleb(column.type.scale, _EXACT))
    width = int(partition.transform.partition("[")[2].rstrip("]"))
    if unscaled - unscaled % width <= -(10**column.type.precision):
        raise SchemaMismatchError(
            f"The value {smallest} of '{'.'.join(partition.column)}', by which the table is partitioned "
            f"({partition.transform}), does not fit {column.type} when it is truncated ({where}). Filter "
            "these rows, or partition by another column."
        )


def _check_years(rows: pa.RecordBatch, partition: PartitionField, where: str) -> None:
    """The Iceberg library cannot commit a file whose partition value cannot be represented as a date."""
    if partition.transform not in ("identity", "day", "hour"):
        return
    column = _source(rows, partition)
    if pa.types.is_date(column.type):
        units_per_day, column = 1, column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        units_per_day, column = 24 * 60 * 60 * 10**6, column.cast(pa.int64())
    else:
        return
    bounds = pc.min_max(column)
    first, end = (day * units_per_day for day in (_FIRST_DAY, _LAST_DAY + 1))
    if bounds["min"].is_valid and not (first <= bounds["min"].as_py() and bounds["max"].as_py() < end):
        raise SchemaMismatchError(
            f"A value of '{'.'.join(partition.column)}', by which the table is partitioned "
            f"({partition.transform}), is outside the years 1 to 9999 ({where}). Filter these rows, or "
            "partition by another column."
        )


def _comparable(key: pa.Array) -> pa.Array:
    """Floating-point numbers as their bits: -0.0 and 0.0 are different partitions, all NaNs are the same."""
    if not pa.types.is_floating(key.type):
        return key
    one_nan = pc.if_else(pc.is_nan(key), numeric_scalar(float("nan"), key.type), key)
    return one_nan.view(pa.int64() if key.type == pa.float64() else pa.int32())


def format_value(value: pa.Array) -> str | None:
    """Format the only value of the array; None for NULL.

    Dates are days and times are microseconds, since the epoch or midnight.
    """
    data_type = value.type
    if pa.types.is_date(data_type):
        value = value.cast(pa.int32())
    elif pa.types.is_timestamp(data_type) or pa.types.is_time(data_type):
        value = value.cast(pa.int64())
    scalar = value[0].as_py()
    if scalar is None:
        return None
    if pa.types.is_boolean(data_type):
        return "true" if scalar else "false"
    if pa.types.is_decimal(data_type):
        return format(scalar, "f")
    return scalar.hex() if isinstance(scalar, bytes) else str(scalar)


def directory(values: PartitionValues, partitioning: Sequence[PartitionField]) -> str:
    """`ts_day=2024-01-15/origin=JFK`, for display; '' without partition fields.

    Characters that URLs escape are replaced, because readers interpret a `%` in a path differently. Long
    names are truncated.
    """
    named = zip(partitioning, values, strict=True)
    return "/".join(
        f"{_plain(name)}={_plain(_in_words(partition.transform, value))}"[:DIRECTORY_NAME_BYTES_MAX]
        for partition, (name, value) in named
    )


def _in_words(transform: str, value: str | None) -> str:
    """Years, months, days and hours since 1970 as dates, where possible."""
    if value is None:
        return "null"
    try:
        if transform == "year":
            return f"{1970 + int(value):04}"
        if transform == "month":
            return f"{1970 + int(value) // 12:04}-{int(value) % 12 + 1:02}"
        if transform == "day":
            return (_EPOCH + timedelta(days=int(value))).isoformat()
        if transform == "hour":
            day, hour = divmod(int(value), 24)
            return f"{(_EPOCH + timedelta(days=day)).isoformat()}-{hour:02}"
    except OverflowError:
        pass
    return value


def _plain(text: str) -> str:
    return _ESCAPED_BY_URLS.sub("_", text[:DIRECTORY_NAME_BYTES_MAX])


def hash_directories(path: str) -> str:
    """`0101/1100/0010/01101001`: directories that distribute files over an object store, as in Iceberg.

    The last bits of the path's 32-bit Murmur3 hash: its bucket of 2 ** 20.
    """
    bucket = apply_transform(f"bucket[{2**_HASH_BITS}]", string_array([path]))[0].as_py()
    bits = f"{bucket:0{_HASH_BITS}b}"
    ends = [sum(_HASH_DIRECTORIES[: i + 1]) for i in range(len(_HASH_DIRECTORIES))]
    return "/".join(bits[end - length : end] for end, length in zip(ends, _HASH_DIRECTORIES, strict=True))
