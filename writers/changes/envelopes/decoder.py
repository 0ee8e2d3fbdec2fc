"""Turns rows of a query that are messages of a source of changes into rows that change a table by key.

Planned on the driver, pickled, and used by tasks for each Arrow batch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ....committers.changes.keys import row_numbers
from ....committers.errors import SchemaMismatchError
from ..row_kinds import KEPT
from .conversion import Logical
from .events import ChangedCells, Events, Target, changed_cells
from .formats import Context, Format
from .json_rows import plain, with_rows
from .json_values import parse_object, unwrapped
from .messages import ArrowFields, Column, Messages, ObjectFields
from .unavailable import booleans

VALUE, KEY, OFFSET, PARTITION, TOPIC = "value", "key", "offset", "partition", "topic"
"""Columns of Spark's Kafka source."""
KAFKA_COLUMNS = (KEY, VALUE, TOPIC, PARTITION, OFFSET, "timestamp", "timestampType", "headers")


class ValueReader(Protocol):
    """Reads messages that are bytes or texts. Pickled."""

    def read(self, values: pa.Array, rows: pa.Array) -> Iterator[Messages]:
        """
        Args:
            values: without NULL
            rows: their row numbers

        Raises:
            SchemaMismatchError: a value cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class RowDecoder:
    """Decodes rows. The result depends on each row alone."""

    format: Format
    target: Target
    reader: ValueReader | None = None
    """None: the fields of the messages are columns."""
    is_flat: bool = False
    """True: the columns of the table are columns of the query."""
    given: Mapping[str, Logical] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """The columns of the query, by the names of the fields that they are."""
    kafka: frozenset[str] = frozenset()
    """Columns of the query that Kafka's source has beside the message."""

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the columns of `Target.schema`, and `KEPT` if a row keeps some values.

        Raises:
            SchemaMismatchError: a row is no message of the format, or a value does not fit its column.
        """
        last: _Decoded | None = getattr(_thread, "last", None)
        if last is not None and last.rows is rows and last.decoder == self:
            return last.result
        try:
            result = self._decoded(rows)
        except SchemaMismatchError as error:
            number, first = self._first_bad(rows, error)
            raise SchemaMismatchError(f"{first} {self._place(rows, number)}") from error
        _thread.last = _Decoded(self, rows, result)
        return result

    def _decoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        parts: list[tuple[Messages, ChangedCells]] = []
        try:
            for messages in self._messages(rows):
                events = self._events(messages, rows)
                parts += [(messages, cells) for cells in changed_cells(events, self.target)]
            return self._joined(rows, parts)
        except pa.ArrowInvalid as error:  # of fields that are no columns, such as a time that is too large
            raise SchemaMismatchError(f"A message cannot be decoded: {error}.") from error

    def _messages(self, rows: pa.RecordBatch) -> Iterator[Messages]:
        if self.reader is not None:
            values = rows.column(VALUE)
            numbers = pc.indices_nonzero(pc.is_valid(values)).cast(pa.int64())
            if len(numbers):
                yield from self.reader.read(values.take(numbers), numbers)
            return
        fields = {name: rows.column(column) for name, column in self.names.items()}
        kept = self._without_tombstones(fields, rows)
        if len(kept) < rows.num_rows:
            fields = {name: column.take(kept) for name, column in fields.items()}
        if len(kept):
            found = ArrowFields(fields, len(kept))
            paths = (self.format.after, self.format.before)
            yield Messages(with_rows(found, paths, self.target.columns), kept, is_flat=self.is_flat)

    def _without_tombstones(self, fields: Mapping[str, pa.Array], rows: pa.RecordBatch) -> pa.Array:
        """Return the numbers of the rows that have a field.

        Raises:
            SchemaMismatchError: a message has a value and no field, so it was not parsed.
        """
        has_field = reduce(pc.or_, [pc.is_valid(column) for column in fields.values()])
        if VALUE in self.kafka:
            lost = pc.and_(pc.is_valid(rows.column(VALUE)), pc.invert(has_field))
            if pc.any(lost).as_py():
                raise SchemaMismatchError("All fields of a message are NULL, though it has a value.")
        return pc.indices_nonzero(has_field).cast(pa.int64())

    def _events(self, messages: Messages, rows: pa.RecordBatch) -> Events:
        offset = None
        if OFFSET in self.kafka:
            offset = rows.column(OFFSET).take(messages.rows).cast(pa.int64())
        events = self.format.events(messages, Context(self.target, self.given, offset))
        if KEY not in self.kafka:
            return events
        unknown = reduce(pc.or_, [pc.is_null(column.values) for column in events.old_keys])
        of_key = pc.indices_nonzero(pc.and_(events.deletes, unknown))
        return self._with_keys(events, rows.column(KEY), of_key) if len(of_key) else events

    def _with_keys(self, events: Events, keys: pa.Array, numbers: pa.Array) -> Events:
        """Take the keys of some messages from Kafka's keys."""
        texts = keys.take(events.messages.rows.take(numbers))
        try:
            objects = [_key(text) for text in texts.cast(pa.string()).to_pylist()]
        except pa.ArrowException as error:
            raise SchemaMismatchError("A key of Kafka is no JSON.") from error
        of_key = Messages(ObjectFields(objects), numbers).image((), self.target.key_columns, self.given)
        place = pc.index_in(
            row_numbers(len(keys)).slice(0, len(events.deletes)), value_set=numbers.cast(pa.int64())
        )
        columns = [
            Column(pc.coalesce(column.values, found.values.take(place)))
            for column, found in zip(events.old_keys, of_key, strict=True)
        ]
        return replace(events, old_keys=columns)

    def _joined(self, rows: pa.RecordBatch, parts: Sequence[tuple[Messages, ChangedCells]]) -> pa.RecordBatch:
        schema = self.target.schema
        if not parts:
            return _empty(schema)
        has_kept = any(cells.kept is not None for _, cells in parts)
        if has_kept:
            schema = schema.append(pa.field(KEPT, pa.list_(pa.string())))
        batches = []
        for messages, cells in parts:
            count, numbers = len(cells.messages), messages.rows.take(cells.messages)
            passed = [rows.column(one.name).take(numbers) for one in self.target.passed]
            time = [cells.time] if self.target.has_time else []
            columns = [*cells.columns, *passed, *time, booleans([cells.is_deleted] * count)]
            columns += [cells.position, cells.sequence]
            if has_kept:
                columns.append(pa.nulls(count, schema[-1].type) if cells.kept is None else cells.kept)
            batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        if len(batches) == 1:
            return batches[0]
        joined = [
            pa.concat_arrays(columns) for columns in zip(*[one.columns for one in batches], strict=True)
        ]
        return pa.RecordBatch.from_arrays(joined, schema=schema)

    def _first_bad(self, rows: pa.RecordBatch, error: SchemaMismatchError) -> tuple[int, SchemaMismatchError]:
        """Return the number of the first row that cannot be decoded, and its error."""
        first, count = 0, rows.num_rows
        while count > 1:
            half = count // 2
            try:
                self._decoded(rows.slice(first, half))
            except SchemaMismatchError as of_half:
                error, count = of_half, half
            else:
                first, count = first + half, count - half
        return first, error

    def _place(self, rows: pa.RecordBatch, number: int) -> str:
        names = [name for name in (TOPIC, PARTITION, OFFSET) if name in self.kafka]
        if OFFSET not in names:
            return f"It is row {number} of a batch of Arrow."
        values = [f"{name} {rows.column(name)[number]}" for name in names]
        return f"The message is at {', '.join(values)}."


@dataclass(frozen=True, slots=True)
class _Decoded:
    decoder: RowDecoder
    rows: pa.RecordBatch
    result: pa.RecordBatch


_thread = threading.local()
"""Has what was decoded last: the targets of a fan-out get the same rows, one after the other."""


def _key(text: str | None) -> dict[str, object]:
    """Return a key of Kafka. MongoDB's has the field `id`, with the document's `_id` in extended JSON."""
    key, _ = unwrapped(parse_object(text)) if text is not None else (None, None)
    if key is None:
        return {}
    if isinstance(key.get("id"), str) and "_id" not in key:
        try:
            key = {**key, "_id": plain(json.loads(key["id"]))}
        except ValueError:
            key = {**key, "_id": key["id"]}
    return key


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, one.type) for one in schema], schema=schema)
