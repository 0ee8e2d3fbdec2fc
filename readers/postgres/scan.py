"""Plans the scan of a Postgres table, and reads it, in one part or in several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import pyarrow as pa

from ...committers.database.contract import Cursor
from ...committers.errors import ConfigurationError, RetryableError
from ...committers.postgres.address import PostgresAddress
from ...committers.postgres.connection import PostgresServer
from ...committers.postgres.dialect import DIALECT
from ...committers.postgres.types import UTF8
from ..arrow_fields import spark_field
from ..predicates import Predicate
from ..rows import converted, matching, types_of
from ..scan import ScanFile
from .copied_rows import CopiedRows, copied_batches
from .filters import postgres_filter
from .table import ReadTable, connected, find_table, load, take_snapshot
from .types import PostgresColumn, schema_of

_BLOCK_MAX = 2**32 - 1
_RANGES_SINCE = 140000
"""The server version that reads a range of pages without reading the others."""


@dataclass(frozen=True, slots=True)
class PageRange:
    """The part of a table in some of its pages, and the state in which the table was divided."""

    first: int
    end: int
    """After the last page."""
    file_id: int
    commits: tuple[tuple[str, int], ...]
    """See `Fence.commits`."""


@dataclass(frozen=True)
class PostgresTableReader:
    """A Postgres table as it is when it is read. See `TableReader`."""

    server: PostgresServer
    address: PostgresAddress
    table: ReadTable
    parts: int

    @classmethod
    def open(cls, server: PostgresServer, address: PostgresAddress, parts: int) -> PostgresTableReader:
        """
        Args:
            parts: into which the table is divided

        Raises:
            ConfigurationError: there is no such table, or it cannot be divided.
            RetryableError: the database cannot be reached now.
        """
        table = find_table(server, address)
        if parts > 1 and table.undivided:
            raise ConfigurationError(
                f"numPartitions={parts}: the {address.title} {table.undivided}, so it cannot be divided by "
                "the pages of its rows. Nothing was read. Leave the option out, or read its tables one by "
                "one."
            )
        return cls(server, address, table, parts)

    @property
    def name(self) -> str:
        return f"the {self.address.title}"

    @cached_property
    def _columns(self) -> Mapping[str, PostgresColumn]:
        return {column.name: column for column in self.table.columns}

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """See `TableReader`.

        Raises:
            TableNotSupportedError: a column has a type that cannot be read.
        """
        return schema_of([self._columns[name] for name in names], self.name)

    def spark_fields(self, names: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        """See `TableReader`."""
        return [spark_field(one) for one in self.schema(names)]

    def scan(self, columns: Sequence[str], schema: pa.Schema) -> PostgresScan:
        """See `TableReader`."""
        own = tuple(self._columns[name] for name in columns)
        return PostgresScan(self.server, self.address, self.table, own, schema)

    def files(self, where: Predicate | None, types: pa.Schema) -> Iterator[ScanFile]:
        """Yield the parts of the table: without `numPartitions`, one.

        Raises:
            ConfigurationError: the server is too old to divide the table.
            RetryableError: the database cannot be reached now, or the table was changed.
        """
        if self.parts == 1:
            yield ScanFile("all rows", self.table.size_bytes)
            return
        with connected(self.server, self.address) as connection:
            if connection.info.server_version < _RANGES_SINCE:
                raise ConfigurationError(
                    f"numPartitions={self.parts}: the server of the {self.address.title} is older than "
                    "Postgres 14, in which each task would read the whole table. Nothing was read. Leave "
                    "the option out."
                )
            cursor = take_snapshot(connection, self.address, self.table.kind)
            now = check_table(cursor, self.address, self.table, ())
            pages = DIALECT.row_ids.blocks(cursor, self.address.sql)
            commits = DIALECT.fence.commits(cursor, self.address)
        count = max(min(self.parts, pages), 1)
        starts = [pages * number // count for number in range(count)]
        for first, end in pairwise([*starts, _BLOCK_MAX]):  # the last one has the pages that are added
            part = PageRange(first, end, now.file_id, commits)
            yield ScanFile(f"rows from page {first} on", now.size_bytes // count, only=part)


def check_table(
    cursor: Cursor, address: PostgresAddress, planned: ReadTable, columns: Sequence[PostgresColumn]
) -> ReadTable:
    """Return the table as this transaction sees it.

    Args:
        columns: that are read

    Raises:
        RetryableError: it was dropped and created again, or altered, since the read was planned.
    """
    now = load(cursor, address)
    if now is None or (now.table_id, now.kind) != (planned.table_id, planned.kind):
        raise _changed(address, "was dropped or created again")
    if not set(columns) <= set(now.columns):
        raise _changed(address, "was altered")
    return now


def _changed(address: PostgresAddress, how: str) -> RetryableError:
    return RetryableError(f"The {address.title} {how} since the read was planned. Load the table again.")


@dataclass(frozen=True)
class PostgresScan:
    """How the parts of a table are read. See `TableScanner`."""

    server: PostgresServer
    address: PostgresAddress
    table: ReadTable
    columns: tuple[PostgresColumn, ...]
    """Those that are read."""
    schema: pa.Schema
    """Of the rows that are returned."""
    where: Predicate | None = None

    def with_where(self, where: Predicate | None) -> PostgresScan:
        return replace(self, where=where)

    def in_a_task(self) -> PostgresScan:
        """See `TableScanner`. It has no threads."""
        return self

    def read(self, files: Iterable[ScanFile]) -> Iterator[pa.RecordBatch]:
        """See `TableScanner`. Each part is read in a transaction of its own.

        Raises:
            RetryableError: also if a part has other commits than the table had when it was divided.
            PenstockError: a column has a value that Arrow does not have.
        """
        for file in files:
            with connected(self.server, self.address) as connection:
                cursor = take_snapshot(connection, self.address, self.table.kind)
                now = check_table(cursor, self.address, self.table, self.columns)
                if file.only is not None:
                    self._check_part(cursor, now, file.only)
                encoding = DIALECT.encoding(cursor)
                with connection.cursor().copy(self._statement(file.only, encoding)) as copied:
                    yield from self._batches(copied)

    def _check_part(self, cursor: Cursor, now: ReadTable, part: PageRange) -> None:
        if now.file_id != part.file_id:
            raise _changed(self.address, "was rewritten (VACUUM FULL, CLUSTER, TRUNCATE or ALTER TABLE)")
        if DIALECT.fence.commits(cursor, self.address) != part.commits:
            raise RetryableError(
                f"A batch was committed to the {self.address.title} since the read was divided between "
                "tasks, so they would not see the same rows. Load the table again, or leave numPartitions "
                "out."
            )

    def _statement(self, part: PageRange | None, encoding: str) -> str:
        selected = ", ".join(column.selected for column in self.columns)
        conditions = [] if part is None else [DIALECT.row_ids.in_blocks(part.first, part.end)]
        if self.where is not None:
            columns = {column.name: column for column in self.columns}
            found = postgres_filter(self.where, columns, compares_texts=encoding == UTF8)
            conditions += [] if found is None else [f"({found})"]
        condition = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        rows = f"SELECT {selected or 'NULL'} FROM {self.address.sql} n{condition}"
        return f"COPY ({rows}) TO STDOUT (FORMAT csv)"

    def _batches(self, copied: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        own = schema_of(self.columns, f"the {self.address.title}")
        types = types_of(own, self.schema)
        for batch in copied_batches(copied, CopiedRows(own, f"the {self.address.title}")):
            found = matching(converted(batch, types), self.where, self.schema)
            if found.num_rows:
                yield found
