"""Column statistics of one data file, as JSON of the Delta protocol ("Per-file Statistics").

Readers skip a file by its bounds, so a wrong bound loses rows. Every bound here is valid for all values. If
it cannot be represented exactly, it is widened or left out:

    boolean, integers, dates    exact
    float, double               exact; none if a value is NaN or a bound is infinite (JSON has neither)
    decimal                     exact up to 15 digits, else widened in the 15th: readers go through double
    timestamps                  widened to whole milliseconds, the precision of readers
    string                      the first 32 characters, the upper bound rounded up
    binary                      none; nor for lists, maps and variants, which only count NULLs

If a column has values but no bounds, and other columns have bounds, the Delta library's `to_pyarrow_dataset`
reads it as a column without values. Such a file gets no bounds at all. Without this column in the table
property `delta.dataSkippingStatsColumns`, the other columns get bounds again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...committers.arrow_values import is_variant
from ..parquet.bounds import Extremes, FloatExtremes, text_upper_bound
from ..parquet.columns import Path, parquet_width, reach

STRING_BOUND_CHARACTERS = 32

DECIMAL_BOUND_DIGITS = 15
"""Number of decimal digits that survive a conversion to double (IEEE 754 binary64)."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column with statistics: a leaf of the schema that is reached only through structs, or a list or
    map.
    """

    path: Path
    type: pa.DataType
    parquet_column: int
    """Index of its first column in the Parquet file."""


class DeltaFileStatistics:
    """Collects statistics that the Parquet footer does not have, while a file is written. One instance per
    data file.
    """

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves
        self._null_counts: dict[Path, int] = {}
        self._floats = {leaf.path: FloatExtremes() for leaf in leaves if pa.types.is_floating(leaf.type)}
        self._strings = {leaf.path: Extremes() for leaf in leaves if pa.types.is_string(leaf.type)}

    def add(self, rows: pa.Table) -> None:
        """Called with rows that are about to be written."""
        for leaf in self._leaves:
            if pa.types.is_nested(leaf.type):
                nulls = sum(array.null_count for array in _arrays(rows, leaf.path))
                self._null_counts[leaf.path] = self._null_counts.get(leaf.path, 0) + nulls
            elif pa.types.is_floating(leaf.type):
                self._floats[leaf.path].add(_arrays(rows, leaf.path))
            elif pa.types.is_string(leaf.type):
                self._strings[leaf.path].add(_arrays(rows, leaf.path))

    def to_json(self, footer: pq.FileMetaData) -> str:
        """The statistics of the closed file."""
        lowers: dict[str, Any] = {}
        uppers: dict[str, Any] = {}
        null_counts: dict[str, Any] = {}
        complete = True
        row_groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        for leaf in self._leaves:
            chunks = [row_group.column(leaf.parquet_column).statistics for row_group in row_groups]
            _put(null_counts, leaf.path, str(self._nulls(leaf, chunks)))
            if not _has_bounds(leaf.type):
                continue
            lower, upper = self._bounds(leaf, chunks)
            _put(lowers, leaf.path, lower)
            _put(uppers, leaf.path, upper)
            has_bounds = lower is not None and upper is not None
            complete &= has_bounds or len(leaf.path) > 1 or not self._has_values(leaf, chunks)
        bounds = {"minValues": lowers, "maxValues": uppers} if complete else {}
        return _encode({"numRecords": str(footer.num_rows), **bounds, "nullCount": null_counts})

    def _nulls(self, leaf: Leaf, chunks: Sequence[pq.Statistics]) -> int:
        if pa.types.is_nested(leaf.type):
            return self._null_counts.get(leaf.path, 0)
        if pa.types.is_floating(leaf.type):
            return self._floats[leaf.path].nulls
        return sum(chunk.null_count for chunk in chunks)

    def _has_values(self, leaf: Leaf, chunks: Sequence[pq.Statistics]) -> bool:
        if pa.types.is_floating(leaf.type):
            return self._floats[leaf.path].has_values
        return any(chunk.num_values for chunk in chunks)

    def _bounds(self, leaf: Leaf, chunks: Sequence[pq.Statistics]) -> tuple[str | None, str | None]:
        if pa.types.is_string(leaf.type):
            lower, upper = self._strings[leaf.path].bounds(chunks)
            return _string_lower_bound(lower), _string_upper_bound(upper)
        if pa.types.is_floating(leaf.type):
            return _float_bounds(self._floats[leaf.path])
        return _footer_bounds(leaf.type, chunks)


def leaves_with_statistics(
    schema: pa.Schema, partition_by: Sequence[str], columns: Sequence[str] | None, columns_max: int
) -> tuple[Leaf, ...]:
    """The leaf columns with statistics: those under `columns`, or the first `columns_max` (-1: all).

    Counted like Delta's `dataSkippingNumIndexedCols`: each field of a struct counts, a list or map counts
    once, partition columns do not count. Columns for which the Delta library's reader expects bounds are
    added.
    """
    leaves = tuple(_leaves(pa.schema([column for column in schema if column.name not in partition_by])))
    if columns is not None:
        wanted = {column.lower() for column in columns}
        return tuple(leaf for leaf in leaves if wanted & set(_prefixes(leaf.path)))
    if columns_max < 0:
        return leaves
    top_level = {(name,) for name in schema.names[:columns_max]}
    return tuple(leaf for i, leaf in enumerate(leaves) if i < columns_max or leaf.path in top_level)


def _prefixes(path: Path) -> Iterator[str]:
    for length in range(1, len(path) + 1):
        yield ".".join(path[:length]).lower()


def _leaves(schema: pa.Schema) -> Iterator[Leaf]:
    parquet_column = 0
    for path, data_type in _walk(list(schema), ()):
        yield Leaf(path, data_type, parquet_column)
        parquet_column += parquet_width(data_type)


def _walk(fields: Sequence[pa.Field], prefix: Path) -> Iterator[tuple[Path, pa.DataType]]:
    for field in fields:
        path = (*prefix, field.name)
        if pa.types.is_struct(field.type) and not is_variant(field.type):
            yield from _walk(list(field.type), path)
        else:
            yield path, field.type


def _arrays(rows: pa.Table, path: Path) -> Iterator[pa.Array]:
    """The column's values, chunk by chunk; NULL if an enclosing struct is NULL."""
    for chunk in rows.column(path[0]).chunks:
        yield reach(chunk, path[1:])


# Bounds as JSON text --------------------------------------------------------------------------------


def _has_bounds(data_type: pa.DataType) -> bool:
    return not (pa.types.is_nested(data_type) or pa.types.is_binary(data_type))


def _footer_bounds(data_type: pa.DataType, chunks: Sequence[pq.Statistics]) -> tuple[str | None, str | None]:
    """(lower, upper) from the footer; None if no valid bound is known."""
    chunks = [chunk for chunk in chunks if chunk.num_values]
    if not chunks or not all(chunk.has_min_max for chunk in chunks):
        return None, None
    if pa.types.is_decimal(data_type):
        lower, upper = _extremes(chunks, _unscaled)
        return _decimal_bound(_widened(lower, -1), data_type), _decimal_bound(_widened(upper, 1), data_type)
    lower, upper = _extremes(chunks)
    if pa.types.is_boolean(data_type):
        return json.dumps(lower), json.dumps(upper)
    if pa.types.is_date(data_type):
        return _date_bound(lower), _date_bound(upper)
    if pa.types.is_timestamp(data_type):
        zone = "" if data_type.tz is None else "Z"
        return _timestamp_bound(lower // 1000 * 1000, zone), _timestamp_upper_bound(upper, zone)
    return str(lower), str(upper)


def _extremes(chunks: Sequence[pq.Statistics], decode: Any = lambda raw: raw) -> tuple[Any, Any]:
    return min(decode(chunk.min_raw) for chunk in chunks), max(decode(chunk.max_raw) for chunk in chunks)


def _unscaled(raw: int | bytes) -> int:
    """Decimals are stored as integers, or as the bytes of an integer."""
    return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw


def _float_bounds(extremes: FloatExtremes) -> tuple[str | None, str | None]:
    lower, upper = extremes.bounds
    return (None, None) if extremes.nans else (_float_bound(lower), _float_bound(upper))


def _float_bound(value: float | None) -> str | None:
    return None if value is None or math.isinf(value) else repr(value)


def _widened(unscaled: int, direction: int) -> int:
    """The next number with 15 significant digits: a double is off by less than one in the 15th digit."""
    spare = len(str(abs(unscaled))) - DECIMAL_BOUND_DIGITS
    if spare <= 0:
        return unscaled
    unit: int = 10**spare
    rounded = unscaled // unit if direction < 0 else -(-unscaled // unit)
    return (rounded + direction) * unit


def _decimal_bound(unscaled: int, data_type: pa.Decimal128Type) -> str | None:
    if abs(unscaled) >= 10**data_type.precision:
        return None
    return format(Decimal(unscaled).scaleb(-data_type.scale, Context(prec=data_type.precision)), "f")


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _date_bound(days: int) -> str | None:
    try:
        return f'"{(_EPOCH.date() + timedelta(days=days)).isoformat()}"'
    except OverflowError:
        return None


def _timestamp_bound(microseconds: int, zone: str) -> str | None:
    try:
        instant = (_EPOCH + timedelta(microseconds=microseconds)).replace(tzinfo=None)
    except OverflowError:
        return None
    precision = "microseconds" if microseconds % 1000 else "milliseconds"
    return f'"{instant.isoformat(timespec=precision)}{zone}"'


def _timestamp_upper_bound(microseconds: int, zone: str) -> str | None:
    """Rounded up; exact in the last millisecond of the year 9999, which has no next one."""
    return _timestamp_bound(-(-microseconds // 1000) * 1000, zone) or _timestamp_bound(microseconds, zone)


def _string_lower_bound(text: str | None) -> str | None:
    return None if text is None else _quoted(text[:STRING_BOUND_CHARACTERS])


def _string_upper_bound(text: str | None) -> str | None:
    bound = None if text is None else text_upper_bound(text, STRING_BOUND_CHARACTERS)
    return None if bound is None else _quoted(bound)


_AS_THEY_ARE = json.JSONEncoder(ensure_ascii=False)


def _quoted(text: str) -> str:
    """Do not escape characters: the Delta library's reader decodes escaped surrogate pairs incorrectly."""
    return _AS_THEY_ARE.encode(text)


def _put(node: dict[str, Any], path: Path, text: str | None) -> None:
    """Set a leaf; without a text, create only the enclosing objects, which readers expect."""
    for name in path[:-1]:
        node = node.setdefault(name, {})
    if text is not None:
        node[path[-1]] = text


def _encode(node: Mapping[str, Any]) -> str:
    """Encode nested objects whose leaves are already JSON, so that numbers keep their exact digits."""
    members = (
        f"{_quoted(name)}:{_encode(value) if isinstance(value, dict) else value}"
        for name, value in node.items()
    )
    return "{" + ",".join(members) + "}"
