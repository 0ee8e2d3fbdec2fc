"""Rows that `COPY ... TO STDOUT (FORMAT csv)` has sent, as Arrow batches.

pyarrow parses the CSV. A value that Arrow does not have is an error: `infinity` of times, NaN of `numeric`,
years before 1 and after 9999, arrays with several dimensions. (Arrow's own driver for Postgres, ADBC, makes
another time of the first, and one dimension of the last.)
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
from psycopg.adapt import Transformer
from psycopg.pq import Format

from ...committers.arrow_values import numeric_array, string_array, validity
from ...committers.errors import PenstockError
from ..scan import BATCH_BYTES, BATCH_ROWS_MAX
from .types import UNLIMITED

_TEXT_ARRAY_OID = 1009
_BLOCK_BYTES_MAX = 2**31 - 1
_FITS_UNLIMITED = r"^-?\d{1,20}(\.\d{1,18})?$"
"""Arrow converts other numbers to any values."""


def copied_batches(lines: Iterable[Any], rows: CopiedRows) -> Iterator[pa.RecordBatch]:
    """Yield batches of about `BATCH_BYTES` of CSV.

    Args:
        lines: one row each

    Raises:
        PenstockError: a column has a value that Arrow does not have.
    """
    buffered: list[bytes] = []
    size = 0
    for line in lines:
        buffered.append(line)
        size += len(line)
        if size >= BATCH_BYTES or len(buffered) >= BATCH_ROWS_MAX:
            yield rows.batch(buffered)
            buffered, size = [], 0
    if buffered:
        yield rows.batch(buffered)


class CopiedRows:
    """Converts rows of CSV.

    Args:
        columns: of the CSV. Bytes are hexadecimal, arrays in the form of Postgres.
        table: for messages
    """

    def __init__(self, columns: pa.Schema, table: str) -> None:
        self._columns = columns
        self._table = table

    def batch(self, lines: list[bytes]) -> pa.RecordBatch:
        """
        Raises:
            PenstockError: a column has a value that Arrow does not have.
        """
        if not self._columns.names:
            return pa.RecordBatch.from_arrays([pa.nulls(len(lines))], names=["rows"])
        content = b"".join(lines)
        try:
            found = self._parsed(content, self._columns.names)
        except pa.ArrowException:
            raise self._unfit(content) from None  # its message has the value
        return pa.RecordBatch.from_arrays(found, schema=self._columns)

    def _parsed(self, content: bytes, names: list[str]) -> list[pa.Array]:
        fields = [self._columns.field(name) for name in names]
        table = pv.read_csv(
            pa.BufferReader(content),
            read_options=pv.ReadOptions(
                column_names=self._columns.names, block_size=_BLOCK_BYTES_MAX, use_threads=False
            ),
            # NULL alone in its row is an empty line
            parse_options=pv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pv.ConvertOptions(
                column_types={field.name: _parsed_type(field.type) for field in fields},
                include_columns=names,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )
        columns = (one.combine_chunks() for one in table.columns)
        return [self._converted(column, field.type) for column, field in zip(columns, fields, strict=True)]

    def _converted(self, parsed: pa.Array, data_type: pa.DataType) -> pa.Array:
        if pa.types.is_list(data_type):
            return self._lists(parsed, data_type)
        if pa.types.is_binary(data_type):
            return _bytes_of(parsed)
        return parsed if parsed.type == data_type else _decimals(parsed, data_type)

    def _lists(self, texts: pa.Array, data_type: pa.DataType) -> pa.Array:
        lists = [None if text is None else self._load_array(text.encode()) for text in texts.to_pylist()]
        elements = [element for one in lists if one for element in one]
        if any(isinstance(element, list) for element in elements):
            raise pa.ArrowInvalid("an array has more than one dimension")
        ends = accumulate((len(one or ()) for one in lists), initial=0)
        buffers = [validity(lists), pa.py_buffer(array("i", ends))]
        values = _elements(string_array(elements), data_type.value_type)
        return pa.Array.from_buffers(data_type, len(lists), buffers, children=[values])

    @cached_property
    def _load_array(self) -> Callable[[bytes], list[Any]]:
        """Parses an array; its elements are texts or None."""
        load = Transformer().get_loader(_TEXT_ARRAY_OID, Format.TEXT).load

        def load_array(text: bytes) -> list[Any]:
            if text.startswith(b"["):
                raise pa.ArrowInvalid("the first element of an array has another number than 1")
            return load(text)  # type: ignore[no-any-return]

        return load_array

    def _unfit(self, content: bytes) -> PenstockError:
        column = next((name for name in self._columns.names if not self._fits(content, name)), None)
        what = "a value" if column is None else f"a value in the column {column!r}"
        kind = "" if column is None else f", which is read as {self._columns.field(column).type}"
        return PenstockError(
            f"{self._table[0].upper()}{self._table[1:]} has {what} that cannot be read{kind}: such as "
            "infinity or years before 1 or after 9999 in times, NaN or too many digits in numeric, arrays "
            "with several dimensions, or text that is not UTF-8. Reading has stopped. Leave these rows out "
            "with the option where, give the other columns in the option columns, or read a view that "
            "replaces the value."
        )

    def _fits(self, content: bytes, name: str) -> bool:
        try:
            self._parsed(content, [name])
        except pa.ArrowException:
            return False
        return True


def _parsed_type(data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    is_text = types.is_list(data_type) or types.is_binary(data_type) or data_type == UNLIMITED
    return pa.string() if is_text else data_type


def _elements(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Convert the elements of arrays."""
    if pa.types.is_binary(data_type):
        return _bytes_of(pc.utf8_slice_codeunits(texts, 2))  # they begin with \\x
    if pa.types.is_boolean(data_type):
        return pc.equal(texts, string_array(["t"])[0])
    return _decimals(texts, data_type) if data_type == UNLIMITED else texts.cast(data_type)


def _decimals(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    if pc.all(pc.match_substring_regex(texts, _FITS_UNLIMITED)).as_py() is False:
        raise pa.ArrowInvalid("a number has too many digits")
    return texts.cast(data_type)


def _bytes_of(texts: pa.Array) -> pa.Array:
    """Decode hexadecimal digits."""
    valid, offsets, digits = texts.buffers()
    ends = pa.Array.from_buffers(pa.int32(), len(texts) + 1, [None, offsets])
    content = b"" if digits is None else bytes.fromhex(digits.to_pybytes()[: ends[-1].as_py()].decode())
    halves = pc.divide(ends, numeric_array([2], pa.int32())[0])
    return pa.Array.from_buffers(
        pa.binary(),
        len(texts),
        [valid, halves.buffers()[1], pa.py_buffer(content)],
        null_count=texts.null_count,
    )
