"""Tables as SQLAlchemy describes them: their columns, and the tables of Penstock. Runs anywhere.

A table that Penstock creates has its id in its comment. SQLite has no comments; there it is a comment in the
text of the CREATE statement, which SQLite keeps.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mssql
from sqlalchemy.engine import URL, Connection
from sqlalchemy.schema import SetTableComment
from sqlalchemy.types import TypeEngine, UserDefinedType

from ..database.layout import TableColumn, TableState
from .address import SqlAddress, qualified
from .backends import BACKENDS, Backend
from .types import DATETIME

_ID = re.compile(r"penstock table ([0-9a-f]{32})")
_SMALL_TYPES = {"INT2": "smallint", "INT4": "integer", "FLOAT4": "real"}
"""Names of types in SQLite, which stores numbers of any type with 64 bits. Only these names, which Penstock
gives, tell that the values are smaller.
"""


class _Named(UserDefinedType[Any]):
    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_given: Any) -> str:
        return self.name


_SQL_SERVER: Any = mssql  # its types have no annotations
_TYPES: Mapping[str, TypeEngine[Any]] = {
    "boolean": sa.Boolean(),
    "smallint": sa.SmallInteger().with_variant(_Named("INT2"), "sqlite"),
    "integer": sa.Integer().with_variant(_Named("INT4"), "sqlite"),
    "bigint": sa.BigInteger(),
    "real": sa.REAL().with_variant(_Named("FLOAT4"), "sqlite"),
    "double": sa.Double(),
    "text": sa.UnicodeText().with_variant(mssql.NVARCHAR(), "mssql"),
    "binary": sa.LargeBinary().with_variant(_SQL_SERVER.VARBINARY("max"), "mssql"),
    "date": sa.Date(),
    DATETIME: sa.DateTime(),
    "timestamp": sa.DateTime().with_variant(_SQL_SERVER.DATETIME2(6), "mssql"),
    "timestamptz": sa.DateTime(timezone=True).with_variant(_SQL_SERVER.DATETIMEOFFSET(6), "mssql"),
}
_SIZE = re.compile(r"(\w+)\((\d+)(?:,(\d+))?\)")


def column_type(kind: str) -> TypeEngine[Any]:
    """
    Args:
        kind: a type of `types`, or `varchar(n)`
    """
    size = _SIZE.fullmatch(kind)
    if size is None:
        return _TYPES[kind]
    if size[1] == "decimal":
        return sa.Numeric(int(size[2]), int(size[3] or 0))
    return sa.Unicode(int(size[2]))


def kind_of(given: Any, backend: Backend) -> str:
    """The type of `types` of a column; for any other, what SQLAlchemy calls it, which holds no rows."""
    if isinstance(given, sa.Boolean):
        return "boolean"
    if isinstance(given, sa.Integer):
        if backend.is_file or isinstance(given, sa.BigInteger):
            return "bigint"
        return "smallint" if isinstance(given, sa.SmallInteger) else "integer"
    if isinstance(given, sa.Float):
        return "real" if isinstance(given, sa.REAL) and not backend.is_file else "double"
    if isinstance(given, sa.Numeric) and given.precision and given.precision <= backend.decimal_digits_max:
        return f"decimal({given.precision},{given.scale or 0})"
    if isinstance(given, sa.String):
        return "text" if backend.is_file or _keeps_texts(given, backend) else f"{given!s:.100}"
    if isinstance(given, sa.LargeBinary | sa.VARBINARY) and not isinstance(given.length, int):
        return "binary"
    if isinstance(given, sa.Date):
        return "date"
    if isinstance(given, sa.DateTime) and _has_microseconds(given, backend):
        if not backend.has_zones:
            return DATETIME
        return "timestamptz" if given.timezone or isinstance(given, mssql.DATETIMEOFFSET) else "timestamp"
    return f"{given!s:.100}"


def _keeps_texts(given: Any, backend: Backend) -> bool:
    """With a length, a server may cut or add spaces. In SQL Server other texts have few characters."""
    if isinstance(given, sa.Enum | sa.CHAR | sa.NCHAR) or given.length:
        return False
    return backend != BACKENDS["mssql"] or isinstance(given, sa.NVARCHAR | sa.UnicodeText)


def _has_microseconds(given: Any, backend: Backend) -> bool:
    if backend == BACKENDS["mssql"] and not isinstance(given, mssql.DATETIME2 | mssql.DATETIMEOFFSET):
        return False
    precision = getattr(given, "precision", None)
    return precision is None or int(precision) >= 6


# Existing tables ----------------------------------------------------------------------------------


def names_in(connection: Connection, schema: str) -> set[str]:
    """Return the names of all tables, without views."""
    return set(sa.inspect(connection).get_table_names(schema or None))


def comment_of(connection: Connection, schema: str, table: str) -> str:
    """Return the comment of a table; for SQLite the statement that has created it."""
    if connection.dialect.name == "sqlite":
        select = sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(:name)")
        return str(connection.execute(select, {"name": table}).scalar_one_or_none() or "")
    return str(sa.inspect(connection).get_table_comment(table, schema or None)["text"] or "")


def load_table(connection: Connection, address: SqlAddress) -> TableState | None:
    """Load the table; None if it does not exist."""
    inspector, schema = sa.inspect(connection), address.schema or None
    fold = str.lower if address.backend.is_file else str
    table = next((name for name in inspector.get_table_names(schema) if fold(name) == address.table), None)
    if table is None:
        is_view = address.table in map(fold, inspector.get_view_names(schema))
        return TableState("", (), "it is a view") if is_view else None
    keys = inspector.get_pk_constraint(table, schema)["constrained_columns"]
    found = [_column(one, keys, address.backend) for one in inspector.get_columns(table, schema)]
    if address.backend.is_file:
        select = sa.text("SELECT name, upper(type) FROM pragma_table_xinfo(:name)")
        small = {name: _SMALL_TYPES.get(kind) for name, kind in connection.execute(select, {"name": table})}
        found = [replace(one, sql_type=small[one.name] or one.sql_type) for one in found]
    comment = comment_of(connection, address.schema, table)
    is_virtual = address.backend.is_file and comment.upper().startswith("CREATE VIRTUAL")
    own = _ID.search(comment)
    return TableState(own[1] if own else "", tuple(found), "it is a virtual table" if is_virtual else "")


def _column(given: Any, keys: Sequence[str], backend: Backend) -> TableColumn:
    name, is_computed = given["name"], given.get("computed") is not None
    identity = given.get("identity")
    is_always = identity is not None and bool(identity.get("always"))
    kind = kind_of(given["type"], backend)
    is_row_id = backend.is_file and list(keys) == [name] and str(given["type"]).upper() == "INTEGER"
    is_filled = given.get("default") is not None or identity is not None or is_computed or is_row_id
    is_filled |= given.get("autoincrement") is True
    return TableColumn(name, kind, not given["nullable"], is_filled, is_computed or is_always, name in keys)


# New tables ---------------------------------------------------------------------------------------


def create_table(
    connection: Connection, schema: str, table: str, definition: Sequence[str], comment: str
) -> None:
    """Create a table with a comment."""
    is_file = connection.dialect.name == "sqlite"
    note = f"/* {comment.replace('*/', '* /')} */ " if is_file else ""
    statement = f"CREATE TABLE {qualified(schema, table)} ({note}{', '.join(definition)})"
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    if not is_file:
        made = sa.Table(table, sa.MetaData(), schema=schema or None, quote=True, quote_schema=True)
        made.comment = comment
        connection.execute(SetTableComment(made))


def new_id() -> str:
    """The comment of a new table."""
    return f"penstock table {uuid.uuid4().hex}"


def type_sql(kind: str, backend_name: str) -> str:
    """A type in SQL."""
    return str(column_type(kind).compile(dialect=URL.create(backend_name).get_dialect()()))
