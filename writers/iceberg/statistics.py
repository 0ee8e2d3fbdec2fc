"""Column metrics of one data file for an Iceberg manifest, as JSON.

Readers skip a file by its bounds, so a wrong bound loses rows:

    numbers, dates, times       exact; decimals as their unscaled value
    float, double               exact, ignoring NaN; no upper bound if there is a NaN, because engines that
                                order NaN above all numbers would miss it. A lower bound of zero is -0.0, an
                                upper bound of zero is 0.0
                                No NaN count if all values are NaN: Iceberg's evaluator skips the file for <,
                                <=, > and >= then, and Spark, which orders NaN last, expects its rows
    string, binary              as many characters or bytes as the metrics mode allows; the upper bound is
                                rounded up
    fixed                       exact
    uuid                        none: some readers compare the halves as signed numbers
    inside lists and maps       none; NaNs are not counted, and NULLs of floating-point columns are not either

Bounds are in Iceberg's single-value serialization ("Appendix D" of its specification).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..parquet.bounds import Extremes, FloatExtremes, bytes_upper_bound, text_upper_bound
from ..parquet.columns import ParquetColumn, is_binary, is_string, is_uuid, parquet_columns, reach

FIELD_ID = b"PARQUET:field_id"

DEFAULT_MODE = "truncate(16)"

_UNBOUNDED = 2**63 - 1

_MODE = re.compile(r"none|counts|full|truncate\(([1-9][0-9]*)\)")


@dataclass(frozen=True, slots=True)
class StatisticsColumn:
    index: int
    id: int
    column: ParquetColumn
    has_counts: bool
    length_max: int | None
    """Maximum length of a bound in characters or bytes; None: no bounds."""

    @property
    def type(self) -> pa.DataType:
        return self.column.field.type

    @property
    def has_null_count(self) -> bool:
        return self.has_counts and not (self.column.is_floating and self.column.is_repeated)

    @property
    def is_gathered(self) -> bool:
        """True if the footer has no statistics, so that the values outside of lists and maps are read."""
        return self.has_counts and self.column.is_floating and not self.column.is_repeated

    @property
    def has_bounds(self) -> bool:
        return self.length_max is not None and not self.column.is_repeated and not is_uuid(self.type)

    @property
    def is_long(self) -> bool:
        """True if the footer leaves out long bounds."""
        return is_string(self.type) or is_binary(self.type)


class IcebergFileStatistics:
    """Collects statistics that the Parquet footer does not have, while a file is written. One instance per
    data file.
    """

    def __init__(self, columns: Sequence[StatisticsColumn]) -> None:
        self._columns = columns
        self._floats = {column.id: FloatExtremes() for column in self._columns if column.is_gathered}
        self._extremes = {
            column.id: Extremes() for column in self._columns if column.has_bounds and column.is_long
        }

    def add(self, rows: pa.Table) -> None:
        for column in self._columns:
            if column.id in self._floats:
                self._floats[column.id].add(_arrays(rows, column))
            elif column.id in self._extremes:
                self._extremes[column.id].add(_arrays(rows, column))

    def to_json(self, footer: pq.FileMetaData) -> str:
        row_groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        sizes: dict[int, int] = {}
        values: dict[int, int] = {}
        nulls: dict[int, int] = {}
        lowers: dict[int, bytes | None] = {}
        uppers: dict[int, bytes | None] = {}
        for column in self._columns:
            chunks = [row_group.column(column.index) for row_group in row_groups]
            sizes[column.id] = sum(chunk.total_compressed_size for chunk in chunks)
            if column.has_counts:
                values[column.id] = sum(chunk.num_values for chunk in chunks)
            if column.has_null_count:
                nulls[column.id] = self._nulls(column, chunks)
            if column.has_bounds:
                statistics = [chunk.statistics for chunk in chunks]
                lowers[column.id], uppers[column.id] = self._bounds(column, statistics)
        return json.dumps(
            {
                "column_sizes": sizes,
                "value_counts": values,
                "null_value_counts": nulls,
                "nan_value_counts": {
                    id_: floats.nans for id_, floats in self._floats.items() if not floats.has_only_nans
                },
                "lower_bounds": {id_: bound.hex() for id_, bound in lowers.items() if bound is not None},
                "upper_bounds": {id_: bound.hex() for id_, bound in uppers.items() if bound is not None},
                "split_offsets": sorted(_offset(row_group.column(0)) for row_group in row_groups),
            },
            separators=(",", ":"),
        )

    def _nulls(self, column: StatisticsColumn, chunks: Sequence[pq.ColumnChunkMetaData]) -> int:
        if column.id in self._floats:
            return self._floats[column.id].nulls
        return sum(chunk.statistics.null_count for chunk in chunks)

    def _bounds(
        self, column: StatisticsColumn, chunks: Sequence[pq.Statistics]
    ) -> tuple[bytes | None, bytes | None]:
        if column.is_long:
            return _long_bounds(*self._extremes[column.id].bounds(chunks), column.length_max or 0)
        if column.id in self._floats:
            return _float_bounds(column.type, self._floats[column.id])
        return _footer_bounds(column.type, chunks)


def statistics_problems(schema: pa.Schema, metrics: Mapping[int, str]) -> Iterator[str]:
    """Why metrics are not possible for files of this table."""
    for column in parquet_columns(schema):
        if FIELD_ID not in (column.field.metadata or {}):
            yield f"Column '{'.'.join(column.path)}' has no Iceberg field id."
    for field_id, mode in metrics.items():
        if not _MODE.fullmatch(mode):
            yield (
                f"Unknown metrics mode '{mode}' of field {field_id}; known: none, counts, truncate(n), full."
            )


def statistics_columns(schema: pa.Schema, metrics: Mapping[int, str]) -> tuple[StatisticsColumn, ...]:
    """The columns of a Parquet file, and the statistics needed for each."""
    return tuple([_column(index, column, metrics) for index, column in enumerate(parquet_columns(schema))])


def _column(index: int, column: ParquetColumn, metrics: Mapping[int, str]) -> StatisticsColumn:
    field_id = int(column.field.metadata[FIELD_ID])
    mode = metrics.get(field_id, DEFAULT_MODE)
    length_max = None
    if mode not in ("none", "counts"):
        length_max = _UNBOUNDED if mode == "full" else int(mode.removeprefix("truncate(").rstrip(")"))
    return StatisticsColumn(index, field_id, column, has_counts=mode != "none", length_max=length_max)


def _arrays(rows: pa.Table, column: StatisticsColumn) -> Iterator[pa.Array]:
    top, *below = column.column.path
    for chunk in rows.column(top).chunks:
        yield reach(chunk, below)


def _offset(chunk: pq.ColumnChunkMetaData) -> int:
    """Offset of a row group: the offset of its first column."""
    if chunk.has_dictionary_page:
        return min(int(chunk.dictionary_page_offset), int(chunk.data_page_offset))
    return int(chunk.data_page_offset)


# Bounds -------------------------------------------------------------------------------------------


def _long_bounds(least: Any, greatest: Any, length_max: int) -> tuple[bytes | None, bytes | None]:
    if least is None:
        return None, None
    lower = least[:length_max]
    if isinstance(lower, bytes):
        return lower, bytes_upper_bound(greatest, length_max)
    upper = text_upper_bound(greatest, length_max)
    return lower.encode(), None if upper is None else upper.encode()


def _float_bounds(data_type: pa.DataType, floats: FloatExtremes) -> tuple[bytes | None, bytes | None]:
    lower, upper = floats.bounds
    if lower is None or upper is None:
        return None, None
    return _serialize(data_type, lower), None if floats.nans else _serialize(data_type, upper)


def _footer_bounds(
    data_type: pa.DataType, chunks: Sequence[pq.Statistics]
) -> tuple[bytes | None, bytes | None]:
    chunks = [chunk for chunk in chunks if chunk.num_values]
    if not chunks or not all(chunk.has_min_max for chunk in chunks):
        return None, None
    lowers = [_number(data_type, chunk.min_raw) for chunk in chunks]
    uppers = [_number(data_type, chunk.max_raw) for chunk in chunks]
    return _serialize(data_type, min(lowers)), _serialize(data_type, max(uppers))


def _number(data_type: pa.DataType, raw: Any) -> Any:
    """Decimals are stored as integers, or as the bytes of an integer."""
    is_wide_decimal = pa.types.is_decimal(data_type) and isinstance(raw, bytes)
    return int.from_bytes(raw, "big", signed=True) if is_wide_decimal else raw


def _serialize(data_type: pa.DataType, value: Any) -> bytes:
    if pa.types.is_boolean(data_type):
        return b"\x01" if value else b"\x00"
    if pa.types.is_decimal(data_type):
        # One bit more than the magnitude for the sign; for negative numbers, than that of their complement.
        magnitude = value if value >= 0 else ~value
        return int(value).to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)
    if pa.types.is_fixed_size_binary(data_type):
        return bytes(value)
    if pa.types.is_float32(data_type):
        return struct.pack("<f", value)
    if pa.types.is_floating(data_type):
        return struct.pack("<d", value)
    return struct.pack("<i" if data_type.bit_width == 32 else "<q", value)
