"""One open Parquet file."""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .columns import parquet_columns
from .write_config import WriteConfig, has_levels

BLOOM_FALSE_POSITIVES = 0.01
"""Iceberg's default."""

PAGE_ROWS = 100_000
"""Rows of a page at most. Each page costs the codec a fresh start, and readers too; Arrow's own 20,000 are
for skipping pages by an index, which these files have not."""

WRITER_BYTES, CHUNK_BYTES = 24 * 1024, 850
"""What Arrow's writer keeps of an open file in memory, about: itself, and of each column of each row group
an entry for the footer."""


@dataclass(frozen=True, slots=True)
class Encodings:
    """Parquet columns, as dotted paths, with another encoding than the plain one, and those compressed."""

    dictionary: list[str]
    delta_encoded: list[str]
    """DELTA_BINARY_PACKED"""
    compressed: list[str]
    rows: int
    """What they were chosen by, and how many rows a row group is going to have, about."""


class OpenParquetFile:
    """A Parquet file that grows by whole row groups. Runs on executors.

    Timestamps are INT64 microseconds, decimals of up to 18 digits integers too. Floating columns have no
    statistics in the footer and in pages: Arrow leaves NaN out of minimum and maximum, and engines that hold
    NaN for the greatest number (Spark, DuckDB) would skip row groups that have one.
    """

    def __init__(
        self, sink: pa.NativeFile, schema: pa.Schema, plan: WriteConfig, encodings: Encodings
    ) -> None:
        columns = list(parquet_columns(schema))
        self._footers: list[pq.FileMetaData] = []
        self._sink = sink
        self._writer = pq.ParquetWriter(
            sink,
            schema,
            version="2.6",
            use_dictionary=encodings.dictionary,
            column_encoding=dict.fromkeys(encodings.delta_encoded, "DELTA_BINARY_PACKED"),
            data_page_size=plan.parquet.page_bytes,
            dictionary_pagesize_limit=plan.parquet.dictionary_bytes,
            write_statistics=[column.parquet_path for column in columns if not column.is_floating],
            store_schema=False,
            metadata_collector=self._footers,
            **_compression(plan, encodings.compressed),
            **_newer_options(schema, plan, encodings),
        )
        self._columns = len(columns)
        self._row_groups = 0
        self.size_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """Between two row groups, without what the last one leaves behind."""
        return WRITER_BYTES + self._row_groups * self._columns * CHUNK_BYTES

    def write_row_group(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._row_groups += 1
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

DECIMALS_AS_INTEGERS = "store_decimal_as_integer" in _KNOWN_OPTIONS
"""False with older versions of Arrow, which store the bytes of a number."""


def _compression(plan: WriteConfig, columns: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {"compression": dict.fromkeys(columns, plan.compression)}
    if plan.compression_level is not None and has_levels(plan.compression):
        options["compression_level"] = dict.fromkeys(columns, plan.compression_level)
    return options


def _newer_options(schema: pa.Schema, plan: WriteConfig, encodings: Encodings) -> dict[str, Any]:
    """What only newer versions of Arrow can do."""
    page_rows = plan.parquet.page_rows or PAGE_ROWS
    options: dict[str, Any] = {"store_decimal_as_integer": True, "max_rows_per_page": page_rows}
    if plan.parquet.bloom_columns:
        options["bloom_filter_options"] = _bloom_filters(schema, plan, encodings.rows)
    return {name: value for name, value in options.items() if name in _KNOWN_OPTIONS}


def _bloom_filters(schema: pa.Schema, plan: WriteConfig, rows: int) -> dict[str, Any]:
    """Filters as large as if all values of a row group were different.

    Arrow makes none of booleans. Floating columns get none: filters hold bits, so that a search for 0.0
    misses -0.0, which engines hold for equal.
    """
    return {
        column.parquet_path: {"ndv": max(min(rows, plan.row_group_rows), 1), "fpp": BLOOM_FALSE_POSITIVES}
        for column in parquet_columns(schema)
        if column.path in plan.parquet.bloom_columns
        and not (pa.types.is_boolean(column.field.type) or column.is_floating)
    }
