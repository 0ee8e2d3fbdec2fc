"""One open Parquet file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

SAMPLE_ROWS = 8192
DICTIONARY_VALUES_MAX = SAMPLE_ROWS // 4
"""A column with more distinct values than this in the sample gets no dictionary."""


@dataclass(frozen=True, slots=True)
class Encodings:
    """Parquet columns, as dotted paths, with another encoding than the plain one."""

    dictionary: list[str]
    delta: list[str]
    """DELTA_BINARY_PACKED"""
    sure: bool
    """False if there were too few rows to tell."""


class OpenParquetFile:
    """Created under its final name, which no manifest names yet. Runs on executors.

    Timestamps are INT64 microseconds.
    """

    def __init__(
        self, filesystem: FileSystem, path: str, schema: pa.Schema, compression: str, encodings: Encodings
    ) -> None:
        self._footers: list[pq.FileMetaData] = []
        self._sink = filesystem.open_output_stream(path)
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            version="2.6",
            compression=compression,
            use_dictionary=encodings.dictionary,
            column_encoding=dict.fromkeys(encodings.delta, "DELTA_BINARY_PACKED"),
            store_schema=False,
            metadata_collector=self._footers,
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


def choose_encodings(schema: pa.Schema, rows: pa.Table) -> Encodings:
    """By a sample of the rows of a first row group.

    A dictionary pays where values repeat; differences pay for whole numbers and times that do not. All
    columns inside lists, maps and structs get a dictionary, from which the writer falls back by itself.
    """
    dictionary: list[str] = []
    delta: list[str] = []
    for column in schema:
        if pa.types.is_nested(column.type):
            dictionary += _nested_columns(column.name, column.type)
        elif pa.types.is_boolean(column.type):
            continue
        elif _distinct_in_sample(rows.column(column.name)) <= DICTIONARY_VALUES_MAX:
            dictionary.append(column.name)
        elif _is_whole_number(column.type):
            delta.append(column.name)
    return Encodings(dictionary, delta, sure=rows.num_rows >= SAMPLE_ROWS)


def _is_whole_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _distinct_in_sample(column: pa.ChunkedArray) -> int:
    """Distinct values in four pieces from the whole length of the column."""
    length = SAMPLE_ROWS // 4
    last = max(len(column) - length, 0)
    starts = [last * step // 3 for step in range(4)] if len(column) > SAMPLE_ROWS else [0]
    pieces = [column.slice(start, length if len(starts) > 1 else SAMPLE_ROWS) for start in starts]
    sample = pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks], column.type)
    return int(pc.count_distinct(sample).as_py())


def _nested_columns(path: str, kind: pa.DataType) -> Iterator[str]:
    """Dotted paths of the Parquet columns below `path`, as the Parquet format names list and map levels."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _nested_columns(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from _nested_columns(f"{path}.key_value.key", kind.key_type)
        yield from _nested_columns(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _nested_columns(f"{path}.list.element", kind.value_type)
    else:
        yield path
