"""One open Parquet file."""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from .columns import parquet_columns, reach
from .plan import WritePlan, has_levels

SAMPLE_ROWS = 8192
DICTIONARY_VALUES_MAX = SAMPLE_ROWS // 4
"""A column with more distinct values than this in the sample gets no dictionary."""

BLOOM_FALSE_POSITIVES = 0.01
"""Iceberg's default."""


@dataclass(frozen=True, slots=True)
class Encodings:
    """Parquet columns, as dotted paths, with another encoding than the plain one."""

    dictionary: list[str]
    delta: list[str]
    """DELTA_BINARY_PACKED"""
    rows: int
    """What they were chosen by, and how many rows a row group is going to have, about."""

    @property
    def sure(self) -> bool:
        """False if there were too few rows to tell."""
        return self.rows >= SAMPLE_ROWS


class OpenParquetFile:
    """Created under its final name, which no manifest names yet. Runs on executors.

    Timestamps are INT64 microseconds.
    """

    def __init__(
        self, filesystem: FileSystem, path: str, schema: pa.Schema, plan: WritePlan, encodings: Encodings
    ) -> None:
        self._footers: list[pq.FileMetaData] = []
        self._sink = filesystem.open_output_stream(path)
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            version="2.6",
            compression=plan.compression,
            compression_level=plan.compression_level if has_levels(plan.compression) else None,
            use_dictionary=encodings.dictionary,
            column_encoding=dict.fromkeys(encodings.delta, "DELTA_BINARY_PACKED"),
            data_page_size=plan.parquet.page_bytes,
            dictionary_pagesize_limit=plan.parquet.dictionary_bytes,
            store_schema=False,
            metadata_collector=self._footers,
            **_newer_options(schema, plan, encodings),
        )
        self.size_bytes = 0

    def write_row_group(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self.size_bytes = self._sink.tell()

    def close(self) -> pq.FileMetaData:
        self._writer.close()
        self.size_bytes = self._sink.tell()
        self._sink.close()
        return self._footers[0]

    def discard(self) -> None:
        """Let go of the file, which is about to be deleted, whatever state it is in."""
        with contextlib.suppress(Exception):
            self._writer.close()
        with contextlib.suppress(Exception):
            self._sink.close()


_KNOWN_OPTIONS = frozenset(inspect.signature(pq.ParquetWriter.__init__).parameters)


def _newer_options(schema: pa.Schema, plan: WritePlan, encodings: Encodings) -> dict[str, Any]:
    """What only newer versions of Arrow can do, and the plan asks for."""
    options: dict[str, Any] = {}
    if plan.table_format.decimals_as_integers:
        options["store_decimal_as_integer"] = True
    if plan.parquet.page_rows is not None:
        options["max_rows_per_page"] = plan.parquet.page_rows
    if plan.parquet.bloom_columns:
        options["bloom_filter_options"] = _bloom_filters(schema, plan, encodings.rows)
    return {name: value for name, value in options.items() if name in _KNOWN_OPTIONS}


def _bloom_filters(schema: pa.Schema, plan: WritePlan, rows: int) -> dict[str, Any]:
    """Filters as large as if all values of a row group were different. Arrow makes none of booleans."""
    return {
        column.parquet_path: {"ndv": max(min(rows, plan.row_group_rows), 1), "fpp": BLOOM_FALSE_POSITIVES}
        for column in parquet_columns(schema)
        if column.path in plan.parquet.bloom_columns and not pa.types.is_boolean(column.field.type)
    }


def choose_encodings(schema: pa.Schema, rows: pa.Table) -> Encodings:
    """By a sample of the rows of a first row group.

    A dictionary pays where values repeat; differences pay for whole numbers and times that do not. All
    columns inside lists, maps and structs get a dictionary, from which the writer falls back by itself.
    """
    dictionary: list[str] = []
    delta: list[str] = []
    for column in parquet_columns(schema):
        kind = column.field.type
        if len(column.path) > 1:
            dictionary.append(column.parquet_path)
        elif pa.types.is_boolean(kind):
            continue
        elif _distinct_in_sample(rows.column(column.path[0])) <= DICTIONARY_VALUES_MAX:
            dictionary.append(column.parquet_path)
        elif _is_whole_number(kind):
            delta.append(column.parquet_path)
    return Encodings(dictionary, delta, rows.num_rows)


def _is_whole_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _distinct_in_sample(column: pa.ChunkedArray) -> int:
    """Distinct values in four pieces from the whole length of the column."""
    length = SAMPLE_ROWS // 4
    last = max(len(column) - length, 0)
    starts = [last * step // 3 for step in range(4)] if len(column) > SAMPLE_ROWS else [0]
    pieces = [column.slice(start, length if len(starts) > 1 else SAMPLE_ROWS) for start in starts]
    chunks = [reach(chunk, ()) for piece in pieces for chunk in piece.chunks]
    return int(pc.count_distinct(pa.chunked_array(chunks)).as_py()) if chunks else 0
