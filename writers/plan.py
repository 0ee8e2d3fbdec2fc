"""What the driver tells the executors: where, what and how to write, and how files are called."""

from __future__ import annotations

import hashlib
import posixpath
import re
from dataclasses import dataclass, field

import pyarrow as pa

from ..committers.errors import ConfigurationError

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")

_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Everything that a task attempt must know to write data files. Pickled on the driver.

    Raises:
        ConfigurationError: on creation, with all problems at once.
    """

    table_uri: str
    storage_options: dict[str, str] = field(repr=False)
    """As the table library takes them. May hold secrets."""
    schema: pa.Schema
    """The table's columns in table order, partition columns included."""
    partition_by: tuple[str, ...] = ()
    target_file_bytes: int = 128 * _MEBIBYTE
    """A file is closed once it holds so many bytes; the last row group may carry it a little over."""
    row_group_rows: int = 1_000_000
    """Rows of a row group at most; fewer when the buffers are full."""
    compression: str = "zstd"
    max_open_partitions: int = 64
    """Files that one task attempt keeps open at most."""
    buffer_bytes_max: int = 64 * _MEBIBYTE
    """Rows that one task attempt holds in memory at most, as Arrow bytes, over all table partitions."""
    sort_within: tuple[str, ...] = ()
    """Each row group is sorted by these columns, ascending, NULLs last."""
    statistics_columns: tuple[str, ...] | None = None
    """Dotted paths of the columns with statistics (a struct stands for its fields); None: the first ones."""
    statistics_columns_max: int = 32
    """How many leaf columns "the first ones" are; -1 is all of them."""
    version: int = 1

    def __post_init__(self) -> None:
        problems = [*_size_problems(self), *_column_problems(self)]
        if problems:
            raise ConfigurationError(" ".join(problems))

    @property
    def data_schema(self) -> pa.Schema:
        """The columns that the data files hold: all but the partition columns."""
        return pa.schema([column for column in self.schema if column.name not in self.partition_by])


def _size_problems(plan: WritePlan) -> list[str]:
    sizes = ("target_file_bytes", "row_group_rows", "max_open_partitions", "buffer_bytes_max")
    problems = [f"{name} must be at least 1." for name in sizes if getattr(plan, name) < 1]
    if plan.compression not in COMPRESSIONS:
        problems.append(f"Unknown compression '{plan.compression}'; known: {', '.join(COMPRESSIONS)}.")
    return problems


def _column_problems(plan: WritePlan) -> list[str]:
    names = plan.schema.names
    problems = [
        f"Column '{name}' of {what} is not in the table; its columns: {', '.join(names)}."
        for what, columns in (("the partitioning", plan.partition_by), ("the sort order", plan.sort_within))
        for name in columns
        if name not in names
    ]
    problems += [
        f"Cannot sort within row groups by '{column.name}' of type {column.type}; leave it out."
        for column in plan.schema
        if column.name in plan.sort_within and pa.types.is_nested(column.type)
    ]
    if len(set(names)) != len(names):
        problems.append("Two columns of the table have the same name.")
    if not set(names) - set(plan.partition_by):
        problems.append("A table needs at least one column that is not a partition column.")
    return problems


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
