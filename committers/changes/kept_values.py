"""Values that rows keep: from which older row each of them comes. Pure.

A row that leaves a column as it is gets the value of the row of its key before it: an earlier one of the
batch, the one of a batch before, or the row of the table. A deletion in between leaves nothing to keep.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow_values import null_scalar, numeric_array
from ..contract import EVERY_COLUMN, Changes
from ..errors import ConfigurationError
from .key_files import Keys
from .keys import row_numbers

TABLE = -1
"""Batch of the rows that the table has."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Rows of some keys: of the table, and of one batch or several."""

    key: pa.Array
    """Number of the key of each row (int64)."""
    batch: pa.Array
    """Its batch (int64); `TABLE` for the row that the table has."""
    keys: Keys
    """Order, deletions and kept columns. Rows of the table are no deletions, keep nothing and have any
    order.
    """

    def __len__(self) -> int:
        return len(self.key)


def check_partial(changes: Changes, columns: Collection[str]) -> None:
    """Check the columns that rows may keep.

    Args:
        columns: of the table

    Raises:
        ConfigurationError: one of them is unknown.
    """
    known = {EVERY_COLUMN, *(name.lower() for name in columns)}
    if unknown := [name for name in changes.partial_columns if name.lower() not in known]:
        raise ConfigurationError(
            f"updateColumns names {', '.join(map(repr, unknown))}, and the table has only the columns "
            f"{', '.join(dict.fromkeys(columns))}. Nothing was written. Correct the option."
        )


def sources(entries: Entries, names: Sequence[str]) -> Mapping[str, pa.Array]:
    """Return for each column the numbers of the rows that have the values of the keys (int64), in the order
    of the keys' numbers. NULL: no row has the value, so it is NULL.
    """
    table = pa.table(
        [entries.key, entries.batch, *entries.keys.order],
        ["key", "batch", *(f"order.{number}" for number in range(len(entries.keys.order)))],
    )
    in_order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    in_order = in_order.cast(pa.int64())
    key, deleted = entries.key.take(in_order), entries.keys.is_deleted.take(in_order)
    every_key = pc.unique(entries.key)
    every_key = every_key.take(pc.array_sort_indices(every_key))
    found = {}
    for name in names:
        is_given = pc.or_(deleted, pc.invert(entries.keys.keeping(name).take(in_order)))
        places = pa.table([key.filter(is_given), row_numbers(len(key)).filter(is_given)], ["key", "place"])
        last = places.group_by("key", use_threads=False).aggregate([("place", "max")])
        place = (
            last.column("place_max")
            .combine_chunks()
            .take(pc.index_in(every_key, value_set=last.column("key").combine_chunks()))
        )
        is_value = pc.invert(deleted.take(place))
        found[name] = pc.if_else(is_value, in_order.take(place), null_scalar(pa.int64()))
    return found


def not_late(entries: Entries, late: Collection[int]) -> pa.Array:
    """Return the numbers of the rows that count if late rows are ignored (int64): without those of a batch
    whose last row of the key is older than the row of the table, or than that of a batch before.

    Args:
        late: numbers of last rows of a batch whose key was deleted by something newer
    """
    rows: dict[tuple[int, int], list[int]] = {}
    newest: dict[int, tuple[object, ...]] = {}
    order = list(zip(*[column.to_pylist() for column in entries.keys.order], strict=True))
    for number, place in enumerate(zip(entries.batch.to_pylist(), entries.key.to_pylist(), strict=True)):
        rows.setdefault(place, []).append(number)
    counting: list[int] = []
    for (_batch, key), numbers in sorted(rows.items()):
        last = max(numbers, key=lambda number: _comparable(order[number]))
        if last in late or (key in newest and _comparable(order[last]) < newest[key]):
            continue
        newest[key] = _comparable(order[last])
        counting += numbers
    return numeric_array(sorted(counting))


def _comparable(order: tuple[object, ...]) -> tuple[tuple[bool, object], ...]:
    """NULL is older than everything."""
    return tuple([(value is not None, value) for value in order])
