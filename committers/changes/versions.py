"""Computes the versions of a commit into a table with history. See `history`.

A task writes each version as if the table had none, with the end that the other rows of the task give it. If
that is right, the row stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow_values import numeric_array, numeric_scalar
from ..contract import History
from .computed_rows import CommitInputs, Computed, Masks, ReadRows, RowReader
from .file_search import FoundRows
from .history import Event, Timeline, Version, timeline
from .key_files import Keys
from .keys import KeySet, one_array, row_numbers
from .last_changes import repeated
from .same_rows import are_equal


class _Times:
    """Points in time as numbers, in their order.

    Args:
        columns: with all points
    """

    def __init__(self, *columns: pa.Array) -> None:
        values = pc.unique(pa.concat_arrays(list(columns))).drop_null()
        self._values = values.take(pc.array_sort_indices(values))

    def numbers(self, column: pa.Array) -> list[int | None]:
        found: list[int | None] = pc.index_in(column, value_set=self._values, skip_nulls=True).to_pylist()
        return found

    def column(self, numbers: Sequence[int | None]) -> pa.Array:
        values = pa.concat_arrays([self._values, pa.nulls(1, self._values.type)])
        return values.take(numeric_array([len(self._values) if one is None else one for one in numbers]))


class _OldRows:
    """The versions that the table has, by number.

    Args:
        kind: type of the points in time
    """

    def __init__(self, found: Mapping[str, FoundRows], kind: pa.DataType) -> None:
        parts = sorted(found.items())
        self._places = [(path, row) for path, one in parts for row in one.rows.to_pylist()]
        self.key = pa.concat_arrays([numeric_array(()), *(one.key.cast(pa.int64()) for _, one in parts)])
        none = pa.nulls(0, kind)
        self.valid_from, self.valid_to = (
            pa.concat_arrays([none, *(one.values[number] for _, one in parts)]) for number in (0, 1)
        )

    def masks(self, numbers: Collection[int]) -> Mapping[str, pa.Array]:
        by_path: dict[str, list[int]] = {}
        for number in numbers:
            path, row = self._places[number]
            by_path.setdefault(path, []).append(row)
        return {path: numeric_array(sorted(rows)) for path, rows in by_path.items()}

    def read(self, reader: RowReader, numbers: Collection[int]) -> pa.Table:
        """Return the rows with these numbers, in their order."""
        rows, by_place = ReadRows(reader.schema), {self._places[number]: number for number in numbers}
        for path, places in self.masks(numbers).items():
            of_places = [by_place[path, row] for row in places.to_pylist()]
            rows.add(numeric_array(of_places), reader.read(path, places))
        return rows.table().take(rows.places(numeric_array(list(numbers))))


@dataclass(frozen=True, slots=True)
class _NewRows:
    """The versions that the batches have written, by the number of the last change with their identity."""

    inputs: CommitInputs

    def find(self, numbers: Collection[int]) -> list[tuple[str, FoundRows, pa.Array]]:
        """Return where rows are: paths, and the number of each row that was found."""
        last, wanted = self.inputs.last, numeric_array(list(numbers))
        parts, found = last.written_in.take(wanted), []
        for part in pc.unique(parts).to_pylist():
            mine = wanted.filter(pc.equal(parts, numeric_scalar(part)))
            for path, some in self.inputs.rows_of(part, last.keys.take(mine).columns):
                found.append((path, some, mine.take(some.key)))
        return found

    def masks(self, numbers: Collection[int]) -> Mapping[str, pa.Array]:
        masks = Masks()
        for path, found, _ in self.find(numbers):
            masks.add(path, found.rows)
        return masks.by_path()

    def read(self, reader: RowReader, numbers: Collection[int]) -> pa.Table:
        """Return the rows with these numbers, in their order."""
        rows = ReadRows(reader.schema)
        for path, found, of_rows in self.find(numbers):
            rows.add(of_rows, reader.read(path, found.rows))
        return rows.table().take(rows.places(numeric_array(list(numbers))))


def with_history(
    inputs: CommitInputs, keys: Sequence[pa.Array], open_reader: Callable[[], RowReader]
) -> Computed:
    """Compute which versions end, and which begin.

    Args:
        keys: the keys of the search
    """
    history = inputs.changes.history
    assert history is not None
    at = inputs.last.keys.columns[-1]
    old, new = _OldRows(inputs.found, at.type), _NewRows(inputs)
    events = Keys.concat([one.keys for one in inputs.written])
    times = _Times(events.columns[-1], old.valid_from, old.valid_to)
    ends = times.numbers(old.valid_to)
    lines, written_ends = _timelines(inputs, KeySet(keys), old, times)
    replaced = {number: before for line in lines for number, before in line.replaced.items()}
    is_repeated = bool(replaced) and _are_equal(history, old, new, replaced, open_reader())
    stay: dict[int, int | None] = {number: end for line in lines for number, end in line.kept.items()}
    begin: dict[int, int | None] = {number: end for line in lines for number, end in line.added.items()}
    if is_repeated:  # the table has these versions already
        stay.update((before, begin.pop(number)) for number, before in replaced.items())
    versions = pc.indices_nonzero(old.valid_from.is_valid()).to_pylist()
    masked = [number for number in versions if number not in stay or stay[number] != ends[number]]
    changed = [number for number in masked if number in stay]
    closed = [number for number, end in begin.items() if end != written_ends[number]]
    if not changed and not closed:
        rows = None
    else:
        reader = open_reader()
        found = pa.concat_tables([old.read(reader, changed), new.read(reader, closed)])
        rows = _ending(found, history, times, [*map(stay.get, changed), *map(begin.get, closed)])
    return Computed(rows, old.masks(masked), new.masks([*closed, *(replaced if is_repeated else ())]))


def _timelines(
    inputs: CommitInputs, keys: KeySet, old: _OldRows, times: _Times
) -> tuple[list[Timeline], Mapping[int, int | None]]:
    """Return the timeline of each key, and the end that its task has given to each version."""
    versions: dict[int, list[Version]] = {}
    bounds = zip(old.key.to_pylist(), times.numbers(old.valid_from), times.numbers(old.valid_to), strict=True)
    for number, (key, valid_from, valid_to) in enumerate(bounds):
        if valid_from is not None:  # else it is no version
            versions.setdefault(key, []).append(Version(number, valid_from, valid_to))
    batches: dict[int, dict[int, list[Event]]] = {}
    ends: dict[int, int | None] = {}
    before: dict[tuple[int, int], tuple[Event, bool]] = {}
    for part, batch, key, event, is_last in _events(inputs, keys, old, times):
        batches.setdefault(key, {}).setdefault(batch, []).append(event)
        ends.setdefault(event.number, None)
        earlier = before.get((part, key))
        if earlier is not None and earlier[1]:
            ends[earlier[0].number] = event.at
        before[part, key] = event, is_last
    lines = [
        timeline(versions.get(key, ()), [some for _, some in sorted(of_key.items())])
        for key, of_key in batches.items()
    ]
    return lines, ends


def _events(
    inputs: CommitInputs, keys: KeySet, old: _OldRows, times: _Times
) -> Iterator[tuple[int, int, int, Event, bool]]:
    """Yield changes in their order: part, batch, number of the key, the change with the number of the last
    one with its identity, and whether it is that one.

    Left out are the changes of keys that the table does not have and that are in one part only: the task has
    ended them.
    """
    identities = KeySet(inputs.last.keys.columns)
    whole = Keys.concat([one.keys for one in inputs.written])
    names = [f"order.{number}" for number in range(len(whole.order))]
    *of_keys, at = whole.columns
    (_, key), (_, number) = keys.find(of_keys), identities.find(whole.columns)
    part = repeated(range(len(inputs.written)), inputs.written)
    batch = repeated([one.batch_id for one in inputs.written], inputs.written)
    pairs = pa.Table.from_arrays([key, part], names=["key", "part"]).group_by(["key", "part"]).aggregate([])
    counts = pairs.group_by("key").aggregate([("part", "count")])
    several = counts.filter(pc.greater(counts.column("part_count"), numeric_scalar(1))).column("key")
    needed = pa.concat_arrays([old.key, one_array(several)])
    table = pa.Table.from_arrays([*whole.order, row_numbers(len(whole))], names=[*names, "row"])
    table = table.filter(pc.is_in(key, value_set=needed))
    in_order = one_array(table.sort_by([(name, "ascending") for name in names]).column("row"))
    number = number.take(in_order)
    columns = (
        part.take(in_order),
        batch.take(in_order),
        key.take(in_order),
        number,
        whole.is_deleted.take(in_order),
        pc.equal(inputs.last.written_in.take(number), part.take(in_order)),
    )
    rows = zip(*(column.to_pylist() for column in columns), times.numbers(at.take(in_order)), strict=True)
    for of_part, of_batch, of_key, identity, is_deletion, is_last, time in rows:
        yield of_part, of_batch, of_key, Event(identity, time or 0, is_deletion), is_last


def _are_equal(
    history: History, old: _OldRows, new: _NewRows, replaced: Mapping[int, int], reader: RowReader
) -> bool:
    """Return True if each of the new versions is equal to the old one at its time, but for the end."""
    ends = [history.valid_to, history.is_current]
    some = new.read(reader, replaced.keys()).drop_columns(ends)
    return are_equal(some, old.read(reader, replaced.values()).drop_columns(ends))


def _ending(rows: pa.Table, history: History, times: _Times, ends: Sequence[int | None]) -> pa.Table:
    """Return versions with these ends."""
    is_current = pc.is_null(times.column(ends))
    for name, column in ((history.valid_to, times.column(ends)), (history.is_current, is_current)):
        number = rows.schema.get_field_index(name)
        field = rows.schema.field(number)
        rows = rows.set_column(number, field, column.cast(field.type))
    return rows
