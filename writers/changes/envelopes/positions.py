"""Positions in the logs of databases, as numbers that can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ....committers.arrow_values import numeric_array, numeric_scalar
from ....committers.errors import SchemaMismatchError

_BITS_32 = numeric_scalar(2**32)
_SLOT_BITS = 45
"""Bits of an offset below the slot of an LSN of SQL Server, in one number."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where changes are in a log. Both are int64, and NULL where the message does not have the position."""

    value: pa.Array
    counter: pa.Array
    """Orders changes with the same value."""

    @staticmethod
    def first(candidates: Sequence[Position]) -> tuple[pa.Array, pa.Array]:
        """Return for each message the value and the counter of the first that has a value."""
        value, counter = candidates[-1].value, candidates[-1].counter
        for one in reversed(candidates[:-1]):
            if one.value.null_count == len(one.value):
                continue
            has = pc.is_valid(one.value)
            value, counter = pc.if_else(has, one.value, value), pc.if_else(has, one.counter, counter)
        return value, counter


def binlog_position(file: pa.Array, offset: pa.Array, row: pa.Array) -> Position:
    """Return positions in MySQL's binary log. Its files are ordered by the number in their names.

    Args:
        file: such as `mysql-bin.000003`
        offset: in the file
        row: number of the row in its event

    Raises:
        SchemaMismatchError: a file has no number.
    """
    if file.null_count == len(file):
        return Position(pa.nulls(len(file), pa.int64()), row)
    names = file.dictionary_encode()
    numbers = []
    for name in names.dictionary.to_pylist():
        digits = name.rpartition(".")[2]
        if not (digits.isascii() and digits.isdigit() and int(digits) < 2**31):
            raise SchemaMismatchError(f"The binary log {name!r} has no number at its end.")
        numbers.append(int(digits))
    if pc.any(pc.or_(pc.less(offset, numeric_scalar(0)), pc.greater_equal(offset, _BITS_32))).as_py():
        raise SchemaMismatchError("A position in the binary log is not below 4 GiB.")
    of_file = numeric_array(numbers).take(names.indices)
    return Position(pc.add(pc.multiply(of_file, _BITS_32), offset), row)


def sql_server_position(lsn: pa.Array, offset: pa.Array) -> Position:
    """Return positions in the log of SQL Server.

    Args:
        lsn: such as `00000027:00000758:0005`
        offset: Kafka's offset

    Raises:
        SchemaMismatchError: a text is no LSN.
    """
    if lsn.null_count == len(lsn):
        return Position(pa.nulls(len(lsn), pa.int64()), offset)
    texts = lsn.dictionary_encode()
    blocks, slots = [], []
    for text in texts.dictionary.to_pylist():
        try:
            file, block, slot = (int(part, 16) for part in text.split(":"))
        except ValueError:
            file = block = slot = -1
        if not (0 <= file < 2**31 and 0 <= block < 2**32 and 0 <= slot < 2**16):
            raise SchemaMismatchError(f"{text!r} is no log sequence number of SQL Server.")
        blocks.append(file * 2**32 + block)
        slots.append(slot * 2**_SLOT_BITS)
    below = pc.fill_null(offset, numeric_scalar(0))
    counter = pc.add(numeric_array(slots).take(texts.indices), below)
    return Position(numeric_array(blocks).take(texts.indices), counter)
