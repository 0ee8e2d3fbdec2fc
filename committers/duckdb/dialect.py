"""The statements of DuckDB. See `Dialect`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from ..contract import Changes, Mode
from ..database.content import Manifests
from ..database.contract import Cursor, NumberedRows, TypeRules
from ..database.layout import AlterTable, PlanOptions, TableColumn, TableMatch, TableState
from ..database.moving import RowMover
from ..database.refused_rows import OneRefusedTable
from ..database.staging import ROW, StagingTable
from ..errors import RetryableError, TableNotSupportedError
from . import staged_files, table
from . import types as rules
from .address import NAMES, STAGING, DuckDbAddress, literal, quoted, staging_folder
from .fence import DuckDbFence
from .keyed_changes import DuckDbChanges
from .rows import DuckDbRows


class DuckDbDialect(OneRefusedTable):
    """See `Dialect`. Files take the place of staging tables, see `staged_files`."""

    kind = "duckdb"
    name = "DuckDB"
    types: ClassVar[TypeRules] = rules
    names = NAMES
    manifests = Manifests(kind, "DuckDB table", rules.is_staged_as, DuckDbAddress.parse)
    fence = DuckDbFence()
    row_ids = NumberedRows(ROW)
    changes = DuckDbChanges()
    has_staging_files = True
    ignores_case = True

    # Names ------------------------------------------------------------------------------------------

    def staged_sql(self, staged: StagingTable) -> str:
        file = literal(f"/{staged_files.relative_path(staged)}")
        return f"read_parquet(getvariable('{STAGING}') || {file}, hive_partitioning = false)"

    def new_name_problem(self, name: str) -> str:
        return ""

    # Tables -----------------------------------------------------------------------------------------

    def load(self, cursor: Cursor, address: DuckDbAddress) -> TableState | None:
        return table.load_if_there(cursor, address)

    def lock_creation(self, cursor: Cursor, address: DuckDbAddress) -> None:
        """Nothing: no other process has the file open."""

    def create(
        self, cursor: Cursor, address: DuckDbAddress, columns: Sequence[TableColumn], keys: Sequence[str]
    ) -> None:
        parts = ", ".join(f"{quoted(column.name)} {column.sql_type}" for column in columns)
        cursor.execute(f"CREATE TABLE {address.sql} ({parts})")

    def identified(self, cursor: Cursor, address: DuckDbAddress, found: TableState) -> TableState:
        return table.identified(cursor, address, found)

    def lock_table(self, cursor: Cursor, address: DuckDbAddress) -> None:
        """Nothing: no other process has the file open. A transaction of this process that alters the table
        lets one of the two fail.
        """

    def alter(self, address: DuckDbAddress, wanted: AlterTable) -> Iterator[str]:
        change = f"ALTER TABLE {address.sql}"
        for old, name in wanted.renames:
            yield f"{change} RENAME COLUMN {quoted(old)} TO {quoted(name)}"
        for name, kind in wanted.added:
            yield f"{change} ADD COLUMN {quoted(name)} {kind}"
        for name, kind in wanted.types:
            yield f"{change} ALTER COLUMN {quoted(name)} TYPE {kind}"
        for name in wanted.relaxed:
            yield f"{change} ALTER COLUMN {quoted(name)} DROP NOT NULL"

    def primary_key(self, cursor: Cursor, address: DuckDbAddress) -> Sequence[str]:
        return table.primary_key(cursor, address)

    def arrow_rows(self, cursor: Any, query: str, schema: pa.Schema) -> pa.RecordBatch:
        rows: pa.Table = cursor.arrow(query)
        columns = [column.cast(field.type) for column, field in zip(rows.columns, schema, strict=True)]
        return (
            pa.Table.from_arrays(columns, schema=schema).combine_chunks().to_batches()[0]
            if rows
            else (pa.RecordBatch.from_pylist([], schema=schema))
        )

    # Files of tasks ---------------------------------------------------------------------------------

    def exist(self, cursor: Cursor, tables: Sequence[StagingTable]) -> list[bool]:
        return staged_files.exist(cursor.connection.staging, tables)

    def drop(self, cursor: Cursor, tables: Sequence[StagingTable]) -> int:
        try:
            return staged_files.delete(cursor.connection.staging, tables)
        except OSError as error:
            raise RetryableError(f"The files of tasks cannot be deleted: {error}.") from error

    def staging_comments(self, cursor: Cursor, address: DuckDbAddress) -> Iterable[tuple[str, str, int, str]]:
        return staged_files.listed(staging_folder(address.path))

    # Checks of a plan -------------------------------------------------------------------------------

    def check_alterable(
        self, cursor: Cursor, address: DuckDbAddress, found: TableState, match: TableMatch
    ) -> None:
        changes = match.changes
        if not changes:
            return
        wanted = AlterTable(changes.renames, (), changes.types, changes.relaxed)
        problem = cursor.connection.problem(self.alter(address, wanted))
        if problem:
            raise TableNotSupportedError(
                f"DuckDB cannot change columns of the {address.title}: {problem}. Nothing was written. Drop "
                "what depends on the column, such as an index, or change the query."
            )

    def check_rights(
        self,
        cursor: Cursor,
        address: DuckDbAddress,
        found: TableState,
        match: TableMatch,
        options: PlanOptions,
        changes: Changes | None,
    ) -> None:
        """Nothing: a database in a file has no users, and it is open for writing."""

    # In the commit ----------------------------------------------------------------------------------

    def mover_of(self, mode: Mode) -> Callable[..., RowMover]:
        return DuckDbRows


DIALECT = DuckDbDialect()
