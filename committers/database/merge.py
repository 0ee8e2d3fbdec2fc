"""Merges many batches for a table into one manifest, which one transaction commits. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..contract import Changes, Manifest
from .content import Manifests, TableContent
from .layout import ColumnChanges

TABLES_MAX = 500
"""Staging tables per delivery. In Postgres each takes up to three locks until the transaction ends, and the
server has 64 for each allowed connection, 6,400 by default.
"""
BYTES_MAX = 1024**3
"""Size limit of the rows of one delivery, as they were sent: roughly their size in the write-ahead log of one
transaction.
"""


def mergeable(manifests: Iterable[Manifest], kind: Manifests) -> list[Manifest]:
    """Return the longest prefix that can be one delivery: same table, same columns, same changes.

    If the columns change within a backlog, one delivery ends there and the next begins. A delivery has at
    most `TABLES_MAX` staging tables and moves at most `BYTES_MAX` bytes, unless a single batch has more.
    """
    taken: list[Manifest] = []
    shape, tables, size_bytes = None, 0, 0
    for manifest in manifests:
        content = kind.decode(manifest)
        tables += len(content.staged)
        size_bytes = manifest.size_bytes + (0 if content.mode == "overwrite" else size_bytes)
        if taken and (_shape(content) != shape or tables > TABLES_MAX or size_bytes > BYTES_MAX):
            break
        shape = _shape(content)
        taken.append(manifest)
    return taken


def merge(manifests: Sequence[Manifest], kind: Manifests) -> Manifest:
    """Return one manifest with the same effect on the table as these, committed one after the other.

    A batch that overwrites the table makes all earlier ones unnecessary.

    Args:
        manifests: of consecutive pending batches of one stream, oldest first, all of one shape
    """
    contents = [kind.decode(manifest) for manifest in manifests]
    overwrites = [number for number, content in enumerate(contents) if content.mode == "overwrite"]
    first_kept = overwrites[-1] if overwrites else 0
    whole = replace(
        contents[-1],
        mode="overwrite" if overwrites else contents[-1].mode,
        new_columns=tuple(dict.fromkeys(name for content in contents for name in content.new_columns)),
        changes=_changes(contents),
        staged=tuple(table for content in contents[first_kept:] for table in content.staged),
        needless=tuple(table for content in contents[:first_kept] for table in content.staged),
    )
    return kind.build(manifests[-1].batch, whole).merging(manifests)


def _changes(contents: Sequence[TableContent]) -> ColumnChanges:
    """Batches that were planned before the first one is committed all list its changes."""
    every = [content.changes for content in contents]
    return ColumnChanges(
        tuple(dict.fromkeys(one for changes in every for one in changes.types)),
        tuple(dict.fromkeys(one for changes in every for one in changes.relaxed)),
        tuple(dict.fromkeys(one for changes in every for one in changes.renames)),
    )


def _shape(content: TableContent) -> tuple[object, ...]:
    changes = content.mode if isinstance(content.mode, Changes) else None
    return content.table_id, content.staged_columns, changes, content.is_prepared
