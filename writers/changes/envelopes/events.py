"""What the messages of a source of changes do, as rows that are inserted, replaced or deleted by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from ....committers.arrow_values import numeric_scalar
from ....committers.errors import SchemaMismatchError
from .messages import Column, Messages

DELETED = "_change_deleted"
"""The column that is true for rows that delete their key."""
POSITION = "_change_position"
SEQUENCE = "_change_sequence"
"""Columns that order the rows of a key: the position in the source's log, and a counter at one position."""
TIME = "_change_time"
"""The time of the change in the source, for queries whose `orderBy` names it."""
TIME_TYPE = pa.timestamp("us", "UTC")

_ZERO, _ONE, _TWO = (numeric_scalar(number) for number in range(3))


@dataclass(frozen=True, slots=True)
class Target:
    """The rows that messages become. Planned on the driver, pickled."""

    columns: pa.Schema
    """The columns of the table that are in the messages."""
    keys: tuple[str, ...]
    """Some of them."""
    passed: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """Other columns of the query that the table gets as they are."""
    needs_position: bool = True
    """False if other columns order the rows, so that messages may have no position."""
    has_time: bool = False
    """True if the rows have the column `TIME`."""

    @property
    def key_columns(self) -> pa.Schema:
        return pa.schema([self.columns.field(name) for name in self.keys])

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return pa.schema(
            [
                *self.columns,
                *self.passed,
                *([pa.field(TIME, TIME_TYPE)] if self.has_time else []),
                pa.field(DELETED, pa.bool_()),
                pa.field(POSITION, pa.int64()),
                pa.field(SEQUENCE, pa.int64()),
            ]
        )


@dataclass(frozen=True, slots=True)
class Events:
    """Messages by what they do. Arrays have a value for each message."""

    messages: Messages
    upserts: pa.Array
    """True for those that insert or replace a row."""
    deletes: pa.Array
    """True for those that delete one."""
    after: Sequence[Column]
    """The columns of the row after an upsert."""
    old_keys: Sequence[Column]
    """The key columns of the row before the change, as far as they are known."""
    position: pa.Array
    """See `POSITION`; int64."""
    sequence: pa.Array
    """See `SEQUENCE`; int64 of `sequence_of`."""
    time: pa.Array
    """See `TIME`; `TIME_TYPE`, NULL if it is not known."""


def time_of(milliseconds: pa.Array) -> pa.Array:
    """
    Args:
        milliseconds: since 1970, int64
    """
    return milliseconds.cast(pa.timestamp("ms")).cast(TIME_TYPE)


def sequence_of(counter: pa.Array, is_snapshot: pa.Array | None = None) -> pa.Array:
    """Return sequences that leave room for a deletion before each row.

    Args:
        counter: int64, orders messages at one position; NULL counts as 0
        is_snapshot: rows of a snapshot come before all changes at their position
    """
    numbers = pc.add_checked(pc.multiply_checked(pc.fill_null(counter, _ZERO), _TWO), numeric_scalar(3))
    if is_snapshot is None:
        return numbers
    return pc.if_else(pc.fill_null(is_snapshot, False), pc.multiply(numbers, _ZERO), numbers)


@dataclass(frozen=True, slots=True)
class ChangedCells:
    """Rows of one kind, with the row numbers of their messages."""

    columns: Sequence[pa.Array]
    messages: pa.Array
    """Numbers of the messages among those that were read together."""
    is_deleted: bool
    time: pa.Array
    position: pa.Array
    sequence: pa.Array
    kept: pa.Array | None = None


def changed_cells(events: Events, target: Target) -> Iterator[ChangedCells]:
    """Return the rows: one or none for a message, and two for a change of the key.

    Raises:
        SchemaMismatchError: a message that deletes does not tell the key.
    """
    names = target.columns.names
    after = dict(zip(names, events.after, strict=True))
    old = [column.values for column in events.old_keys]
    known = reduce(pc.and_, [pc.is_valid(values) for values in old])
    if pc.any(pc.and_(events.deletes, pc.invert(known))).as_py():
        raise SchemaMismatchError(
            f"A message deletes a row and does not have its key: {', '.join(target.keys)}. The source must "
            "write the key of deleted rows, or the column key of Kafka must be in the query."
        )
    is_other = [
        pc.not_equal(values, after[name].values) for name, values in zip(target.keys, old, strict=True)
    ]
    moved = pc.and_(pc.and_(events.upserts, known), pc.fill_null(reduce(pc.or_, is_other), False))

    numbers = pc.indices_nonzero(events.upserts)
    if len(numbers):
        columns = [after[name].values.take(numbers) for name in names]
        yield ChangedCells(
            columns,
            numbers,
            False,
            events.time.take(numbers),
            events.position.take(numbers),
            events.sequence.take(numbers),
            _kept(names, events.after, numbers),
        )
    for chosen, step in ((events.deletes, _ZERO), (moved, _ONE)):
        numbers = pc.indices_nonzero(chosen)
        if not len(numbers):
            continue
        keys = dict(zip(target.keys, old, strict=True))
        columns = [
            keys[one.name].take(numbers) if one.name in keys else pa.nulls(len(numbers), one.type)
            for one in target.columns
        ]
        # the deletion of a key that a row leaves comes before a row that gets it at the same position
        sequence = pc.subtract(events.sequence.take(numbers), step)
        time, position = events.time.take(numbers), events.position.take(numbers)
        yield ChangedCells(columns, numbers, True, time, position, sequence)


def _kept(names: Sequence[str], columns: Sequence[Column], numbers: pa.Array) -> pa.Array | None:
    """Return the names of the columns that keep their value, for each row; None: none in any row."""
    masks = {
        name: column.unavailable.take(numbers)
        for name, column in zip(names, columns, strict=True)
        if column.unavailable is not None
    }
    if not any(pc.any(mask).as_py() for mask in masks.values()):
        return None
    rows: list[list[str]] = [[] for _ in range(len(numbers))]
    for name, mask in masks.items():
        for number in pc.indices_nonzero(mask).to_pylist():
            rows[number].append(name)
    return pa.array([one or None for one in rows], pa.list_(pa.string()))
