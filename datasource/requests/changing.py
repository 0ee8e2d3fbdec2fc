"""Rows of a service as changes by key (`writeMode=upsert`). On the driver and in the delivery process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.changes.key_files import Keys
from ...committers.changes.keys import row_numbers
from ...committers.contract import Changes, DataFiles, LateRows, TaskWriterFactory
from ...committers.errors import ConfigurationError
from ...committers.requests.contract import EntryWriter, Requests, RowChanges, RowPlace
from ...writers.changes.row_kinds import KEPT, ChangedRows
from ...writers.requests.changing import (
    Changeable,
    CheckChanges,
    check_whole,
    deleted_rows,
    kept_columns,
)
from ...writers.requests.decoding import DecodingWriters
from ...writers.requests.entry import Entry
from ...writers.requests.keyed import row_keys
from ...writers.row_log.writer import Check, RowLogWriters
from ..changes.planning import PlannedChanges, plan_changes
from .folding import Upserts, folded

OpenLog = Callable[[Check], RowLogWriters]
"""Returns the writers of the row log, with a check of the rows."""

_NUMBER = "\0number"
"""A column with the place of each row."""


@dataclass(frozen=True, slots=True)
class ChangingRequests:
    """See `Requests` and `ChangesRows`: those of a service, whose rows are changes.

    Rows of one key are sent one after the other: its writers must be asked to order by key.
    """

    requests: Requests
    changes: Changes
    earlier: Mapping[int, pa.RecordBatch] = field(default_factory=dict)
    """See `folding`."""

    @property
    def late_rows(self) -> LateRows:
        return self.changes.late_rows

    @property
    def _service(self) -> Changeable:
        service: Any = self.requests
        if not isinstance(service, Changeable):
            raise ConfigurationError(
                "writeMode=upsert: the service cannot replace and delete by key. Append the changes as they "
                "are: leave writeMode out."
            )
        return service

    def folding(self, earlier: Mapping[int, pa.RecordBatch]) -> ChangingRequests:
        return replace(self, earlier=earlier) if earlier or self.earlier else self

    def check_schema(self, rows: pa.Schema) -> None:
        planned = _planned(rows, self.changes)
        self.requests.check_schema(planned.columns)
        changes = planned.kinds.changes
        ordered = [planned.rows.field(name) for name in changes.order_by if name not in planned.columns.names]
        self._service.check_changes(changes, pa.schema([*planned.columns, *ordered]))
        why = self._service.why_whole(planned.columns)
        if why and changes.partial_columns:
            raise ConfigurationError(
                f"updateColumns: {why}. Send whole rows, without updateColumns. Nothing was written."
            )

    def checker(self) -> Callable[[pa.RecordBatch], object]:
        raise TypeError("see checker_of")

    def checker_of(self, rows: pa.Schema) -> CheckChanges:
        """Return a check of rows, see `Requests.checker`. Messages are decoded before.

        Args:
            rows: the columns of the query
        """
        planned, service = _planned(rows, self.changes), self._service
        return CheckChanges(
            replace(planned.kinds, decode=None),
            self.requests.checker(),
            service.deletion_checker(),
            service.why_whole(planned.columns),
        )

    def sent_rows(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns of the rows: those of the query, or of its messages once they are decoded."""
        return _planned(rows, self.changes).rows

    def writers(self, rows: pa.Schema, open_log: OpenLog) -> TaskWriterFactory[DataFiles]:
        """Return the writers of tasks, which check the rows. Messages are decoded before they are stored.

        Args:
            rows: the columns of the query
        """
        kinds = _planned(rows, self.changes).kinds
        log = open_log(self.checker_of(rows))
        return log if kinds.decode is None else DecodingWriters(log, kinds.decode)

    def changes_of(self, rows: pa.RecordBatch) -> RowChanges:
        planned = _planned(rows.schema, self.changes)
        changes = planned.kinds.changes
        numbers = row_numbers(rows.num_rows)
        for name in (*changes.keys, *changes.order_by):
            if rows.column(name).null_count:
                has_value = pc.is_valid(rows.column(name))
                rows, numbers = rows.filter(has_value), numbers.filter(has_value)
        split = _split(planned, rows)
        upserts, deletes = split.rows.upserts, split.rows.deletes
        keys = Keys(
            tuple([pa.concat_arrays([upserts_of, deletes.column(name)]) for name, upserts_of in split.keys]),
            tuple(map(pa.concat_arrays, zip(split.rows.upsert_order, split.rows.delete_order, strict=True))),
            pa.concat_arrays([_flags(upserts, False), _flags(deletes, True)]),
        )
        partial = _flags(upserts, False)
        if any(split.kept):
            partial = pa.array([bool(some) for some in split.kept], pa.bool_())
        return RowChanges(
            numbers.take(pa.concat_arrays([split.upserts, split.deletes])),
            keys,
            upserts,
            pa.concat_arrays([partial, _flags(deletes, False)]),
        )

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[Any]]:
        planned = _planned(rows.schema, self.changes)
        split = _split(planned, rows)
        service = self._service
        check_whole(split.kept, service.why_whole(planned.columns))
        upserts = self._folded(planned, split, place)
        made: list[Entry[Any] | None] = [None] * rows.num_rows
        keys = row_keys(rows, planned.kinds.changes.keys)

        def put(entries: Sequence[Entry[Any]], numbers: Sequence[int]) -> None:
            for entry, number in zip(entries, numbers, strict=True):
                key = keys[number] if entry.key is None else entry.key
                made[number] = replace(entry, position=place.position + number, key=key)

        if upserts.rows.num_rows:
            numbers = split.upserts.to_pylist()
            put(service.upserts(upserts.rows, replace(place, numbers=numbers), upserts.kept), numbers)
        if split.rows.deletes.num_rows:
            numbers = split.deletes.to_pylist()
            deletes = deleted_rows(
                split.rows.deletes, split.rows.delete_order, planned.kinds.changes.order_by
            )
            put(service.deletions(deletes, replace(place, numbers=numbers)), numbers)
        return [entry for entry in made if entry is not None]

    def open_writer(self, on_acknowledged: Callable[[], None] = lambda: None) -> EntryWriter:
        return self.requests.open_writer(on_acknowledged)

    def _folded(self, planned: PlannedChanges, split: _Split, place: RowPlace) -> Upserts:
        upserts = Upserts(split.rows.upserts, split.kept)
        if not self.earlier:
            return upserts
        for row, number in enumerate(split.upserts.to_pylist()):
            if (before := self.earlier.get(place.position + number)) is not None:
                first = _split(planned, before)
                in_order = folded(
                    Upserts(first.rows.upserts, first.kept), deleted_first=bool(len(first.deletes))
                )
                upserts = upserts.completing(row, in_order)
        return upserts


@dataclass(frozen=True, slots=True)
class _Split:
    """Rows by what they do."""

    rows: ChangedRows
    upserts: pa.Array
    """The place of each of them (int64)."""
    deletes: pa.Array
    kept: Sequence[Collection[str]]
    """For each upsert, the columns that keep their value."""
    keys: Sequence[tuple[str, pa.Array]]
    """Names and columns of the upserts' keys."""


def _split(planned: PlannedChanges, rows: pa.RecordBatch) -> _Split:
    """
    Raises:
        SchemaMismatchError: see `RowKinds.split`.
    """
    changes = planned.kinds.changes
    numbered = replace(planned.kinds, changes=replace(changes, keys=(*changes.keys, _NUMBER)))
    split = numbered.split(rows.append_column(_NUMBER, row_numbers(rows.num_rows)))
    upserts, deletes = split.upserts.drop_columns([_NUMBER]), split.deletes.drop_columns([_NUMBER])
    numbers = split.upserts.column(_NUMBER)
    return _Split(
        replace(split, upserts=upserts, deletes=deletes),
        numbers,
        split.deletes.column(_NUMBER),
        kept_columns(split, changes),
        [(name, upserts.column(name)) for name in changes.keys],
    )


@lru_cache(maxsize=32)
def _planned(rows: pa.Schema, changes: Changes) -> PlannedChanges:
    """
    Args:
        rows: the columns of the query, or of its decoded rows
    """
    return plan_changes(pa.schema([column for column in rows if column.name != KEPT]), changes)


def _flags(rows: pa.RecordBatch, value: bool) -> pa.Array:
    return pa.repeat(pa.scalar(value), rows.num_rows)
