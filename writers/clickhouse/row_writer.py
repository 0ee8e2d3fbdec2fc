"""Sends the rows of one task attempt into its staging table. Executors only."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.clickhouse.address import ClickHouseAddress, qualified, quoted
from ...committers.clickhouse.connection import ClickHouseConnection, ClickHouseServer
from ...committers.clickhouse.dialect import ClickHouseDialect, part_number
from ...committers.clickhouse.table import PART
from ...committers.clickhouse.types import fraction_digits, is_nullable, without_null
from ...committers.contract import AttemptId
from ...committers.crash_points import reach
from ...committers.database.server import COMMIT_TIMEOUT_S
from ...committers.database.staging import StagingTable, StagingTables, staging_name
from ...committers.errors import PenstockError, SchemaMismatchError
from ..database.staging_writer import DatabaseWriters

_ONE_BLOCK = 2**31
"""Rows of a block. An INSERT is one block, so each partition gets one part."""
_SETTINGS = {
    "async_insert": "0",
    "input_format_null_as_default": "1",
    "insert_allow_materialized_columns": "1",
    "insert_deduplicate": "0",
    "max_insert_block_size": str(_ONE_BLOCK),
    "max_insert_threads": "1",
    "min_insert_block_size_bytes": "0",
    "min_insert_block_size_rows": str(_ONE_BLOCK),
    "optimize_on_insert": "0",
}
"""Those of the user come first."""
_DAY_US = 86_400_000_000
_DAYS = date(1900, 1, 1), date(2300, 1, 1)
"""The first day of dates, and the first after them."""
_DAYS_OF = {"Date": (date(1970, 1, 1), date(2149, 6, 7)), "DateTime": (date(1970, 1, 1), date(2106, 2, 7))}
_DAYS_OF_NANOSECONDS = date(1900, 1, 1), date(2262, 4, 11)


@dataclass(frozen=True, slots=True)
class ClickHouseWriters(DatabaseWriters):
    """See `DatabaseWriters`."""

    def check(self, rows: pa.RecordBatch) -> None:
        for column, name, kind in zip(rows.columns, rows.schema.names, self.sql_types, strict=True):
            if column.null_count and not is_nullable(kind) and self._is_written(column, rows):
                raise SchemaMismatchError(
                    f"NULL in {name}, which is {kind} in ClickHouse and has no NULL. Filter these rows, or "
                    "replace NULL in the query, e.g. with coalesce()."
                )
            _check(column, name, without_null(kind))

    def _is_written(self, column: pa.Array, rows: pa.RecordBatch) -> bool:
        """Return True if a NULL of the column is in a row that does not delete. Others get the default."""
        if self.changes is None:
            return True
        deletes = rows.column(self.changes.deletes)
        return bool(pc.any(pc.and_(pc.is_null(column), pc.invert(deletes))).as_py())

    def open(self, attempt: AttemptId) -> RowWriter:
        return RowWriter(self, attempt)


class RowWriter:
    """See `TaskWriter`. Sends rows once they fill the buffer. A task without rows creates no table."""

    def __init__(self, plan: ClickHouseWriters, attempt: AttemptId) -> None:
        self._plan, self._batch_id, self._query_id = plan, attempt.batch_id, attempt.query_id
        self._server = cast("ClickHouseServer", plan.server)
        self._name = staging_name(attempt, plan.table_sql)
        self._project = plan.projector(attempt)
        self._connection: ClickHouseConnection | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = self._rows = self._bytes = self._inserts = 0

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """See `ChecksRows`."""
        self._plan.check(self._project(batch))

    def write(self, batch: pa.RecordBatch) -> None:
        rows = self._project(batch)
        self._plan.check(rows)
        if rows.num_rows:
            self._waiting.append(rows)
            self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self._server.buffer_bytes:
            self._send()

    def finish(self) -> StagingTables:
        self._send()
        if self._connection is None:
            return ()
        self._connection.close()
        reach("write.files_closed", self._batch_id)
        return (self._table,)

    def abort(self) -> None:
        self._waiting = []
        if self._connection is None:
            return
        self._connection.close()
        with suppress(PenstockError), self._server.transaction("It is left to penstock gc") as cursor:
            self._plan.dialect.drop(cursor, [self._table])

    @property
    def _table(self) -> StagingTable:
        return StagingTable(self._plan.schema, self._name, self._rows, self._bytes)

    def _send(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting).combine_chunks().to_batches()[0]
        self._waiting, self._waiting_bytes = [], 0
        number = pa.array([part_number(self._name, self._inserts)], pa.uint64())
        numbers = pa.repeat(number[0], rows.num_rows)
        body = _encoded(rows.append_column(PART, numbers))
        self._inserts += 1
        try:
            self._insert(rows.schema.names, body)
        except self._server.errors as error:
            raise self._server.failed(error, "The rows of this task were not staged") from None
        self._rows += rows.num_rows
        self._bytes += len(body)

    def _insert(self, names: list[str], body: bytes) -> None:
        if self._connection is None:
            self._connection = self._server.connect(COMMIT_TIMEOUT_S)
            self._create(self._connection)
            reach("write.file_open", self._batch_id)
        columns = ", ".join(map(quoted, (*names, PART)))
        settings = {**self._server.insert_settings, **_SETTINGS}
        given = ", ".join(f"{name} = {value}" for name, value in settings.items())
        sql = qualified(self._plan.schema, self._name)
        self._connection.send(f"INSERT INTO {sql} ({columns}) SETTINGS {given} FORMAT ArrowStream", body)

    def _create(self, connection: ClickHouseConnection) -> None:
        plan = self._plan
        columns = dict(zip(plan.staged_names, plan.sql_types, strict=True))
        dialect = cast("ClickHouseDialect", plan.dialect)
        address = ClickHouseAddress.parse(self._server.name)
        keeps_rows = plan.changes is not None
        dialect.create_staging(
            connection.cursor(), address, self._table, columns, self._query_id, keeps_rows=keeps_rows
        )


def _encoded(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _check(column: pa.Array, name: str, kind: str) -> None:
    """
    Args:
        kind: the type of the column; the types inside of nested values are those of new columns

    Raises:
        SchemaMismatchError: a date or a point in time, also inside of nested values, is none in ClickHouse.
    """
    data_type = column.type
    if pa.types.is_list(data_type) or pa.types.is_map(data_type):
        for values in _inside(column):
            if pa.types.is_nested(values.type) and values.null_count:
                raise SchemaMismatchError(
                    f"NULL inside of {name}, where ClickHouse has none. Filter these rows."
                )
            _check(values, name, kind)
    elif pa.types.is_date32(data_type):
        _check_range(column.view(pa.int32()), name, kind, 1)
    elif pa.types.is_timestamp(data_type):
        _check_range(column.view(pa.int64()), name, kind, _DAY_US)
        _check_fraction(column.view(pa.int64()), name, kind)


def _inside(column: pa.Array) -> list[pa.Array]:
    """The elements of arrays, or keys and items of maps."""
    if not pa.types.is_map(column.type):
        return [column.flatten()]
    first, end = column.offsets[0].as_py(), column.offsets[-1].as_py()  # of the rows of a slice
    return [part.slice(first, end - first) for part in (column.keys, column.items)]


def _check_range(numbers: pa.Array, name: str, kind: str, units_per_day: int) -> None:
    days = _DAYS_OF.get(kind.partition("(")[0], _DAYS)
    if kind.startswith("DateTime64(9"):
        days = _DAYS_OF_NANOSECONDS
    low, end = ((day - date(1970, 1, 1)).days * units_per_day for day in days)
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and (bounds["min"] < low or bounds["max"] >= end):
        raise SchemaMismatchError(
            f"A value in {name} is no {kind} in ClickHouse, which begins with {days[0]} and ends before "
            f"{days[1]}. Filter these rows, or cast the column to STRING in the query."
        )


def _check_fraction(microseconds: pa.Array, name: str, kind: str) -> None:
    digits = fraction_digits(kind)
    unit = 1 if digits is None else 10 ** max(6 - digits, 0)
    whole = pc.multiply(pc.divide(microseconds, unit), unit)
    if unit > 1 and not pc.all(pc.equal(whole, microseconds)).as_py():
        raise SchemaMismatchError(
            f"A point in time in {name} has a fraction of a second that {kind} does not store in ClickHouse. "
            "Round it in the query, e.g. with date_trunc('SECOND', ...)."
        )
