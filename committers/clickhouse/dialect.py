"""The statements of ClickHouse. See `Dialect`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..contract import Changes
from ..database.address import SqlNames
from ..database.content import Manifests
from ..database.contract import Cursor, NumberedRows, TypeRules
from ..database.dialect import Dialect
from ..database.keyed_changes import KeyedChanges
from ..database.layout import AlterTable, PlanOptions, TableColumn, TableMatch, TableState
from ..database.staging import PREFIX, StagingComment, StagingTable
from . import table
from . import types as rules
from .address import NAMES, ClickHouseAddress, qualified, quoted
from .fence import ClickHouseFence
from .keyed_changes import ClickHouseChanges, check_partitions, replacing
from .table import OWN, PART, PART_TYPE
from .times import server_time

_STAGED = """
SELECT database, name, coalesce(total_bytes, 0), comment FROM system.tables
WHERE database = %s AND startsWith(name, %s) AND engine IN ('MergeTree', 'ReplacingMergeTree')
"""


@dataclass(frozen=True)  # no slots: it calls super()
class ClickHouseDialect(Dialect):
    """See `Dialect`.

    Args:
        sorting_key: of a new table to which rows are appended, as SQL; empty: none
        partition_by: partitions of a new table, as SQL; empty: none
        order: with late rows ignored, the column of `orderBy`; else empty
    """

    kind: ClassVar[str] = "clickhouse"
    name: ClassVar[str] = "ClickHouse"
    id_name: ClassVar[str] = "UUID"
    types: ClassVar[TypeRules] = rules
    names: ClassVar[SqlNames] = NAMES
    manifests: ClassVar[Manifests] = Manifests(
        "clickhouse", "ClickHouse table", rules.is_staged_as, ClickHouseAddress.parse
    )
    row_ids: ClassVar[NumberedRows] = NumberedRows(PART)
    fence: ClassVar[ClickHouseFence] = ClickHouseFence()
    changes: ClassVar[KeyedChanges | None] = ClickHouseChanges()
    has_transactional_ddl: ClassVar[bool] = False

    sorting_key: str = ""
    partition_by: str = ""
    order: str = ""

    # Names ------------------------------------------------------------------------------------------

    def new_name_problem(self, name: str) -> str:
        return ""

    def name_problem(self, name: str, encoding: str) -> str:
        if name.lower() in OWN:
            return f"{name!r} is a column that Penstock fills: rename it"
        return super().name_problem(name, encoding)

    # Tables -----------------------------------------------------------------------------------------

    def load(self, cursor: Cursor, address: ClickHouseAddress) -> TableState | None:
        return table.load(cursor, address)

    def lock_creation(self, cursor: Cursor, address: ClickHouseAddress) -> None:
        """Nothing: `create` finds a table that another process has created."""

    def create(
        self, cursor: Cursor, address: ClickHouseAddress, columns: Sequence[TableColumn], keys: Sequence[str]
    ) -> None:
        engine, made = "MergeTree", [*columns, TableColumn(PART, PART_TYPE)]
        order = f"({self.sorting_key})" if self.sorting_key else "tuple()"
        if keys:
            made, engine = replacing(columns, keys, self.order)
            order = f"({', '.join(map(quoted, keys))})"
            if self.partition_by:
                check_partitions(cursor, self.partition_by, columns, keys)
        parts = [f"{quoted(column.name)} {column.sql_type}" for column in made]
        partitions = f" PARTITION BY ({self.partition_by})" if self.partition_by else ""
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {address.sql} ({', '.join(parts)}) ENGINE = {engine}{partitions} "
            f"ORDER BY {order} SETTINGS allow_nullable_key = 1"
        )

    def lock_table(self, cursor: Cursor, address: ClickHouseAddress) -> None:
        """Nothing: ClickHouse does not lock tables. Parts do not fit a table that was altered meanwhile."""

    def alter(self, address: ClickHouseAddress, wanted: AlterTable) -> Iterator[str]:
        added = [f"ADD COLUMN {quoted(name)} {kind}" for name, kind in wanted.added]
        if added:
            yield f"ALTER TABLE {address.sql} {', '.join(added)}"

    def primary_key(self, cursor: Cursor, address: ClickHouseAddress) -> Sequence[str]:
        return ()

    # Staging tables ---------------------------------------------------------------------------------

    def create_staging(
        self,
        cursor: Cursor,
        address: ClickHouseAddress,
        staged: StagingTable,
        columns: dict[str, str],
        query_id: str,
        *,
        keeps_rows: bool,
    ) -> None:
        """Create the staging table of a task, with the table's columns and those that it will get.

        Args:
            keeps_rows: see `create_like`
        """
        comment = str(StagingComment(server_time(cursor), query_id))
        table.create_like(cursor, address, staged.name, comment, keeps_rows=keeps_rows)
        table.add_missing(cursor, staged.schema, staged.name, {**columns, PART: PART_TYPE})

    def exist(self, cursor: Cursor, tables: Sequence[StagingTable]) -> list[bool]:
        there = {
            (schema, name)
            for schema in {one.schema for one in tables}
            for name in table.exist(cursor, schema, [one.name for one in tables if one.schema == schema])
        }
        return [(one.schema, one.name) in there for one in tables]

    def drop(self, cursor: Cursor, tables: Sequence[StagingTable]) -> int:
        there = self.exist(cursor, tables)
        for one, is_there in zip(tables, there, strict=True):
            if is_there:
                cursor.execute(f"DROP TABLE IF EXISTS {qualified(one.schema, one.name)}")
        return sum(there)

    def staging_comments(
        self, cursor: Cursor, address: ClickHouseAddress
    ) -> Iterable[tuple[str, str, int, str]]:
        """See `Dialect`. Without the tables of committed batches, whose rows are still to be moved."""
        found = cursor.execute(_STAGED, (address.schema, PREFIX)).fetchall()
        kept = {row.rows_in for row in self.fence.rows(cursor, address)}
        return [
            (schema, name, int(size), comment) for schema, name, size, comment in found if name not in kept
        ]

    # Checks of a plan -------------------------------------------------------------------------------

    def check_rights(
        self,
        cursor: Cursor,
        address: ClickHouseAddress,
        found: TableState,
        match: TableMatch,
        options: PlanOptions,
        changes: Changes | None,
    ) -> None:
        """Nothing: the first statement that is not allowed names the privilege."""


DIALECT = ClickHouseDialect()


def part_number(name: str, number: int) -> int:
    """Return the value of `PART` for an INSERT.

    Args:
        name: of the staging table, unique for each attempt
        number: of the INSERT in it
    """
    return int.from_bytes(hashlib.sha256(f"{name} {number}".encode()).digest()[:8], "big") or 1
