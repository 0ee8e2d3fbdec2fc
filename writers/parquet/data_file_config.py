"""Where data files are written, of which rows and how: their configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from ...committers.contract import SortField
from ...committers.errors import ConfigurationError
from ...committers.file_tables.evolution import Narrowing
from .columns import Path, parquet_columns, with_small_offsets
from .sorting import sort_problems
from .table_format import TableFormat

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")

_MEBIBYTE = 1024 * 1024

ROW_GROUP_ROWS = 250_000
"""About as fast to write and to read as with more rows, with much less memory: a task holds the rows of a row
group before it encodes them.
"""


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """Layout of Parquet files, for tables that set it; None: the writer's default.

    Options that the installed Arrow does not support are ignored; the files are correct without them.
    """

    page_bytes: int | None = None
    """A page is closed at this many encoded bytes."""
    page_rows: int | None = None
    dictionary_bytes: int | None = None
    """Size limit of a column's dictionary; beyond it the column continues without one."""
    bloom_columns: tuple[Path, ...] = ()
    """Columns with a Bloom filter, by path (see `columns.Path`)."""


@dataclass(frozen=True, slots=True)
class DataFileConfig:
    """Everything that a task attempt needs to write data files, see `WriteConfig`.

    Raises:
        ConfigurationError: raised on creation, with all problems at once.
    """

    location: str
    """Location of the data files: the base of their paths."""
    storage_options: dict[str, str] = field(repr=False)
    """In the table library's form. May contain secrets."""
    schema: pa.Schema
    """The table's columns in table order, including partition columns."""
    table_format: TableFormat
    target_file_bytes: int = 128 * _MEBIBYTE
    """A file is closed at this many bytes; the last row group may exceed it a little."""
    row_group_rows: int = ROW_GROUP_ROWS
    """Maximum rows of a row group; fewer if the buffers are full."""
    row_group_bytes: int | None = None
    """Approximate size of a row group in the file, estimated by the compression of the task's earlier rows;
    the first rows count with their size in memory. None: no limit of its own, only `buffer_bytes_max` limits
    its size in memory.
    """
    compression: str = "zstd"
    compression_level: int | None = None
    """None: Arrow's default for the codec. Ignored by codecs without levels."""
    max_open_partitions: int = 1000
    """Maximum number of files that one task attempt keeps open."""
    buffer_bytes_max: int = 128 * _MEBIBYTE
    """Maximum size of rows that one task attempt holds in memory, as Arrow bytes, over all table
    partitions.
    """
    sort: tuple[SortField, ...] = ()
    """Sort order of the rows within each row group."""
    parquet: ParquetOptions = ParquetOptions()
    narrows: Narrowing = Narrowing.NONE
    """Integers and decimals may have larger types than the table. Values that do not fit are bad rows."""
    version: int = 1

    def __post_init__(self) -> None:
        problems = [*_size_problems(self), *_codec_problems(self), *_column_problems(self)]
        if problems:
            raise ConfigurationError(" ".join(problems))

    @property
    def row_schema(self) -> pa.Schema:
        """The schema that rows are projected to: `schema` without the `large_` types, which files do not
        have.
        """
        return with_small_offsets(self.schema)

    @property
    def file_schema(self) -> pa.Schema:
        """The columns that the data files have."""
        return self.table_format.file_schema(self.row_schema)


def _size_problems(config: DataFileConfig) -> Iterator[str]:
    sizes = {
        "target_file_bytes": config.target_file_bytes,
        "row_group_rows": config.row_group_rows,
        "row_group_bytes": config.row_group_bytes,
        "max_open_partitions": config.max_open_partitions,
        "buffer_bytes_max": config.buffer_bytes_max,
        "page_bytes": config.parquet.page_bytes,
        "page_rows": config.parquet.page_rows,
        "dictionary_bytes": config.parquet.dictionary_bytes,
    }
    for name, size in sizes.items():
        if size is not None and size < 1:
            yield f"{name} must be at least 1."


def _codec_problems(config: DataFileConfig) -> Iterator[str]:
    if config.compression not in COMPRESSIONS:
        yield f"Unknown compression '{config.compression}'; known: {', '.join(COMPRESSIONS)}."
    elif config.compression_level is not None and has_levels(config.compression):
        least = pa.Codec.minimum_compression_level(config.compression)
        most = pa.Codec.maximum_compression_level(config.compression)
        if not least <= config.compression_level <= most:
            yield (
                f"compression_level {config.compression_level} is invalid for {config.compression}: its "
                f"levels go from {least} to {most}."
            )


def has_levels(compression: str) -> bool:
    """True if this codec has levels for Parquet files. Parquet's lz4 has none."""
    return compression in ("zstd", "gzip")


def _column_problems(config: DataFileConfig) -> Iterator[str]:
    names = config.schema.names
    if len(set(names)) != len(names):
        yield "Two columns of the table have the same name."
    rows = config.row_schema
    problems = config.table_format.problems(rows)
    yield from problems
    if not problems:
        files = config.table_format.file_schema(rows)
        yield from sort_problems(files, config.sort)
        known = {column.path for column in parquet_columns(files)}
        for path in config.parquet.bloom_columns:
            if path not in known:
                yield f"Column '{'.'.join(path)}' with a Bloom filter is not in the table's data files."
