"""What the partitions of an Iceberg table say of the values in a data file, or in all those of a manifest.

Transforms: Iceberg's specification, "Partition Transforms"; summaries of manifests: "Manifest Lists".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from ...writers.parquet.bounds import text_upper_bound
from ...writers.parquet.transforms import apply_transform
from ..predicates import ONLY_NULL, UNKNOWN, Predicate, ValueRange
from ..values import Path, array_of
from .bounds import Decode, decoder, without_nan

Edges: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]
"""Returns the least and the greatest value that a column may have, by those of a field of the partitions, all
None if unknown.
"""

RANGES_KEPT = 10_000
_EPOCH = date(1970, 1, 1).toordinal()
_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US


@dataclass(frozen=True, slots=True)
class _Part:
    """A field of the partitions that is made of a column."""

    place: int
    decode: Decode
    """Of a bound in a summary."""
    edges: Edges
    bucket: Callable[[Any], int] | None
    """Returns the bucket of a value of the column."""
    may_be_nan: bool
    is_nested: bool
    """The column is NULL, too, where a struct is."""

    def of_manifest(self, manifest: ManifestFile) -> ValueRange:
        if not manifest.partitions:
            return UNKNOWN
        found = manifest.partitions[self.place]
        bounds = (found.lower_bound, found.upper_bound)
        if bounds == (None, None) and found.contains_null and found.contains_nan is False:
            return self._only_null()
        low, high = (None if bound is None else self.decode(bound) for bound in bounds)
        return self._range(low, high, found.contains_null, found.contains_nan is not False)

    def of_partition(self, value: Any) -> ValueRange:
        if value is None:
            return self._only_null()
        known = without_nan(value) if isinstance(value, float) else value
        return self._range(known, known, contains_null=False, contains_nan=known is None)

    def _only_null(self) -> ValueRange:
        return UNKNOWN if self.is_nested else ONLY_NULL

    def _range(self, low: Any, high: Any, contains_null: bool, contains_nan: bool) -> ValueRange:
        return ValueRange(
            *self.edges(low, high),
            may_be_null=contains_null or self.is_nested,
            may_be_nan=contains_nan and self.may_be_nan,
            may_be=self._may_be(low, high),
        )

    def _may_be(self, low: Any, high: Any) -> Callable[[Any], bool]:
        bucket = self.bucket
        if bucket is None or low is None or high is None:
            return lambda _value: True
        return lambda value: low <= bucket(value) <= high


class PartitionRanges:
    """Ranges of the columns of a schema.

    Args:
        specs: all partitionings of the table
    """

    def __init__(self, schema: Schema, specs: Mapping[int, PartitionSpec]) -> None:
        self._schema = schema
        self._specs = specs
        self._parts: dict[tuple[int, Path], tuple[_Part, ...]] = {}
        self._of_partition = lru_cache(RANGES_KEPT)(_Part.of_partition)

    def may_match(self, manifest: ManifestFile, where: Predicate) -> bool:
        """Return False if certainly no row of the data files in a manifest matches."""

        def known(path: Path) -> ValueRange:
            found = UNKNOWN
            for part in self._parts_of(path, manifest.partition_spec_id):
                found = found.narrowed(part.of_manifest(manifest))
            return found

        return where.may_match(known)

    def narrow(self, known: ValueRange, path: Path, file: DataFile) -> ValueRange:
        """Return what is known of a column of a file with its partition, too."""
        for part in self._parts_of(path, file.spec_id):
            known = known.narrowed(self._of_partition(part, file.partition[part.place]))
        return known

    def _parts_of(self, path: Path, spec_id: int) -> tuple[_Part, ...]:
        parts = self._parts.get((spec_id, path))
        if parts is None:
            parts = self._parts[spec_id, path] = tuple(self._new_parts(path, spec_id))
        return parts

    def _new_parts(self, path: Path, spec_id: int) -> Iterator[_Part]:
        column = self._schema.find_field(".".join(path))
        kind, is_nested = column.field_type, len(path) > 1
        spec = self._specs.get(spec_id)  # None: no longer used, and dropped from the metadata
        for place, field in enumerate(() if spec is None else spec.fields):
            if field.source_id != column.field_id:
                continue
            transform = field.transform
            bucket = _bucket_of(transform, kind) if isinstance(transform, BucketTransform) else None
            edges = _edges(transform, kind)
            if edges is not None or bucket is not None:
                is_value = isinstance(transform, IdentityTransform | TruncateTransform)
                decode = decoder(kind if is_value else IntegerType())
                is_float = isinstance(kind, FloatType)
                yield _Part(place, decode, edges or _unknown, bucket, is_float, is_nested)


# Transforms -----------------------------------------------------------------------------------------------


def _edges(transform: Transform[Any, Any], kind: IcebergType) -> Edges | None:
    """Return None if values of the transform are in another order than those of the column."""
    if isinstance(transform, IdentityTransform):
        # pyiceberg reads partitions of double with single precision.
        return None if isinstance(kind, DoubleType) else lambda low, high: (low, high)
    if isinstance(transform, TruncateTransform):
        return _truncated(transform.width, kind)
    if isinstance(kind, DateType):
        start = _DAYS.get(type(transform))
        return None if start is None else _times(start)
    if isinstance(kind, TimestampType | TimestamptzType):
        if isinstance(transform, HourTransform):
            return _times(lambda hours: hours * _HOUR_US)
        start = _DAYS.get(type(transform))
        return None if start is None else _times(lambda number: start(number) * _DAY_US)
    return None


def _unknown(_low: Any, _high: Any) -> tuple[None, None]:
    return None, None


def _bucket_of(transform: BucketTransform[Any], kind: IcebergType) -> Callable[[Any], int] | None:
    data_type = next((arrow for one, arrow in _HASHED.items() if isinstance(kind, one)), None)
    if isinstance(kind, DecimalType):
        data_type = pa.decimal128(kind.precision, kind.scale)
    if data_type is None:
        return None

    @lru_cache
    def bucket(value: Any) -> int:
        return int(apply_transform(str(transform), array_of([value], data_type))[0].as_py())

    return bucket


_HASHED: Mapping[type, pa.DataType] = {
    IntegerType: pa.int64(),
    LongType: pa.int64(),
    DateType: pa.int64(),
    TimestampType: pa.int64(),
    TimestamptzType: pa.int64(),
    StringType: pa.string(),
    BinaryType: pa.binary(),
}
"""Integers of all kinds have the same hash. Source: Iceberg's specification, "Appendix B"."""


def _truncated(width: int, kind: IcebergType) -> Edges | None:
    if isinstance(kind, StringType):
        return lambda low, high: (low, None if high is None else _last_text(high, width))
    if isinstance(kind, IntegerType | LongType):
        return lambda low, high: (
            None if _may_have_overflowed(low, high, width) else low,
            None if high is None else high + width - 1,
        )
    if isinstance(kind, DecimalType):
        more = Decimal(width - 1).scaleb(-kind.scale)
        return lambda low, high: (low, None if high is None else high + more)
    return None


def _may_have_overflowed(low: int | None, high: int | None, width: int) -> bool:
    """Return True if the least integers may be among those that are truncated to these: Java truncates them
    to the greatest. The column may be wider now than it was.
    """
    if low is None or high is None:
        return True
    return any(low < 2**bits and high >= 2**bits - width for bits in (31, 63))


def _last_text(prefix: str, width: int) -> str | None:
    """Return a text that is not less than any with this prefix. A shorter one is the whole text."""
    return prefix if len(prefix) < width else text_upper_bound(f"{prefix}\0", width)


def _times(start: Callable[[int], int]) -> Edges:
    """
    Args:
        start: returns the first value of a year, month, day or hour, counted from 1970 on
    """

    def first(number: int) -> int | None:
        try:
            return start(number)
        except (ValueError, OverflowError):
            return None

    def edges(low: int | None, high: int | None) -> tuple[int | None, int | None]:
        # Old writers rounded times before 1970 to the next unit, and not to the one before.
        least = None if low is None else first(low - 1 if low <= 0 else low)
        following = None if high is None else first(high + 1)
        return least, None if following is None else following - 1

    return edges


def _days_of_month(number: int) -> int:
    years, months = divmod(number, 12)
    return date(1970 + years, months + 1, 1).toordinal() - _EPOCH


_DAYS: Mapping[type, Callable[[int], int]] = {
    YearTransform: lambda number: _days_of_month(12 * number),
    MonthTransform: _days_of_month,
    DayTransform: lambda number: number,
}
"""The first day of a year, month or day."""
