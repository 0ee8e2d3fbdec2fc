"""Values in columns that the table does not have, or has with another type. Executors only."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.dead_letters import NewShapeError


def check_absent(array: pa.Array, path: str) -> None:
    """
    Raises:
        NewShapeError: a column that the table does not have is not NULL in all rows.
    """
    if len(array) > array.null_count and not pa.types.is_null(array.type):
        raise NewShapeError(f"Column {path}: the table does not have it, and the row has a value there.")


def exact_values(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    """Convert values of a type of which only some fit: numbers that stay the same, and NULL.

    Raises:
        NewShapeError: another value.
    """
    if array.null_count == len(array):
        return pa.nulls(len(array), target)
    if any(is_number(array.type) and is_number(target) for is_number in (_is_exact_number, _is_number)):
        with suppress(pa.ArrowInvalid):
            numbers = array.cast(target)
            back = numbers.cast(array.type)
            is_same = pc.equal(back, array)
            if pa.types.is_floating(array.type):
                is_same = pc.or_(is_same, pc.and_(pc.is_nan(back), pc.is_nan(array)))
            if pc.all(is_same).as_py() is not False:
                return numbers
    raise NewShapeError(f"Column {path}: a value of type {array.type} cannot be written as {target}.")


def _is_exact_number(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(data_type) or pa.types.is_decimal(data_type))


def _is_number(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(data_type) or pa.types.is_floating(data_type))
