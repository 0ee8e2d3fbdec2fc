"""Completes the rows of a commit that keep columns of older rows. See `kept_values`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow_values import numeric_array, numeric_scalar
from ..contract import EVERY_COLUMN
from .computed_rows import CommitInputs, Computed, Masks, ReadRows, RowReader, ascending
from .kept_values import TABLE, Entries, not_late, sources
from .key_files import Keys
from .keys import FALSE, TRUE, KeySet, last_rows, one_array
from .tombstones import Tombstones


def with_kept_values(
    inputs: CommitInputs, late: pa.Array, tombstones: Tombstones | None, open_reader: Callable[[], RowReader]
) -> Computed:
    """Complete the rows that keep columns of older ones.

    Args:
        late: numbers of the keys for which the table has something newer
    """
    reader = open_reader()
    names = _kept_names(inputs, reader)
    last = inputs.last.keys
    partial = pa.repeat(FALSE, len(last))
    for planned in names.values():
        partial = pc.or_(partial, _keeps(planned, last))
    partial = pc.and_(partial, pc.invert(last.is_deleted))
    of_keys = pc.indices_nonzero(partial).cast(pa.int64())
    of_keys = of_keys.filter(pc.invert(pc.is_in(of_keys, value_set=late)))
    if not len(of_keys):
        return Computed()
    entries = _Entries.of(inputs, of_keys, names)
    if inputs.changes.late_rows == "ignore" and len({one.batch_id for one in inputs.written}) > 1:
        entries = entries.take(not_late(entries.entries, entries.late(tombstones)))
    from_rows = sources(entries.entries, [*names, ""])
    winners = from_rows[""]
    rows = entries.read(inputs, reader, ascending([column.drop_null() for column in from_rows.values()]))
    values = rows.table()
    columns = {}
    is_changed = pa.repeat(FALSE, len(winners))
    for name in names:
        kept = one_array(values.column(name)).take(rows.places(from_rows[name]))
        is_from_older = pc.fill_null(pc.not_equal(from_rows[name], winners), FALSE)
        is_changed = pc.or_(is_changed, pc.and_(kept.is_valid(), is_from_older))
        columns[name] = kept
    completed = pc.indices_nonzero(is_changed).cast(pa.int64())
    if not len(completed):
        return Computed()
    whole = values.take(rows.places(winners))
    for name, column in columns.items():
        number = whole.schema.get_field_index(name)
        whole = whole.set_column(number, whole.schema.field(number), column)
    masks = Masks()
    keys = last.take(of_keys.take(completed))
    parts = inputs.last.written_in.take(of_keys.take(completed))
    for part in pc.unique(parts).to_pylist():
        mine = keys.take(pc.indices_nonzero(pc.equal(parts, numeric_scalar(part))))
        for path, found in inputs.rows_of(part, mine.columns):
            masks.add(path, found.rows)
    return Computed(whole.take(completed), in_new=masks.by_path())


def _kept_names(inputs: CommitInputs, reader: RowReader) -> Mapping[str, str | None]:
    """Return the columns that some rows keep, with the name that each had when the batch was planned; None if
    others have added it since.
    """
    written = [keys for one in inputs.written for keys in (one.keys, one.older) if keys is not None]
    planned = sorted({name for keys in written for name in keys.kept})
    names: dict[str, str | None] = {
        current: name for name in planned if (current := reader.name_of(name)) is not None
    }
    if EVERY_COLUMN in inputs.changes.partial_columns:
        known = {reader.name_of(name) for name in inputs.planned}
        names.update({name: None for name in reader.schema.names if name not in known})
    return names


def _keeps(planned: str | None, keys: Keys) -> pa.Array:
    """Return which rows keep a column: all, if others have added it to the table."""
    return pa.repeat(TRUE, len(keys)) if planned is None else keys.keeping(planned)


@dataclass(frozen=True, slots=True)
class _Entries:
    """All rows of some keys, and where they are."""

    entries: Entries
    part: pa.Array
    """Number of the `WrittenKeys` (int64); `TABLE` for rows of the table."""
    number: pa.Array
    """Number in `WrittenKeys.older`; -1: it is in a data file."""
    places: Sequence[tuple[str, int]]
    """Path and number of the rows of the table, which come first."""

    @classmethod
    def of(cls, inputs: CommitInputs, of_keys: pa.Array, names: Mapping[str, str | None]) -> _Entries:
        """Collect the rows of these keys.

        Args:
            names: see `_kept_names`
        """
        wanted = KeySet([column.take(of_keys) for column in inputs.last.keys.columns])
        place, key, order = _table_rows(inputs, of_keys)
        count = len(key)
        empty = inputs.last.keys.take(numeric_array(()))
        fills = [order[i] if order else pa.nulls(count, one.type) for i, one in enumerate(empty.order)]
        identities = tuple([column.take(key) for column in wanted.columns])
        keys = [Keys(identities, tuple(fills), pa.repeat(FALSE, count))]
        numbers, batches, parts, older = [key], [_all(TABLE, count)], [_all(TABLE, count)], [_all(-1, count)]
        for part, one in enumerate(inputs.written):
            for some in (one.keys, one.older):
                if some is None:
                    continue
                rows, found = wanted.find(some.columns)
                mine = some.take(rows)
                kept = {name: _keeps(planned, mine) for name, planned in names.items()}
                keys.append(Keys(mine.columns, mine.order, mine.is_deleted, kept))
                numbers.append(found)
                batches.append(_all(one.batch_id, len(rows)))
                parts.append(_all(part, len(rows)))
                older.append(rows if some is one.older else _all(-1, len(rows)))
        whole = Entries(pa.concat_arrays(numbers), pa.concat_arrays(batches), Keys.concat(keys))
        return cls(whole, pa.concat_arrays(parts), pa.concat_arrays(older), place)

    def take(self, rows: pa.Array) -> _Entries:
        """Leave out rows. Those of the table come first and stay."""
        some = self.entries
        entries = Entries(some.key.take(rows), some.batch.take(rows), some.keys.take(rows))
        return _Entries(entries, self.part.take(rows), self.number.take(rows), self.places)

    def late(self, tombstones: Tombstones | None) -> set[int]:
        """Return the numbers of last rows of a batch whose key was deleted by something newer."""
        late: set[int] = set()
        for batch in pc.unique(self.entries.batch).to_pylist() if tombstones is not None else ():
            if batch != TABLE and tombstones is not None:
                rows = pc.indices_nonzero(pc.equal(self.entries.batch, numeric_scalar(batch)))
                keys = self.entries.keys.take(rows)
                last = last_rows(keys.columns, keys.order).rows
                late.update(rows.take(last.take(tombstones.late_keys(keys.take(last)))).to_pylist())
        return late

    def read(self, inputs: CommitInputs, reader: RowReader, wanted: pa.Array) -> ReadRows:
        """Read the rows with these numbers."""
        rows = ReadRows(reader.schema)
        part, number = self.part.take(wanted), self.number.take(wanted)
        in_table: dict[str, list[tuple[int, int]]] = {}
        for entry in wanted.filter(pc.equal(part, numeric_scalar(TABLE))).to_pylist():
            path, row = self.places[entry]
            in_table.setdefault(path, []).append((row, entry))
        for path, pairs in in_table.items():
            places, of_entries = zip(*sorted(pairs), strict=True)
            rows.add(numeric_array(of_entries), reader.read(path, numeric_array(places)))
        for one in pc.unique(part).to_pylist():
            if one == TABLE:
                continue
            is_mine = pc.equal(part, numeric_scalar(one))
            is_older = pc.greater_equal(number, numeric_scalar(0))
            older = pc.indices_nonzero(pc.and_(is_mine, is_older))
            older_rows = inputs.written[one].older_rows
            if len(older) and older_rows is not None:
                rows.add(wanted.take(older), reader.converted(older_rows.take(number.take(older))))
            mine = wanted.filter(pc.and_(is_mine, pc.invert(is_older)))
            keys = self.entries.keys.take(mine)
            for path, found in inputs.rows_of(one, keys.columns):
                rows.add(mine.take(found.key), reader.read(path, found.rows))
        return rows


def _table_rows(
    inputs: CommitInputs, of_keys: pa.Array
) -> tuple[list[tuple[str, int]], pa.Array, list[pa.Array]]:
    """Return for each of the keys that the table has one row: its place, the place of the key among these,
    and its order if that is known.
    """
    places: list[tuple[str, int]] = []
    keys, orders = [numeric_array(())], list[tuple[pa.Array, ...]]()
    for path, found in sorted(inputs.found.items()):
        place = pc.index_in(found.key, value_set=of_keys)
        mine = found.filter(place.is_valid())
        places += [(path, row) for row in mine.rows.to_pylist()]
        keys.append(place.drop_null().cast(pa.int64()))
        orders.append(mine.values)
    key, order = pa.concat_arrays(keys), [pa.concat_arrays(some) for some in zip(*orders, strict=True)]
    if not len(key):
        return [], key, []
    # others may have added several rows of a key: the newest one has the values
    last = last_rows([key], order).rows
    return [places[row] for row in last.to_pylist()], key.take(last), [column.take(last) for column in order]


def _all(number: int, count: int) -> pa.Array:
    return pa.repeat(numeric_scalar(number), count)
