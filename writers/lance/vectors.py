"""Converts arrays of floats to vectors: lists of a fixed size, as Lance stores and indexes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping


class VectorConverter:
    """Converts the columns of one task attempt. Executors only.

    Args:
        table: the columns of the table
        where: names the task attempt in messages
    """

    def __init__(self, table: pa.Schema, where: str) -> None:
        self._where = where
        self._vectors: Mapping[str, pa.Field] = {
            field.name.lower(): field for field in table if pa.types.is_fixed_size_list(field.type)
        }

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with their vectors.

        Raises:
            SchemaMismatchError: an array has another length, a NULL, or a number beyond the element type.
        """
        if not self._vectors:
            return batch
        columns, fields = list(batch.columns), list(batch.schema)
        for number, field in enumerate(fields):
            vector = self._vectors.get(field.name.lower())
            if vector is None or field.type == vector.type:
                continue
            columns[number] = self._vectors_of(columns[number], vector)
            fields[number] = field.with_type(vector.type)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _vectors_of(self, arrays: pa.ListArray, vector: pa.Field) -> pa.FixedSizeListArray:
        length, element = vector.type.list_size, vector.type.value_type
        if arrays.null_count and not vector.nullable:
            raise self._error(
                vector, "there is a NULL, and the table declares it NOT NULL", "Filter these rows."
            )
        lengths = pc.list_value_length(arrays)
        wrong = pc.unique(lengths.filter(pc.not_equal(lengths, length))).to_pylist()
        if wrong:
            raise self._error(
                vector,
                f"an array has {wrong[0]} elements, and the vectors of the table have {length}",
                "Correct the source, or set badRows.",
            )
        values = pc.list_flatten(arrays)
        if values.null_count:
            raise self._error(vector, "an element is NULL", "Replace it in the query, for example with 0.")
        narrow = values.cast(element, safe=False)
        if values.type.bit_width > element.bit_width and _overflows(values, narrow):
            raise self._error(vector, f"a number is too large for {element}", "Use a wider type in vectors.")
        if not arrays.null_count:
            return pa.FixedSizeListArray.from_arrays(narrow, type=vector.type)
        return self._with_nulls(arrays, narrow, vector.type)

    @staticmethod
    def _with_nulls(arrays: pa.ListArray, values: pa.Array, data_type: pa.DataType) -> pa.FixedSizeListArray:
        """Spread the values of the arrays that are not NULL."""
        is_there = arrays.is_valid()
        places = pc.subtract(pc.cumulative_sum(is_there.cast(pa.int64())), 1)
        places = pc.if_else(is_there, places, pa.scalar(None, pa.int64()))
        return pa.FixedSizeListArray.from_arrays(values, type=data_type).take(places)

    def _error(self, vector: pa.Field, problem: str, remedy: str) -> SchemaMismatchError:
        return SchemaMismatchError(f"Column {vector.name}: {problem} ({self._where}). {remedy}")


def _overflows(values: pa.Array, narrow: pa.Array) -> bool:
    """Return True if a finite number has become infinite."""
    back = narrow.cast(pa.float64())
    return bool(pc.any(pc.and_(pc.is_finite(values), pc.is_inf(back))).as_py())
