"""What the driver tells the executors: where, what and how to write, and how files are called."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from ...committers.contract import AttemptId, SortField
from ...committers.errors import ConfigurationError
from .columns import Path, parquet_columns, with_small_offsets
from .sorting import sort_problems
from .table_format import TableFormat

if TYPE_CHECKING:
    from .data_files import DataFileWriter

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")

_MEBIBYTE = 1024 * 1024

ROW_GROUP_ROWS = 250_000
"""About as fast to write and to read as more of them, and much less memory: a task holds the rows of a row
group before it encodes them."""


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """The inside of Parquet files, for tables that ask for it; None is the writer's default.

    What the installed Arrow cannot do is left out: the files are as right without it.
    """

    page_bytes: int | None = None
    """A page is closed once it holds so many encoded bytes."""
    page_rows: int | None = None
    dictionary_bytes: int | None = None
    """A column whose dictionary outgrows this goes on without one."""
    bloom_columns: tuple[Path, ...] = ()
    """Columns with a Bloom filter, by their path (see `columns.Path`)."""


@dataclass(frozen=True, slots=True)
class WriteConfig:
    """Everything that a task attempt must know to write data files. Pickled on the driver.

    Raises:
        ConfigurationError: on creation, with all problems at once.
    """

    location: str
    """Where the data files go: what their paths are relative to."""
    storage_options: dict[str, str] = field(repr=False)
    """As the table library takes them. May hold secrets."""
    schema: pa.Schema
    """The table's columns in table order, partition columns included."""
    table_format: TableFormat
    target_file_bytes: int = 128 * _MEBIBYTE
    """A file is closed once it holds so many bytes; the last row group may carry it a little over."""
    row_group_rows: int = ROW_GROUP_ROWS
    """Rows of a row group at most; fewer when the buffers are full."""
    row_group_bytes: int | None = None
    """Bytes of a row group as it lies in the file, about: how many rows that is goes by how well the task's
    rows so far were compressed, and the first ones count as they are in memory. None: no bound of its own,
    `buffer_bytes_max` bounds what there is of it in memory."""
    compression: str = "zstd"
    compression_level: int | None = None
    """None: Arrow's default for the codec. Of no meaning to codecs without levels."""
    max_open_partitions: int = 1000
    """Files that one task attempt keeps open at most."""
    buffer_bytes_max: int = 128 * _MEBIBYTE
    """Rows that one task attempt holds in memory at most, as Arrow bytes, over all table partitions."""
    sort: tuple[SortField, ...] = ()
    """The order of the rows within each row group."""
    parquet: ParquetOptions = ParquetOptions()
    version: int = 1

    def __post_init__(self) -> None:
        problems = [*_size_problems(self), *_codec_problems(self), *_column_problems(self)]
        if problems:
            raise ConfigurationError(" ".join(problems))

    def open(self, attempt: AttemptId) -> DataFileWriter:
        """See `TaskWriterFactory`."""
        from .data_files import DataFileWriter

        return DataFileWriter(self, FileNames.of(attempt))

    @property
    def row_schema(self) -> pa.Schema:
        """What rows are conformed to: `schema` without the `large_` types, which files do not know."""
        return with_small_offsets(self.schema)

    @property
    def file_schema(self) -> pa.Schema:
        """The columns that the data files hold."""
        return self.table_format.file_schema(self.row_schema)


def _size_problems(plan: WriteConfig) -> Iterator[str]:
    sizes = {
        "target_file_bytes": plan.target_file_bytes,
        "row_group_rows": plan.row_group_rows,
        "row_group_bytes": plan.row_group_bytes,
        "max_open_partitions": plan.max_open_partitions,
        "buffer_bytes_max": plan.buffer_bytes_max,
        "page_bytes": plan.parquet.page_bytes,
        "page_rows": plan.parquet.page_rows,
        "dictionary_bytes": plan.parquet.dictionary_bytes,
    }
    for name, size in sizes.items():
        if size is not None and size < 1:
            yield f"{name} must be at least 1."


def _codec_problems(plan: WriteConfig) -> Iterator[str]:
    if plan.compression not in COMPRESSIONS:
        yield f"Unknown compression '{plan.compression}'; known: {', '.join(COMPRESSIONS)}."
    elif plan.compression_level is not None and has_levels(plan.compression):
        least = pa.Codec.minimum_compression_level(plan.compression)
        most = pa.Codec.maximum_compression_level(plan.compression)
        if not least <= plan.compression_level <= most:
            yield (
                f"compression_level {plan.compression_level} is not one of {plan.compression}:"
                f" they go from {least} to {most}."
            )


def has_levels(compression: str) -> bool:
    """True if Parquet files can be written with a level of this codec. Parquet's lz4 has none."""
    return compression in ("zstd", "gzip")


def _column_problems(plan: WriteConfig) -> Iterator[str]:
    names = plan.schema.names
    if len(set(names)) != len(names):
        yield "Two columns of the table have the same name."
    rows = plan.row_schema
    problems = plan.table_format.problems(rows)
    yield from problems
    if not problems:
        files = plan.table_format.file_schema(rows)
        yield from sort_problems(files, plan.sort)
        known = {column.path for column in parquet_columns(files)}
        for path in plan.parquet.bloom_columns:
            if path not in known:
                yield f"Column '{'.'.join(path)}' with a Bloom filter is not in the table's data files."


@dataclass(frozen=True, slots=True)
class FileName:
    """What the name of one of our data files says. `run` is a digest of the run id, not the id."""

    query_id: str
    run: str
    batch_id: int
    partition: int
    attempt: int
    sequence: int
    compression: str

    def __str__(self) -> str:
        return (
            f"penstock-{self.query_id}-{self.run}-{self.batch_id:08d}-{self.partition:05d}"
            f"-{self.attempt}-{self.sequence:04d}.{self.compression}.parquet"
        )


@dataclass(frozen=True, slots=True)
class FileNames:
    """Names of the files of one task attempt: no other attempt, of this run or another, has the same.

    `attempt` must be unique within the run: Spark's task attempt id, not the attempt number, which starts
    at 0 again when a stage is retried.
    """

    query_id: str
    run_id: str
    batch_id: int
    partition: int
    attempt: int

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9A-Za-z_-]+", self.query_id):
            raise ConfigurationError(
                f"The query id '{self.query_id}' cannot be part of a file name;"
                " use letters, digits, '-' and '_' only."
            )

    @classmethod
    def of(cls, attempt: AttemptId) -> FileNames:
        return cls(attempt.query_id, attempt.run_id, attempt.batch_id, attempt.partition, attempt.attempt)

    def name(self, sequence: int, compression: str) -> FileName:
        """The attempt's file number `sequence`, counted from 0."""
        run = hashlib.sha256(self.run_id.encode()).hexdigest()[:8]
        return FileName(
            self.query_id, run, self.batch_id, self.partition, self.attempt, sequence, compression
        )

    def __str__(self) -> str:
        return f"batch {self.batch_id}, partition {self.partition}, attempt {self.attempt}"


_FILE_NAME = re.compile(
    r"penstock-(?P<query_id>[0-9A-Za-z_-]+)-(?P<run>[0-9a-f]{8})-(?P<batch_id>\d{8,})"
    r"-(?P<partition>\d{5,})-(?P<attempt>\d+)-(?P<sequence>\d{4,})\.(?P<compression>[a-z0-9]+)\.parquet"
)


def parse_file_name(path: str) -> FileName | None:
    """What the last part of `path` says, if `FileNames` made it; else None. Clean-up deletes by this."""
    match = _FILE_NAME.fullmatch(posixpath.basename(path))
    if match is None:
        return None
    parts = match.groupdict()
    numbers = {key: int(parts[key]) for key in ("batch_id", "partition", "attempt", "sequence")}
    parsed = FileName(parts["query_id"], parts["run"], **numbers, compression=parts["compression"])
    return parsed if str(parsed) == posixpath.basename(path) else None
