"""Checks that a unique index of a table tells which of its rows has a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..database.contract import Cursor
from ..errors import TableNotSupportedError
from .address import MySqlAddress, quoted
from .types import text_of

_UNIQUE = """
SELECT s.index_name, s.column_name, s.sub_part, c.column_type, c.collation_name
FROM information_schema.statistics s
LEFT JOIN information_schema.columns c
    ON c.table_schema = s.table_schema AND c.table_name = s.table_name AND c.column_name = s.column_name
WHERE s.table_schema = %s AND s.table_name = %s AND s.non_unique = 0
ORDER BY s.index_name, s.seq_in_index
"""
EXACT = ("_nopad_bin", "_0900_bin")
"""Endings of the collations for which only equal texts are equal: others ignore case or accents, or spaces at
the end.
"""


def check_unique(cursor: Cursor, address: MySqlAddress, keys: Sequence[str]) -> None:
    """Check that the table has at most one row of each key.

    Args:
        keys: columns of the table

    Raises:
        TableNotSupportedError: it has no such index.
    """
    indexes: dict[str, list[tuple[Any, ...]]] = {}
    for index, *column in cursor.execute(_UNIQUE, (address.schema, address.table)).fetchall():
        indexes.setdefault(text_of(index), []).append(tuple(map(text_of, column)))
    problems = []
    for index, columns in indexes.items():
        if sorted(name or "" for name, *_ in columns) != sorted(keys):
            continue
        found = [problem for column in columns for problem in _problems(*column)]
        if not found:
            return
        problems.append(f"{quoted(index)}: {' and '.join(found)}")
    listed = ", ".join(map(quoted, keys))
    why = f" ({'; '.join(problems)})" if problems else ""
    raise TableNotSupportedError(
        f"The {address.title} has no unique index over exactly the columns of keys, {listed}{why}. Nothing "
        f"was written. Create one:\n    ALTER TABLE {address.sql} ADD UNIQUE ({listed});\n"
        "or give the columns of its primary key as keys."
    )


def _problems(name: Any, sub_part: Any, kind: Any, collation: Any) -> Iterator[str]:
    if sub_part is not None:
        yield f"it has only the beginning of {name!r}"
    elif kind is not None and kind.endswith(("text", "blob")):
        yield f"{name!r} is {kind}: give it a length, as varchar(255)"
    if collation and not collation.endswith(EXACT):
        yield (
            f"different texts are equal in the collation {collation} of {name!r}: run ALTER TABLE ... MODIFY "
            f"{quoted(name)} {kind} COLLATE utf8mb4_nopad_bin, in MySQL utf8mb4_0900_bin"
        )
