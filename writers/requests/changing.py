"""What a service needs to take changes by key (`writeMode=upsert`), and the check of rows by tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.contract import Changes
from ...committers.errors import SchemaMismatchError
from ...committers.requests.contract import RowPlace
from ..changes.row_kinds import ChangedRows, RowKinds
from .entry import Entry

Check = Callable[[pa.RecordBatch], object]


@runtime_checkable
class Changeable(Protocol):
    """Capability of the `Requests` of a service: it replaces and deletes what it has, by key."""

    def check_changes(self, changes: Changes, rows: pa.Schema) -> None:
        """
        Args:
            rows: the columns that the service gets, and those of the order

        Raises:
            ConfigurationError, SchemaMismatchError: it does not take these changes.
        """
        ...

    def why_whole(self, rows: pa.Schema) -> str:
        """Return why rows with these columns cannot keep values that the service has; empty if they can."""
        ...

    def deletion_checker(self) -> Check:
        """As `Requests.checker`, for the rows of `deletions`."""
        ...

    def upserts(
        self, rows: pa.RecordBatch, place: RowPlace, kept: Sequence[Collection[str]]
    ) -> Sequence[Entry[Any]]:
        """Return an entry for each row, which inserts it or replaces the one with its key.

        Args:
            kept: for each row, columns that keep the value that the service has; none with `why_whole`
        """
        ...

    def deletions(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[Any]]:
        """Return an entry for each row, which deletes its key.

        Args:
            rows: the columns of the key, and those of the order
        """
        ...


def deleted_rows(keys: pa.RecordBatch, order: Sequence[pa.Array], order_by: Sequence[str]) -> pa.RecordBatch:
    """Return the rows of `Changeable.deletions`."""
    for name, column in zip(order_by, order, strict=True):
        if name not in keys.schema.names:
            keys = keys.append_column(name, column)
    return keys


def kept_columns(changed: ChangedRows, changes: Changes) -> Sequence[Collection[str]]:
    """Return, for each upsert, the columns that keep their value, also those that the rows do not have."""
    missing = set(changes.partial_columns).difference(changed.upserts.schema.names)
    kept: list[set[str]] = [set(missing) for _ in range(changed.upserts.num_rows)]
    for name, is_kept in changed.kept.items():
        for row in pc.indices_nonzero(is_kept).to_pylist():
            kept[row].add(name)
    return kept


def check_whole(kept: Iterable[Collection[str]], why: str) -> None:
    """
    Args:
        why: see `Changeable.why_whole`

    Raises:
        SchemaMismatchError: a row keeps values, and the service replaces rows as a whole.
    """
    if why and (found := next(filter(None, kept), None)):
        raise SchemaMismatchError(
            f"A row does not have the values of {', '.join(sorted(found))}, which its key keeps. {why}. "
            "Filter these rows, or let the source give whole rows, for example with REPLICA IDENTITY FULL in "
            "Postgres."
        )


@dataclass(frozen=True, slots=True)
class CheckChanges:
    """The check of the tasks. Pickled on the driver, without secrets."""

    kinds: RowKinds
    of_upserts: Check
    of_deletions: Check
    why_whole: str
    """See `Changeable`."""

    def __call__(self, rows: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaMismatchError: the service would not accept a row, or it has no key.
        """
        changed = self.kinds.split(rows)
        if self.why_whole:
            check_whole(kept_columns(changed, self.kinds.changes), self.why_whole)
        self.of_upserts(changed.upserts)
        if changed.deletes.num_rows:
            order_by = self.kinds.changes.order_by
            self.of_deletions(deleted_rows(changed.deletes, changed.delete_order, order_by))
