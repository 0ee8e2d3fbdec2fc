"""One version of a table that is read: its columns, a condition, and the files with matching rows."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import pyarrow as pa

from ..committers.errors import ConfigurationError, TableNotSupportedError, shown
from .predicates import AllOf, Predicate
from .scan import ScanFile
from .shapes import without_metadata

FILE_COST_BYTES = 4 * 1024 * 1024
"""Opening a file takes as long as reading this many bytes, as Spark also assumes."""


class TableScanner(Protocol):
    """Reads the files of one version of a table, here or in another process. Can be pickled."""

    def with_where(self, where: Predicate | None) -> TableScanner:
        """Return the scan that leaves out rows which do not match."""
        ...

    def in_a_task(self) -> TableScanner:
        """Return the scan for a task that runs beside others on the same machine."""
        ...

    def read(self, files: Iterable[ScanFile]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files, one file after the other.

        Raises:
            RetryableError: a file cannot be read now, or is missing.
            PenstockError: a file is damaged.
        """
        ...


class StreamScanner(TableScanner, Protocol):
    """Reads the files of a stream."""

    def named(self, table: str) -> StreamScanner:
        """Return the scan with another name of the table in its messages."""
        ...

    def in_a_task(self) -> StreamScanner: ...


class TableReader(Protocol):
    """One version of a table, in any format."""

    @property
    def name(self) -> str:
        """The table and its version, for messages."""
        ...

    @property
    def column_names(self) -> tuple[str, ...]: ...

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """Return columns as Arrow has them.

        Raises:
            TableNotSupportedError: a column has a type that cannot be read.
        """
        ...

    def spark_fields(self, names: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        """Return columns in Spark's JSON, with the types and the nullability of Spark's own connectors."""
        ...

    def scan(self, columns: Sequence[str], schema: pa.Schema) -> TableScanner:
        """Return the scan.

        Args:
            columns: those that are read
            schema: of the rows that are returned, which has some of the columns
        """
        ...

    def files(self, where: Predicate | None, types: pa.Schema) -> Iterator[ScanFile]:
        """Yield the files that may have matching rows.

        Args:
            types: of the columns in the condition

        Raises:
            RetryableError: the table cannot be read now.
            TableNotSupportedError: it has files that cannot be read.
        """
        ...


@dataclass(frozen=True)
class TableScan:
    """Reads columns and rows of one version of a table. Made by `penstock.reader.open_table`."""

    reader: TableReader
    columns: tuple[str, ...]
    """Names of the columns that are returned."""
    where: Predicate | None
    """Rows that do not match are left out."""

    @classmethod
    def of(cls, reader: TableReader, columns: Sequence[str] | None, where: str | None) -> TableScan:
        """
        Args:
            columns: names in any case; None: all
            where: see `parse_where`

        Raises:
            ConfigurationError: the table does not have one of the columns, or the condition does not fit.
            TableNotSupportedError: a column has a type that cannot be read.
        """
        names = reader.column_names if columns is None else _named(reader, columns)
        condition = None
        if where is not None:
            from .where import parse_where  # loads pyiceberg

            condition = parse_where(where, reader.schema(_readable(reader)))
        return cls(reader, tuple(names), condition)

    @cached_property
    def schema(self) -> pa.Schema:
        """Of the returned rows."""
        schema = self.reader.schema(self.columns)
        return pa.schema(
            [pa.field(one.name, without_metadata(one.type), nullable=one.nullable) for one in schema]
        )

    @cached_property
    def types(self) -> pa.Schema:
        """Types of all columns that are read: also those that only the condition compares."""
        return self.reader.schema(self._read)

    @property
    def _read(self) -> tuple[str, ...]:
        compared = () if self.where is None else self.where.columns()
        return tuple(dict.fromkeys([*self.columns, *compared]))

    def and_where(self, conditions: Sequence[Predicate]) -> TableScan:
        """Return a scan of the rows that also match these conditions."""
        parts = (*(() if self.where is None else (self.where,)), *conditions)
        return replace(self, where=AllOf(parts)) if parts else self

    def scan(self, schema: pa.Schema | None = None) -> TableScanner:
        """Return what reads the files, here or in another process.

        Args:
            schema: of the returned rows, with other types of the same structure
        """
        return self.reader.scan(self._read, schema or self.schema).with_where(self.where)

    def files(self) -> Iterator[ScanFile]:
        """Yield the files that may have matching rows. Raises as `TableReader.files`."""
        return self.reader.files(self.where, self.types)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows, as batches of a few megabytes. Memory does not depend on the size of the table.

        Raises:
            RetryableError: the table cannot be read now. Also raised while the batches are read.
            TableNotSupportedError: it has files that cannot be read.
        """
        return pa.RecordBatchReader.from_batches(self.schema, self.scan().read(list(self.files())))


def _named(reader: TableReader, names: Sequence[str]) -> list[str]:
    known = {name.lower(): name for name in reader.column_names}
    missing = [name for name in names if name.lower() not in known]
    if missing:
        raise ConfigurationError(
            f"columns: {', '.join(map(shown, missing))} is not in {reader.name}, which has the columns "
            f"{', '.join(reader.column_names)}. Nothing was read."
        )
    return [known[name.lower()] for name in names]


def _readable(reader: TableReader) -> list[str]:
    """Return the columns whose type can be read."""
    return [name for name in reader.column_names if _has_type(reader, name)]


def _has_type(reader: TableReader, name: str) -> bool:
    try:
        reader.schema([name])
    except TableNotSupportedError:
        return False
    return True


# Parts of about equal size --------------------------------------------------------------------------------


def split(files: Iterable[ScanFile], part_bytes_max: int, parts_min: int) -> list[list[ScanFile]]:
    """Distribute files over parts of about equal size. Large files are divided between their row groups.

    Args:
        part_bytes_max: approximate size of the largest part
        parts_min: number of parts that should be at least there, as far as files are large enough
    """
    files = list(files)
    total = sum(_cost(file) for file in files)
    if not files:
        return []
    wanted = max(min(part_bytes_max, total // parts_min), FILE_COST_BYTES)
    pieces = sorted((piece for file in files for piece in _pieces(file, wanted)), key=_cost, reverse=True)
    count = max(min(-(-total // wanted), len(pieces)), 1)
    parts: list[list[ScanFile]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for piece in pieces:
        size, number = heapq.heappop(heap)
        parts[number].append(piece)
        heapq.heappush(heap, (size + _cost(piece), number))
    return [part for part in parts if part]


def _cost(file: ScanFile) -> int:
    return file.part_bytes + FILE_COST_BYTES


def _pieces(file: ScanFile, wanted: int) -> Iterator[ScanFile]:
    count = max(round(file.size_bytes / wanted), 1) if file.is_divisible else 1
    if count == 1:
        yield file
        return
    bounds = [file.size_bytes * number // count for number in range(count + 1)]
    for start, end in pairwise(bounds):
        yield replace(file, start=start, end=end)
