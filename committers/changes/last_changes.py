"""Which rows of a batch, or of the batches of a delivery, count: the last one of each key. Pure.

Tasks return the keys that they have written, each key once (`key_files`). The rows of a key that another task
or a later batch has written, too, are in files that cannot change any more. They lose: the commit adds them,
and masks them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow_values import numeric_scalar
from ..contract import Changes
from ..errors import SchemaMismatchError
from .key_files import Keys, WrittenKeys
from .keys import LastRows, last_rows, row_numbers


@dataclass(frozen=True, slots=True)
class LastChanges:
    """The last row of each key, and the rows that lose against it."""

    keys: Keys
    """Each key once."""
    written_in: pa.Array
    """For each of them, the number of its `WrittenKeys`."""
    losing: tuple[Keys, ...]
    """For each of the `WrittenKeys`, the keys whose rows there lose."""


def last_changes(written: Sequence[WrittenKeys], changes: Changes) -> LastChanges:
    """Return the rows that count. With one part of a batch, all of them do.

    Args:
        written: of one batch, or of consecutive batches, at least one
    """
    keys, parts = Keys.concat([one.keys for one in written]), repeated(range(len(written)), written)
    batches = repeated([one.batch_id for one in written], written)
    order = [*keys.order, batches] if changes.late_rows == "ignore" else [batches, *keys.order]
    last = last_rows(keys.columns, order).rows
    lost = pc.invert(pc.is_in(row_numbers(len(keys)), value_set=last))
    losing = [
        keys.take(pc.indices_nonzero(pc.and_(lost, pc.equal(parts, number))))
        for number in range(len(written))
    ]
    return LastChanges(keys.take(last), parts.take(last), tuple(losing))


def check_one_row(written: Sequence[WrittenKeys], where: str, are_equal: Callable[[LastRows], bool]) -> None:
    """Check that each key of one batch has one last row.

    Args:
        written: all of one batch
        where: names batch and query, for the message
        are_equal: returns True if the rows of the tied keys are equal. Called only if there are some

    Raises:
        SchemaMismatchError: two different rows of one key could be the last one.
    """
    if len(written) < 2:
        return
    keys = Keys.concat([one.keys for one in written])
    last = last_rows(keys.columns, keys.order)
    if not len(last.tied):
        return
    differ = pc.xor(keys.is_deleted.take(last.tied), keys.is_deleted.take(last.tied_with))
    for is_kept in keys.kept.values():
        differ = pc.or_(differ, pc.xor(is_kept.take(last.tied), is_kept.take(last.tied_with)))
    if pc.any(differ).as_py() or not are_equal(last):
        raise ambiguous(where, has_order=bool(keys.order))


def ambiguous(where: str, *, has_order: bool) -> SchemaMismatchError:
    """Return the error for two different rows of one key, either of which could be the last one."""
    reason = (
        "the same value of orderBy. Give a column that differs, or several"
        if has_order
        else "nothing tells which is the last one. Give their order with the option orderBy"
    )
    return SchemaMismatchError(
        f"Two different rows have the same key ({where}), and {reason}; or keep one row of each key in the "
        "query, for example with dropDuplicates(). Nothing of the batch was written."
    )


def repeated(numbers: Sequence[int], written: Sequence[WrittenKeys]) -> pa.Array:
    """Return for each key the number of its `WrittenKeys`."""
    pairs = zip(numbers, written, strict=True)
    return pa.concat_arrays([pa.repeat(numeric_scalar(number), len(one.keys)) for number, one in pairs])
