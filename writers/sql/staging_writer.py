"""Loads rows into staging tables of `penstock.sql`, with INSERT. Executors only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.database.staging import StagingTable
from ...committers.errors import SchemaMismatchError
from ..database.staging_writer import StagingWriters
from ..database.value_checks import check_years
from ..parquet.columns import is_string

if TYPE_CHECKING:
    from ...committers.sql.backends import Backend
    from ...committers.sql.dialect import SqlDialect


@dataclass(frozen=True, slots=True)
class PythonRows:
    """The columns of a batch, with each value as drivers take it."""

    columns: tuple[list[Any], ...]
    size: int
    """In bytes, as in Arrow."""


@dataclass(frozen=True, slots=True)
class SqlStagingWriters(StagingWriters):
    """See `StagingWriters`. Where one transaction writes at a time, a task ends its own after each batch of
    rows. Then a task that dies leaves a part of its staging table, which no manifest lists.
    """

    @property
    def sql_dialect(self) -> SqlDialect:
        return cast("SqlDialect", self.dialect)

    def check(self, rows: pa.RecordBatch) -> None:
        """See `StagingWriters`. `encode` checks all."""

    def encode(self, rows: pa.RecordBatch) -> PythonRows:
        backend = self.sql_dialect.backend
        columns = zip(rows.columns, rows.schema.names, strict=True)
        return PythonRows(tuple(_values(array, name, backend) for array, name in columns), rows.nbytes)

    def create(self, cursor: Any, staged: StagingTable, query_id: str) -> None:
        columns = list(zip(self.staged_names, self.sql_types, strict=True))
        self.sql_dialect.create_staging(cursor, staged, columns, query_id)

    def load(self, connection: Any, staged: StagingTable, rows: PythonRows, count: int) -> None:
        """See `StagingWriters`."""
        dialect = self.sql_dialect
        names = ", ".join(map(dialect.quoted, (*self.staged_names, dialect.row_ids.column)))
        places = ", ".join(["%s"] * (len(rows.columns) + 1))
        insert = f"INSERT INTO {dialect.staged_sql(staged)} ({names}) VALUES "
        numbers = range(staged.rows, staged.rows + count)
        values = zip(*rows.columns, numbers, strict=True)
        connection.cursor().executemany(f"{insert.replace('%', '%%')}({places})", values)
        if dialect.backend.is_file:
            connection.commit()


def _values(array: pa.Array, column: str, backend: Backend) -> list[Any]:
    """
    Raises:
        SchemaMismatchError: names the column with a value that the database cannot store.
    """
    data_type = array.type
    if pa.types.is_floating(data_type):
        _check_numbers(array, column, backend)
    elif pa.types.is_temporal(data_type):
        check_years(array, column)
        if pa.types.is_timestamp(data_type) and not backend.has_zones:
            array = array.view(pa.timestamp("us"))
        if backend.is_file:
            array = array.cast(pa.string())
    elif pa.types.is_decimal(data_type) and backend.is_file:
        array = array.cast(pa.string())
    elif is_string(data_type) and not backend.stores_nul:
        _check_texts(array, column, backend)
    return cast("list[Any]", array.to_pylist())


def _check_texts(array: pa.Array, column: str, backend: Backend) -> None:
    if pc.any(pc.match_substring(array, "\0")).as_py():
        raise SchemaMismatchError(
            f"A text in {column} has a NUL character, which {backend.title} cannot store. Remove it in the "
            f"query, e.g. with replace({column}, char(0), '')."
        )


def _check_numbers(array: pa.Array, column: str, backend: Backend) -> None:
    if not backend.refused_numbers:
        return
    is_refused = pc.is_nan(array) if backend.refused_numbers == "NaN" else pc.invert(pc.is_finite(array))
    if pc.any(is_refused).as_py():
        raise SchemaMismatchError(
            f"A number in {column} is {backend.refused_numbers}, which {backend.title} cannot store. Replace "
            f"it in the query, e.g. with nanvl({column}, NULL), or cast the column to STRING."
        )
