"""The current state of a Postgres table."""

from __future__ import annotations

from ..database.contract import Cursor
from ..database.layout import TableColumn, TableState
from .address import PostgresAddress

_TABLE = """
SELECT c.oid::text, pg_get_userbyid(c.relowner),
    CASE
        WHEN c.relkind NOT IN ('r', 'p') THEN 'it is no table'
        WHEN c.relpersistence <> 'p' THEN
            'it is UNLOGGED or TEMPORARY, so a crash of the server would empty it while the token stays: '
            'run ALTER TABLE ... SET LOGGED'
        WHEN EXISTS (SELECT FROM pg_rewrite WHERE ev_class = c.oid) THEN
            'it has rules, which may put rows elsewhere: drop them'
        WHEN row_security_active(c.oid) THEN
            'row security hides rows from this user: grant BYPASSRLS, or let its owner write it'
        ELSE coalesce((
            SELECT 'its partition ' || p.oid::regclass || ' is UNLOGGED or a foreign table, which may lose '
                'rows while the token stays: detach it, or run ALTER TABLE ... SET LOGGED'
            FROM pg_partition_tree(c.oid) AS t JOIN pg_class p ON p.oid = t.relid
            WHERE p.relkind NOT IN ('r', 'p') OR p.relpersistence <> 'p'
            LIMIT 1
        ), '')
    END,
    coalesce((
        WITH RECURSIVE tree (oid) AS (
            SELECT c.oid UNION SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = tree.oid
        )
        SELECT format('%%s of %%s', tgname, tgrelid::regclass) FROM pg_trigger JOIN tree ON tgrelid = tree.oid
        WHERE tgtype & 11 = 11 AND tgenabled <> 'D'  -- BEFORE DELETE FOR EACH ROW
        LIMIT 1
    ), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), attnotnull,
    atthasdef OR attidentity <> '', attgenerated <> '' OR attidentity = 'a',
    EXISTS (SELECT FROM pg_index WHERE indrelid = attrelid AND indisprimary AND attnum = ANY (indkey))
FROM pg_attribute WHERE attrelid = %s::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""

SYSTEM_COLUMNS = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")


def load_if_there(cursor: Cursor, address: PostgresAddress) -> TableState | None:
    """Load the table; None if it does not exist."""
    row = cursor.execute(_TABLE, (address.schema, address.table)).fetchone()
    if row is None:
        return None
    oid, owner, unsupported, delete_trigger = row
    columns = tuple(TableColumn(*column) for column in cursor.execute(_COLUMNS, (oid,)).fetchall())
    return TableState(oid, columns, unsupported, owner, delete_trigger)
