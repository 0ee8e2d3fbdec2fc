"""Column statistics of one data file, as the Delta protocol's JSON ("Per-file Statistics").

A reader skips a file by its bounds, so a wrong bound loses rows. Every bound here holds for all values;
where that cannot be said exactly it is widened or left out:

    integers, dates     exact
    float, double       exact; left out when a NaN is in the column or the bound is infinite
    decimal             exact up to 15 digits, else left out: readers go through double
    timestamps          widened to whole milliseconds, which is what readers keep
    string              the first 32 characters, the upper bound rounded up
    boolean, binary     none; nor for lists and maps, which only count NULLs
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Context, Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

STRING_BOUND_CHARACTERS = 32

DECIMAL_BOUND_DIGITS = 15
"""So many digits survive the way through a double (IEEE 754 binary64)."""

Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column with statistics: a leaf of the schema, reached through structs only, or a list or map."""

    path: Path
    type: pa.DataType
    parquet_column: int
    """Index of its (first) column in the Parquet file."""


class FileStatistics:
    """Gathers what the Parquet footer does not tell while a file is written. One per data file."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves
        self._null_counts: dict[Path, int] = {}
        self._with_nan: set[Path] = set()

    def add(self, rows: pa.Table) -> None:
        """Look at rows that are about to be written."""
        for leaf in self._leaves:
            if pa.types.is_nested(leaf.type):
                nulls = sum(array.null_count for array in _arrays(rows, leaf.path))
                self._null_counts[leaf.path] = self._null_counts.get(leaf.path, 0) + nulls
            elif pa.types.is_floating(leaf.type) and _has_nan(_arrays(rows, leaf.path)):
                self._with_nan.add(leaf.path)

    def to_json(self, footer: pq.FileMetaData) -> str:
        """The statistics of the closed file."""
        bounds: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}}
        null_counts: dict[str, Any] = {}
        for leaf in self._leaves:
            if pa.types.is_nested(leaf.type):
                _put(null_counts, leaf.path, str(self._null_counts.get(leaf.path, 0)))
                continue
            chunks = _chunk_statistics(footer, leaf.parquet_column)
            if chunks is None:
                continue
            _put(null_counts, leaf.path, str(sum(chunk.null_count for chunk in chunks)))
            if leaf.path not in self._with_nan:
                lower, upper = _bounds(leaf.type, chunks)
                _put(bounds["minValues"], leaf.path, lower)
                _put(bounds["maxValues"], leaf.path, upper)
        return _encode({"numRecords": str(footer.num_rows), **bounds, "nullCount": null_counts})


def leaves_with_statistics(
    schema: pa.Schema, columns: Sequence[str] | None, columns_max: int
) -> tuple[Leaf, ...]:
    """The leaves to count and bound: those under `columns`, or the first `columns_max` (-1: all).

    Counted as Delta's `dataSkippingNumIndexedCols` does: a struct's fields one by one, a list or map once.
    """
    leaves = tuple(_leaves(schema))
    if columns is None:
        return leaves if columns_max < 0 else leaves[:columns_max]
    wanted = {column.lower() for column in columns}
    return tuple(leaf for leaf in leaves if wanted & set(_prefixes(leaf.path)))


def _prefixes(path: Path) -> Iterator[str]:
    for length in range(1, len(path) + 1):
        yield ".".join(path[:length]).lower()


def _leaves(schema: pa.Schema) -> Iterator[Leaf]:
    parquet_column = 0
    for path, kind in _walk(list(schema), ()):
        yield Leaf(path, kind, parquet_column)
        parquet_column += parquet_width(kind)


def _walk(fields: Sequence[pa.Field], prefix: Path) -> Iterator[tuple[Path, pa.DataType]]:
    for field in fields:
        path = (*prefix, field.name)
        if pa.types.is_struct(field.type):
            yield from _walk(list(field.type), path)
        else:
            yield path, field.type


def parquet_width(kind: pa.DataType) -> int:
    """How many Parquet columns a type takes."""
    if pa.types.is_struct(kind):
        return sum(parquet_width(field.type) for field in kind)
    if pa.types.is_map(kind):
        return parquet_width(kind.key_type) + parquet_width(kind.item_type)
    if pa.types.is_list(kind):
        return parquet_width(kind.value_type)
    return 1


def _arrays(rows: pa.Table, path: Path) -> Iterator[pa.Array]:
    """The leaf's values, chunk by chunk; NULL where the struct around them is."""
    for chunk in rows.column(path[0]).chunks:
        array = chunk
        for name in path[1:]:
            array = array.flatten()[array.type.get_field_index(name)]
        yield array


def _has_nan(arrays: Iterator[pa.Array]) -> bool:
    return any(pc.any(pc.is_nan(array)).as_py() for array in arrays)


def _chunk_statistics(footer: pq.FileMetaData, column: int) -> list[pq.Statistics] | None:
    chunks = [footer.row_group(i).column(column).statistics for i in range(footer.num_row_groups)]
    return None if any(chunk is None or not chunk.has_null_count for chunk in chunks) else chunks


# Bounds, as JSON text -----------------------------------------------------------------------------


def _bounds(kind: pa.DataType, chunks: Sequence[pq.Statistics]) -> tuple[str | None, str | None]:
    """(lower, upper); None where there is no bound that surely holds."""
    chunks = [chunk for chunk in chunks if chunk.num_values]
    if not chunks or not all(chunk.has_min_max for chunk in chunks):
        return None, None
    if pa.types.is_integer(kind):
        lower, upper = _extremes(chunks)
        return str(lower), str(upper)
    if pa.types.is_floating(kind):
        lower, upper = _extremes(chunks)
        return _float_bound(lower), _float_bound(upper)
    if pa.types.is_date(kind):
        lower, upper = _extremes(chunks)
        return _date_bound(lower), _date_bound(upper)
    if pa.types.is_timestamp(kind):
        lower, upper = _extremes(chunks)
        zone = "" if kind.tz is None else "Z"
        return _timestamp_bound(lower // 1000, zone), _timestamp_bound(-(-upper // 1000), zone)
    if pa.types.is_decimal(kind):
        lower, upper = _extremes(chunks, lambda raw: int.from_bytes(raw, "big", signed=True))
        return _decimal_bound(lower, kind.scale), _decimal_bound(upper, kind.scale)
    if pa.types.is_string(kind):
        lower, upper = _extremes(chunks)
        return _string_lower_bound(lower.decode()), _string_upper_bound(upper.decode())
    return None, None


def _extremes(chunks: Sequence[pq.Statistics], decode: Any = lambda raw: raw) -> tuple[Any, Any]:
    """UTF-8 bytes sort as their code points do."""
    return min(decode(chunk.min_raw) for chunk in chunks), max(decode(chunk.max_raw) for chunk in chunks)


def _float_bound(value: float) -> str | None:
    return repr(value) if value - value == 0 else None


def _decimal_bound(unscaled: int, scale: int) -> str | None:
    if len(str(abs(unscaled))) > DECIMAL_BOUND_DIGITS:
        return None
    return format(Decimal(unscaled).scaleb(-scale, Context(prec=DECIMAL_BOUND_DIGITS)), "f")


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _date_bound(days: int) -> str | None:
    try:
        return f'"{(_EPOCH.date() + timedelta(days=days)).isoformat()}"'
    except OverflowError:
        return None


def _timestamp_bound(milliseconds: int, zone: str) -> str | None:
    try:
        instant = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    return f'"{instant.replace(tzinfo=None).isoformat(timespec="milliseconds")}{zone}"'


def _string_lower_bound(text: str) -> str:
    """A prefix never sorts after the whole."""
    return json.dumps(text[:STRING_BOUND_CHARACTERS])


def _string_upper_bound(text: str) -> str | None:
    """The prefix with its last character that has a successor replaced by that successor."""
    if len(text) <= STRING_BOUND_CHARACTERS:
        return json.dumps(text)
    prefix = text[:STRING_BOUND_CHARACTERS].rstrip(chr(0x10FFFF))
    if not prefix:
        return None
    successor = ord(prefix[-1]) + 1
    if 0xD800 <= successor <= 0xDFFF:
        successor = 0xE000
    return json.dumps(prefix[:-1] + chr(successor))


def _put(node: dict[str, Any], path: Path, text: str | None) -> None:
    if text is None:
        return
    for name in path[:-1]:
        node = node.setdefault(name, {})
    node[path[-1]] = text


def _encode(node: Mapping[str, Any]) -> str:
    """JSON of nested objects whose leaves are JSON already: numbers keep their very digits."""
    members = (
        f"{json.dumps(name)}:{_encode(value) if isinstance(value, dict) else value}"
        for name, value in node.items()
    )
    return "{" + ",".join(members) + "}"
