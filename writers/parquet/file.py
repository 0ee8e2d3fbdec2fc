"""One open Parquet file."""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .columns import parquet_columns
from .data_file_config import DataFileConfig, has_levels

BLOOM_FALSE_POSITIVES = 0.01
"""Iceberg's default."""

PAGE_ROWS = 100_000
"""Maximum rows of a page. Each page has a start-up cost for codec and readers. Arrow's default of 20,000 is
for skipping pages by an index, which these files do not have.
"""

WRITER_BYTES, CHUNK_BYTES = 24 * 1024, 850
"""Approximate memory of Arrow's writer per open file: a constant, and a footer entry for each column of each
row group.
"""


@dataclass(frozen=True, slots=True)
class Encodings:
    """Parquet columns, as dotted paths, that are not stored plain, and those that are compressed."""

    dictionary: list[str]
    delta_encoded: list[str]
    """DELTA_BINARY_PACKED"""
    compressed: list[str]
    rows: int
    """The rows that they were chosen by, and the expected rows of a row group."""


class OpenParquetFile:
    """A Parquet file that is written in whole row groups. Runs on executors.

    Timestamps are INT64 microseconds, and decimals of up to 18 digits are integers. Floating-point columns
    have no statistics in footer and pages: Arrow leaves NaN out of minimum and maximum, and engines that
    order NaN above all numbers (Spark, DuckDB) would skip row groups that contain one.
    """

    def __init__(
        self, sink: pa.NativeFile, schema: pa.Schema, config: DataFileConfig, encodings: Encodings
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
            data_page_size=config.parquet.page_bytes,
            dictionary_pagesize_limit=config.parquet.dictionary_bytes,
            write_statistics=[column.parquet_path for column in columns if not column.is_floating],
            store_schema=False,
            metadata_collector=self._footers,
            **_compression(config, encodings.compressed),
            **_newer_options(schema, config, encodings),
        )
        self._columns = len(columns)
        self._row_groups = 0
        self.size_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """Between two row groups, not counting temporary memory of the last one."""
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
        """Close the file in any state; it is about to be deleted."""
        with contextlib.suppress(Exception):
            self._writer.close()
        with contextlib.suppress(Exception):
            self._sink.close()


_KNOWN_OPTIONS = frozenset(inspect.signature(pq.ParquetWriter.__init__).parameters)

DECIMALS_AS_INTEGERS = "store_decimal_as_integer" in _KNOWN_OPTIONS
"""False with older versions of Arrow, which store the bytes of a number."""


def _compression(config: DataFileConfig, columns: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {"compression": dict.fromkeys(columns, config.compression)}
    if config.compression_level is not None and has_levels(config.compression):
        options["compression_level"] = dict.fromkeys(columns, config.compression_level)
    return options


def _newer_options(schema: pa.Schema, config: DataFileConfig, encodings: Encodings) -> dict[str, Any]:
    """Options that only newer versions of Arrow support."""
    page_rows = config.parquet.page_rows or PAGE_ROWS
    options: dict[str, Any] = {"store_decimal_as_integer": True, "max_rows_per_page": page_rows}
    if config.parquet.bloom_columns:
        options["bloom_filter_options"] = _bloom_filters(schema, config, encodings.rows)
    return {name: value for name, value in options.items() if name in _KNOWN_OPTIONS}


def _bloom_filters(schema: pa.Schema, config: DataFileConfig, rows: int) -> dict[str, Any]:
    """Bloom filters, sized as if all values of a row group were different.

    Arrow does not support them for booleans. Floating-point columns get none: filters compare bits, so a
    search for 0.0 would miss -0.0, which engines consider equal.
    """
    return {
        column.parquet_path: {"ndv": max(min(rows, config.row_group_rows), 1), "fpp": BLOOM_FALSE_POSITIVES}
        for column in parquet_columns(schema)
        if column.path in config.parquet.bloom_columns
        and not (pa.types.is_boolean(column.field.type) or column.is_floating)
    }
