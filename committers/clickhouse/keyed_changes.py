"""The changes by key of ClickHouse: rows of a ReplacingMergeTree. See `KeyedChanges`.

Nothing of the table is looked up or rewritten. The row with the greatest version of its key counts; of rows
with the same version, the one that came last. A deletion is a row whose column `DELETED` is 1. Readers use
FINAL.

- `lateRows=apply`: the version is the column `VERSION`, which a commit fills from the clock of the server.
  Rows of other writers get the time of their INSERT.
- `lateRows=ignore`: the version is the column of `orderBy`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..contract import Changes
from ..database.contract import Cursor
from ..database.keyed_changes import KeyedChanges
from ..database.layout import TableColumn, TableState
from ..errors import ConfigurationError, SchemaMismatchError, TableNotSupportedError
from .address import NAMES, ClickHouseAddress, literal, quoted
from .connection import NO_SUCH_COLUMN, ClickHouseError
from .table import DELETED, DELETED_TYPE, VERSION, VERSION_TYPE
from .types import is_version, without_null

REPLACING = "ReplacingMergeTree"
_TABLE = "SELECT engine, engine_full, sorting_key FROM system.tables WHERE database = %s AND name = %s"
_COLUMNS = """
SELECT name, type, default_kind, is_in_partition_key FROM system.columns WHERE database = %s AND table = %s
"""
_NAME = r"(?:`(?:[^`\\]|\\.|``)*`|\w+)"
_VERSION_AND_DELETED = re.compile(rf"{REPLACING}\(({_NAME}), ({_NAME})\)")
_LIST = re.compile(rf"\(?({_NAME}(?:, {_NAME})*)\)?")


class ClickHouseChanges(KeyedChanges):
    """See `KeyedChanges`."""

    names = NAMES

    def check_table(
        self, cursor: Cursor, address: ClickHouseAddress, table: TableState, changes: Changes
    ) -> None:
        if problem := next(_problems(cursor, address, changes), None):
            keys, version = ", ".join(map(quoted, changes.keys)), _version_of(changes)
            columns = f"{DELETED} {DELETED_TYPE}"
            if version == VERSION:
                columns = f"{VERSION} {VERSION_TYPE}, {columns}"
            raise TableNotSupportedError(
                f"The {address.title} cannot be changed by key: {problem}. Nothing was written. Let Penstock "
                f"create another table, or create it yourself with these columns and this engine, and copy "
                f"the rows:\n    {columns}\n"
                f"    ENGINE = {REPLACING}({quoted(version)}, {DELETED}) ORDER BY ({keys})"
            )

    # Statements -------------------------------------------------------------------------------------

    def differ(self, columns: Sequence[tuple[str, str]]) -> str:
        return " OR ".join(
            f"count(DISTINCT {one}) > 1 OR (count({one}) > 0 AND count({one}) < count(*))"
            for one in (self.told_apart(name, kind) for name, kind in columns)
        )

    def told_apart(self, expression: str, kind: str) -> str:
        """See `KeyedChanges`. ClickHouse counts 0.0 and -0.0 as two values, but also NaN with other bits."""
        is_float = without_null(kind).startswith("Float")
        return f"if(isNaN({expression}), nan, {expression})" if is_float else expression


def _version_of(changes: Changes) -> str:
    return changes.order_by[0] if changes.late_rows == "ignore" else VERSION


def _problems(cursor: Cursor, address: ClickHouseAddress, changes: Changes) -> Iterator[str]:
    names = (address.schema, address.table)
    ((engine, engine_full, sorting_key),) = cursor.execute(_TABLE, names).fetchall()
    columns = {name: rest for name, *rest in cursor.execute(_COLUMNS, names).fetchall()}
    if engine != REPLACING:
        yield f"its engine is {engine}, which keeps all rows of a key"
        return
    found = _VERSION_AND_DELETED.match(engine_full)
    version, deleted = map(_plain, found.groups()) if found else ("", "")
    if deleted != DELETED or columns[DELETED][:2] != ["UInt8", "MATERIALIZED"]:
        yield f"its engine does not know from a column {DELETED} {DELETED_TYPE} which rows are deleted"
    elif version != _version_of(changes):
        wanted, mode = _version_of(changes), changes.late_rows
        yield f"its engine takes {version!r} as the version of a row, and lateRows={mode} needs {wanted!r}"
    elif version == VERSION and columns[VERSION][:2] != ["UInt64", "MATERIALIZED"]:
        yield f"the type of its column {VERSION} is not {VERSION_TYPE}"
    if _names(sorting_key) != sorted(changes.keys):
        yield f"its sorting key is {sorting_key}, and must be the columns of keys"
    others = [name for name, (*_, in_partition) in columns.items() if in_partition]
    if others := [name for name in others if name not in changes.keys]:
        yield (
            f"its partitions depend on {', '.join(others)}, which is not in keys: rows of one key in several "
            "partitions do not replace each other"
        )


def _names(listed: str) -> list[str]:
    """The names in a key, sorted; empty if it has an expression."""
    found = _LIST.fullmatch(listed)
    return sorted(_plain(name) for name in re.findall(_NAME, found[1])) if found else []


def _plain(name: str) -> str:
    """A name without quotes."""
    if not name.startswith("`"):
        return name
    return re.sub(r"\\(.)|``", lambda match: match[1] or "`", name[1:-1])


# A new table ------------------------------------------------------------------------------------------


def replacing(
    columns: Sequence[TableColumn], keys: Sequence[str], order: str
) -> tuple[list[TableColumn], str]:
    """Return the columns and the engine of a new table that is changed by key.

    Args:
        columns: all of them Nullable, as far as they can be
        order: with late rows ignored, the column of `orderBy`; else empty

    Raises:
        SchemaMismatchError: no version of a row can have the type of this column.
    """
    named = {column.name.lower(): column for column in columns}
    version = named[order.lower()].name if order else VERSION
    if order and not is_version(kind := without_null(named[order.lower()].sql_type)):
        raise SchemaMismatchError(
            f"orderBy: {version!r} is {kind} in ClickHouse. With lateRows=ignore it must be an integer, a "
            "date or a timestamp: cast it in the query. Nothing was written."
        )
    required = {*keys, version}
    made = [
        replace(column, sql_type=without_null(column.sql_type)) if column.name in required else column
        for column in columns
    ]
    made += [] if order else [TableColumn(VERSION, VERSION_TYPE)]
    return [*made, TableColumn(DELETED, DELETED_TYPE)], f"{REPLACING}({quoted(version)}, {DELETED})"


def check_partitions(
    cursor: Cursor, expression: str, columns: Sequence[TableColumn], keys: Sequence[str]
) -> None:
    """
    Args:
        expression: of `partitionBy`

    Raises:
        ConfigurationError: it uses other columns than the keys.
    """
    kinds = {column.name: without_null(column.sql_type) for column in columns}
    values = ", ".join(f"defaultValueOfTypeName({literal(kinds[key])}) AS {quoted(key)}" for key in keys)
    try:
        cursor.execute(f"SELECT toTypeName(({expression})) FROM (SELECT {values})")
    except ClickHouseError as error:
        if error.code not in NO_SUCH_COLUMN:
            raise
        raise ConfigurationError(
            f"partitionBy={expression}: with writeMode=upsert it may only use the columns of keys, "
            f"{', '.join(keys)}: rows of one key in several partitions do not replace each other. Nothing "
            "was written."
        ) from None
