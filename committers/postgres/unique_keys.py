"""Checks that a unique index of a table tells which of its rows has a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..database.contract import Cursor, TableAddress
from ..errors import TableNotSupportedError
from .address import quoted

_UNIQUE = """
SELECT c.relname,
    ARRAY(
        SELECT coalesce(a.attname::text, '')
        FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, n)
        LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum AND k.attnum > 0
        WHERE k.n <= i.indnkeyatts
    ),
    i.indpred IS NOT NULL, NOT i.indimmediate, NOT i.indisvalid,
    EXISTS (
        SELECT FROM unnest(i.indcollation::oid[]) AS used (oid) JOIN pg_collation l ON l.oid = used.oid
        WHERE NOT l.collisdeterministic
    )
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = %s::regclass AND i.indisunique
ORDER BY c.relname
"""


def check_unique(cursor: Cursor, table: str, address: TableAddress, keys: Sequence[str]) -> None:
    """Check that the table has at most one row of each key, by an index that `ON CONFLICT` can use.

    Args:
        table: its OID, or its name in SQL
        keys: columns of the table

    Raises:
        TableNotSupportedError: it has no such index.
    """
    problems = []
    for name, columns, *flags in cursor.execute(_UNIQUE, (table,)).fetchall():
        if sorted(columns) != sorted(keys):
            continue
        found = list(_problems(flags))
        if not found:
            return
        problems.append(f"{quoted(name)} {' and '.join(found)}")
    listed = ", ".join(map(quoted, keys))
    why = f" ({'; '.join(problems)})" if problems else ""
    raise TableNotSupportedError(
        f"The {address.title} has no unique index over exactly the columns of keys, {listed}"
        f"{why}. Nothing was written. Create one:\n"
        f"    CREATE UNIQUE INDEX ON {address.sql} ({listed});\n"
        "or give the columns of its primary key as keys."
    )


def _problems(flags: Sequence[bool]) -> Iterator[str]:
    partial, deferrable, invalid, by_language = flags
    if partial:
        yield "is for some rows only (WHERE)"
    if deferrable:
        yield "is DEFERRABLE"
    if invalid:
        yield "is not valid: REINDEX it"
    if by_language:
        yield "has a nondeterministic collation, for which different texts are equal"
