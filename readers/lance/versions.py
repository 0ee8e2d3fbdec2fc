"""What one version of a Lance table has, for streams.

Measured with pylance 14: a version never changes, and lists all fragments of the table. The id of a fragment
is not used again, also not after an overwrite or a restore, but the id of a column that was dropped is. A
version says which operation has made it; which rows that changes follows from the version before. Tables have
no id, but each data file has a random name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from ...committers.lance.library import transaction_of
from ..arrow_fields import readable_field
from ..streaming.columns import ArrowColumn
from .table import time_of, unreadable

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata
    from lance.lance.schema import LanceField

Fragments: TypeAlias = "Mapping[int, FragmentMetadata]"
"""By their ids, older ones first."""

ColumnIds: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""Names of columns, with the ids of the column and of all fields inside of it."""


class LanceVersion:
    """One version of a table."""

    def __init__(self, table: LanceDataset) -> None:
        self._table = table

    @property
    def number(self) -> int:
        return int(self._table.version)

    @property
    def at(self) -> datetime:
        """When it was committed."""
        return time_of(self._table.get_version())

    @property
    def shown(self) -> str:
        return f"Version {self.number} of the Lance table {self._table.uri}"

    @cached_property
    def fragments(self) -> Fragments:
        found = [fragment.metadata for fragment in self._table.get_fragments()]
        return {one.id: one for one in sorted(found, key=lambda one: one.id)}

    @cached_property
    def columns(self) -> Mapping[int, ArrowColumn]:
        """By their ids."""
        fields = {one.name: readable_field(one) for one in self._table.schema}
        return {
            one.id(): ArrowColumn(one.name(), fields[one.name()].type, not fields[one.name()].nullable)
            for one in self._table.lance_schema.fields()
        }

    def ids(self, names: Collection[str]) -> ColumnIds:
        """Return those of these columns that the version has."""
        found = [one for one in self._table.lance_schema.fields() if one.name() in names]
        return tuple((one.name(), tuple(_ids(one))) for one in found)

    @cached_property
    def _transaction(self) -> tuple[str, type | None]:
        """The id of what has made the version, and its operation; None: it does not say."""
        try:
            return transaction_of(self._table)
        except Exception as error:
            raise unreadable(self.shown, error) from error

    @property
    def operation(self) -> type | None:
        """The library's class of the operation that has made the version; None: it does not say."""
        return self._transaction[1]

    @cached_property
    def mark(self) -> int:
        """A number that a version of another table does not have. It says all of the fragments."""
        for fragments, mark in self._marks():
            if fragments == len(self.fragments):
                return mark
        return _number(hashlib.sha256(f"no fragments, {self._transaction[0]}".encode()))

    def up_to(self, mark: int) -> Fragments | None:
        """Return the fragments of an older version that has a mark, if this one has all of them as they were;
        None: this is not so, or cannot be known.
        """
        for count, found in self._marks():
            if found == mark:
                return dict(list(self.fragments.items())[:count])
        return None

    def _marks(self) -> Iterator[tuple[int, int]]:
        """Yield the mark of a version with the first fragment, with the first two, …"""
        digest = hashlib.sha256()
        for count, fragment in enumerate(self.fragments.values(), start=1):
            digest.update(mark_of(fragment).encode())
            yield count, _number(digest)


def _ids(field: LanceField) -> Iterator[int]:
    yield field.id()
    for child in field.children():
        yield from _ids(child)


def _number(digest: hashlib._Hash) -> int:
    return (
        int.from_bytes(digest.digest()[:8], "big") >> 1
    )  # JSON of other programs may have 64 bits with a sign


def mark_of(fragment: FragmentMetadata) -> str:
    """Return what tells a fragment, as a version has it, from others. Checkpoints depend on it, so it must
    not change with releases of the library.
    """
    files = [(one.path, one.base_id, tuple(one.fields)) for one in fragment.files]
    deleted = fragment.deletion_file
    deletions = None if deleted is None else (deleted.read_version, deleted.id, deleted.num_deleted_rows)
    overlays = [one.data_file.path for one in fragment.overlays]
    content = repr((fragment.id, files, fragment.physical_rows, deletions, overlays))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def columns_there(
    read: Mapping[int, ArrowColumn], columns: Mapping[int, ArrowColumn]
) -> Mapping[int, ArrowColumn]:
    """Return the columns of a version, by the ids that those of the same name have in a stream: a column
    that is cast gets another id. Others keep their own id, which a column that is renamed has too.

    Args:
        read: the stream's
        columns: the version's
    """
    numbers = {column.name: number for number, column in read.items()}
    same = {numbers[one.name]: one for one in columns.values() if one.name in numbers}
    others = {number: one for number, one in columns.items() if one.name not in numbers}
    return {**same, **{-number - 1 if number in same else number: one for number, one in others.items()}}
