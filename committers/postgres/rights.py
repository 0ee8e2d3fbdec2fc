"""Checks of a plan that are Postgres' own: what uses a column, and the privileges of the user."""

from __future__ import annotations

from ..contract import Changes
from ..database.contract import Cursor
from ..database.layout import PlanOptions, TableMatch, TableState
from ..database.tombstones import Tombstones
from ..errors import AccessRefusedError, TableNotSupportedError
from .address import PostgresAddress

_USES = """
SELECT a.attname, pg_describe_object(d.classid, d.objid, d.objsubid)
FROM pg_depend d JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.refobjid = %(table)s::oid AND a.attname = ANY (%(columns)s)
    AND d.classid IN ('pg_rewrite'::regclass, 'pg_trigger'::regclass, 'pg_policy'::regclass)
UNION ALL
SELECT a.attname, 'the partition key'
FROM pg_partitioned_table p JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = ANY (p.partattrs)
WHERE p.partrelid = %(table)s::oid AND a.attname = ANY (%(columns)s)
UNION ALL
SELECT a.attname, 'the generated column ' || g.attname
FROM pg_attrdef f
    JOIN pg_attribute g ON g.attrelid = f.adrelid AND g.attnum = f.adnum AND g.attgenerated <> ''
    JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
        OR d.classid = 'pg_class'::regclass AND d.objid = g.attrelid AND d.objsubid = g.attnum
    JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid AND a.attnum <> g.attnum
WHERE g.attrelid = %(table)s::oid AND d.refobjid = g.attrelid AND a.attname = ANY (%(columns)s)
"""


def check_alterable(cursor: Cursor, address: PostgresAddress, table: TableState, match: TableMatch) -> None:
    """
    Raises:
        TableNotSupportedError: Postgres would refuse to give a column another type.
    """
    changes = match.changes
    old_names = {new: old for old, new in changes.renames}
    columns = [old_names.get(name, name) for name, _ in changes.types]
    if not columns:
        return
    uses = cursor.execute(_USES, {"table": table.table_id, "columns": columns}).fetchall()
    if uses:
        names = ", ".join(sorted({f"{what} uses {name!r}" for name, what in uses}))
        raise TableNotSupportedError(
            f"The columns of the {address.title} cannot get wider types: {names}. Nothing was "
            "written. Drop what uses them, widen the columns, and create it again; or cast the columns in "
            "the query."
        )


_RIGHTS = """
SELECT has_table_privilege(%(table)s::oid, 'INSERT'),
    has_table_privilege(%(table)s::oid, 'DELETE'),
    pg_has_role((SELECT relowner FROM pg_class WHERE oid = %(table)s::oid), 'USAGE'),
    has_table_privilege(%(fence)s, 'SELECT') AND has_table_privilege(%(fence)s, 'INSERT')
        AND has_table_privilege(%(fence)s, 'UPDATE'),
    has_schema_privilege(%(staging)s, 'CREATE'),
    has_table_privilege(%(table)s::oid, 'SELECT') AND has_table_privilege(%(table)s::oid, 'UPDATE'),
    has_database_privilege(current_database(), 'TEMPORARY'),
    has_table_privilege(%(tombstones)s, 'SELECT') AND has_table_privilege(%(tombstones)s, 'INSERT')
        AND has_table_privilege(%(tombstones)s, 'UPDATE') AND has_table_privilege(%(tombstones)s, 'DELETE')
"""


def check_rights(
    cursor: Cursor,
    address: PostgresAddress,
    table: TableState,
    fit: TableMatch,
    options: PlanOptions,
    tombstones: Tombstones | None,
) -> None:
    names = {
        "table": table.table_id,
        "fence": address.fence_sql,
        "staging": options.staging_schema or address.schema,
        "tombstones": None if tombstones is None else tombstones.sql,
    }
    row = cursor.execute(_RIGHTS, names).fetchone()
    assert row is not None
    inserts, deletes, owns, fences, stages, updates, has_temporary, remembers = row
    changes = options.mode if isinstance(options.mode, Changes) else None
    may_delete = options.mode == "overwrite" if changes is None else bool(changes.delete_when)
    missing = [
        what
        for has, what in (
            (inserts, f"INSERT on {address.sql}"),
            (
                deletes or not may_delete,
                f"DELETE on {address.sql}, to {'replace its' if changes is None else 'delete'} rows",
            ),
            (updates or changes is None, f"SELECT and UPDATE on {address.sql}, to replace rows"),
            (has_temporary or changes is None, "TEMPORARY on the database, for the last row of each key"),
            (
                remembers or tombstones is None,
                f"SELECT, INSERT, UPDATE and DELETE on {names['tombstones']}, for deleted keys",
            ),
            (owns or not (fit.new or fit.changes), f"ownership of {address.sql}, to add or change columns"),
            (fences, f"SELECT, INSERT and UPDATE on {address.fence_sql}"),
            (stages, f"CREATE on schema {names['staging']}, for staging tables"),
        )
        if not has
    ]
    if missing:
        raise AccessRefusedError(
            f"The user of the {address.title} lacks privileges: {'; '.join(missing)}. Nothing "
            "was written. Grant them (docs/postgres.md), or use another user in url."
        )
