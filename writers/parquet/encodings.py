"""Chooses how the columns of Parquet files are encoded, by a sample of the first rows.

Readers must benefit too, so only encodings are used that every reader of the table format decodes fast.
Strings that do not repeat and floating-point numbers are stored plain: their special encodings are slow in
some readers or not supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import numeric_array
from .columns import ParquetColumn, parquet_columns, reach
from .data_file_config import DataFileConfig
from .file import DECIMALS_AS_INTEGERS, Encodings, OpenParquetFile

SAMPLE_ROWS = 8192
_PIECES = 4

FEW_ROWS = 1024
"""With fewer rows the sample is not conclusive: columns are stored plain, which is fastest, and
compressed.
"""

REPEATED = 0.75
"""If more of the sampled values than this are different, a dictionary does not pay off …"""
REPEATED_INTEGERS = 0.25
"""… nor with more than this, if delta encoding is possible: it is about as small, and faster to write and to
read …
"""
DICTIONARY_SHARE = 1 / 16
"""… nor with more than this share of a row group's rows: each row group has its own dictionary."""

COMPRESSED = 0.9
"""Columns are not compressed if that does not reduce them to less than this share of their encoded bytes …"""
SAVED_BYTES_MIN = 1024
"""… or if a row group would shrink by less than this: each page has a start-up cost for the codec."""


def choose_encodings(config: DataFileConfig, rows: pa.Table, group_rows: int) -> Encodings:
    """Choose encodings by a sample of rows, for row groups of about `group_rows` rows.

    A dictionary pays off if values repeat. Delta encoding pays off for integers and times that do not.
    Columns inside lists, maps and structs get a dictionary, from which the writer falls back by itself.
    Compression is decided by trying it.
    """
    columns = list(parquet_columns(rows.schema))
    all_columns = [column.parquet_path for column in columns]
    if rows.num_rows < FEW_ROWS:
        return Encodings([], [], all_columns, group_rows)
    spread = _spread(rows)
    spread_rows = sum(batch.num_rows for batch in spread)
    dictionary: list[str] = []
    delta_encoded: list[str] = []
    for column in columns:
        has_delta_encoding = config.table_format.reads_delta_encoding and _is_integer(column.field.type)
        if _repeats(column, spread, _different_max(spread_rows, group_rows, has_delta_encoding)):
            dictionary.append(column.parquet_path)
        elif has_delta_encoding:
            delta_encoded.append(column.parquet_path)
    encodings = Encodings(dictionary, delta_encoded, all_columns, group_rows)
    if config.compression == "none" or rows.num_rows < SAMPLE_ROWS:
        return encodings
    return replace(encodings, compressed=_worth_compressing(config, rows, encodings))


def fits(encodings: Encodings, group_rows: int) -> bool:
    """Return False if they were chosen for much smaller row groups."""
    return group_rows < 8 * encodings.rows


def _is_integer(data_type: pa.DataType) -> bool:
    """Return True if the file stores integers."""
    types = pa.types
    if types.is_decimal(data_type):
        return DECIMALS_AS_INTEGERS and data_type.precision <= 18
    return bool(types.is_integer(data_type) or types.is_timestamp(data_type) or types.is_date(data_type))


def _different_max(sampled: int, group_rows: int, has_delta_encoding: bool) -> float:
    """How many of the sampled values may be different if a dictionary is to pay off."""
    if has_delta_encoding:
        return min(sampled * REPEATED_INTEGERS, group_rows * DICTIONARY_SHARE)
    return sampled * REPEATED


def _repeats(column: ParquetColumn, sample: Sequence[pa.RecordBatch], different_max: float) -> bool:
    if len(column.path) > 1:
        return True
    if pa.types.is_boolean(column.field.type):
        return False
    values = pa.chunked_array([reach(batch.column(column.path[0]), ()) for batch in sample])
    return bool(pc.count_distinct(values).as_py() <= different_max)


def _spread(rows: pa.Table) -> list[pa.RecordBatch]:
    """Rows from the whole length, at a distance: neighbours are often alike."""
    batches = rows.to_batches()
    chosen = batches[:: max(len(batches) // _PIECES, 1)]
    step = max(sum(batch.num_rows for batch in chosen) // SAMPLE_ROWS, 1)
    return [batch.take(numeric_array(range(0, batch.num_rows, step))) for batch in chosen]


# Compression --------------------------------------------------------------------------------------


def _worth_compressing(config: DataFileConfig, rows: pa.Table, encodings: Encodings) -> list[str]:
    """Encodes a sample and reads the sizes from its footer."""
    sample = _runs(rows)
    trial = OpenParquetFile(pa.MockOutputStream(), sample.schema, config, encodings)
    trial.write_row_group(sample)
    footer = trial.close().row_group(0)
    worthwhile = []
    for number in range(footer.num_columns):
        column = footer.column(number)
        saved_bytes = column.total_uncompressed_size - column.total_compressed_size
        is_smaller = saved_bytes > column.total_uncompressed_size * (1 - COMPRESSED)
        if is_smaller and saved_bytes * encodings.rows > SAVED_BYTES_MIN * sample.num_rows:
            worthwhile.append(column.path_in_schema)
    return worthwhile


def _runs(rows: pa.Table) -> pa.Table:
    """Consecutive rows from several places."""
    length = SAMPLE_ROWS // _PIECES
    last = rows.num_rows - length
    return pa.concat_tables([rows.slice(last * piece // (_PIECES - 1), length) for piece in range(_PIECES)])
