"""What a snapshot of a DuckLake does to the rows of a table, from `ducklake_snapshot_changes`.

Source: https://ducklake.select/docs/stable/specification/tables/ducklake_snapshot_changes
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ..streaming.commits import CommitKind

_TOKEN = re.compile(r'(\w+):(\d+|(?:"(?:[^"]|"")*"\.?)+)(?:,|$)')
_ADDS = {"inserted_into_table", "inlined_insert"}
_DELETES = {"deleted_from_table", "inlined_delete"}
_FLUSH = "inline_flush"
_MOVES = {"merge_adjacent", "rewrite_delete", "compacted_table"}
_NEITHER = {_FLUSH, *_MOVES, "altered_table", "dropped_table"}
"""Rows are in other files after these, and no others."""


def changes_of(made: str, table: int) -> frozenset[str]:
    """Return the changes of a table that a snapshot has made.

    Args:
        made: such as `inserted_into_table:1,created_table:"main"."x"`
        table: its id

    Raises:
        ValueError: it is not known what they do to rows.
    """
    found = frozenset(_of_table(made, table))
    if unknown := found - _ADDS - _DELETES - _NEITHER:
        raise ValueError(", ".join(sorted(unknown)))
    return found


def _of_table(made: str, table: int) -> Iterator[str]:
    place = 0
    while place < len(made):
        token = _TOKEN.match(made, place)
        if token is None:
            raise ValueError(made[place:])
        if token[2] == str(table):
            yield token[1]
        place = token.end()


def adds_rows(changes: frozenset[str]) -> bool:
    return not changes.isdisjoint(_ADDS)


def may_hide_deletions(changes: frozenset[str]) -> bool:
    """Return whether the catalog may not say which rows a snapshot that deletes has deleted: rows of the
    catalog that are deleted and flushed in the same transaction are forgotten, and those that are moved to
    other files are not known there.
    """
    return {"inlined_delete", _FLUSH} <= changes or not changes.isdisjoint(_MOVES)


def kind_of(changes: frozenset[str], has_deletions: Callable[[], bool]) -> CommitKind:
    """
    Args:
        has_deletions: returns whether the catalog has deletions of this snapshot. Only asked if rows of the
            catalog were flushed: that is also said to delete, and hides deletions in the same transaction.
    """
    is_delete = not changes.isdisjoint(_DELETES)
    if _FLUSH in changes:
        is_delete = "inlined_delete" in changes or has_deletions()
    if not is_delete:
        return CommitKind.ADDS
    return CommitKind.CHANGES if adds_rows(changes) else CommitKind.DELETES
