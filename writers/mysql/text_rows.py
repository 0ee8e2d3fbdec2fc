"""Converts Arrow batches to the text of LOAD DATA and of INSERT, column by column in Arrow's own code.

Executors only. Values keep their full precision: floating-point numbers are written with all needed digits,
timestamps with microseconds and in UTC.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.errors import SchemaMismatchError
from ...committers.mysql.types import bytes_max, length_max
from ..database.value_checks import check_years
from ..parquet.columns import is_binary, is_string

_TEXT = pa.large_string()
_TAB, _LINE, _EMPTY = (pa.scalar(text, _TEXT) for text in ("\t", "\n", ""))
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\0", "\\0"))
_QUOTED_ESCAPES = (("\\", "\\\\"), ("'", "''"), ("\0", "\\0"), ("\x1a", "\\Z"))


@dataclass(frozen=True, slots=True)
class TextRows:
    """The rows of a batch, with each value as text."""

    columns: tuple[pa.Array, ...]
    strings: tuple[bool, ...]
    """Columns whose texts may have any character."""
    binaries: tuple[bool, ...]
    """Columns whose bytes are in hex."""

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(column.nbytes for column in self.columns)

    def lines(self) -> pa.Buffer:
        """The rows for `LOAD DATA ... FIELDS TERMINATED BY tab ESCAPED BY backslash`."""
        columns = [
            (_replaced(column, _ESCAPES) if is_text else column).fill_null("\\N")
            for column, is_text in zip(self.columns, self.strings, strict=True)
        ]
        joined = columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, _TAB)
        return _data_of(pc.binary_join_element_wise(joined, _EMPTY, _LINE))

    def values(self, bytes_max: int) -> Iterator[bytes]:
        """The rows for `INSERT ... VALUES`, in pieces of at most so many bytes, or of one row."""
        parts: list[pa.Array | pa.Scalar] = []
        for column, is_text, is_hex in zip(self.columns, self.strings, self.binaries, strict=True):
            escaped = _replaced(column, _QUOTED_ESCAPES) if is_text else column
            begin = pa.scalar("x'" if is_hex else "'", _TEXT)
            quoted = pc.binary_join_element_wise(begin, escaped, pa.scalar("'", _TEXT), _EMPTY)
            parts.append(quoted.fill_null("NULL"))
        comma = pa.scalar(",", _TEXT)
        joined = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, comma)
        rows = pc.binary_join_element_wise(pa.scalar("(", _TEXT), joined, pa.scalar("),", _TEXT), _EMPTY)
        data, ends = memoryview(_data_of(rows)), _offsets_of(rows)
        first = 0
        while first < len(rows):
            last = first + 1
            while last < len(rows) and ends[last + 1] - ends[first] <= bytes_max:
                last += 1
            yield bytes(data[ends[first] - ends[0] : ends[last] - ends[0] - 1])
            first = last


def text_rows(batch: pa.RecordBatch) -> TextRows:
    """
    Raises:
        SchemaMismatchError: names the column with a value that MySQL cannot store.
    """
    pairs = list(zip(batch.columns, batch.schema.names, strict=True))
    return TextRows(
        tuple(_text(array, name) for array, name in pairs),
        tuple(is_string(array.type) for array, _ in pairs),
        tuple(is_binary(array.type) for array, _ in pairs),
    )


def check_lengths(array: pa.Array, column: str, kind: str) -> None:
    """Check that texts and bytes fit their column. A server cuts spaces off that do not fit a `varchar`,
    without an error.

    Args:
        kind: SQL type of the column

    Raises:
        SchemaMismatchError: one does not fit.
    """
    unit, most = "characters", length_max(kind)
    if most is None or is_binary(array.type):
        unit, most = "bytes", most if most is not None else bytes_max(kind)
    if most is None or not (is_string(array.type) or is_binary(array.type)):
        return
    lengths = pc.utf8_length(array) if unit == "characters" else pc.binary_length(array)
    longest = pc.max(lengths).as_py()
    if longest is not None and longest > most:
        raise SchemaMismatchError(
            f"A value of {longest:,} {unit} does not fit the column {column}, which is {kind}. Make the "
            "column longer, or shorten the value in the query."
        )


def _text(array: pa.Array, column: str) -> pa.Array:
    """Each value in the form that MySQL reads, not escaped."""
    data_type = array.type
    if is_binary(data_type):
        return _hex(array)
    if pa.types.is_boolean(data_type):
        return array.cast(pa.int8()).cast(_TEXT)
    if pa.types.is_timestamp(data_type):
        check_years(array, column)
        return array.view(pa.timestamp("us")).cast(_TEXT)
    if pa.types.is_date(data_type):
        check_years(array, column)
    if pa.types.is_floating(data_type):
        array = array.cast(pa.float64())  # the shortest text of a float may be beyond the largest one
        if pc.all(pc.is_finite(array)).as_py() is False:
            raise SchemaMismatchError(
                f"A number in {column} is NaN or infinite, which MySQL cannot store. Replace it in the "
                f"query, e.g. with nanvl({column}, NULL), or cast the column to STRING."
            )
    return array.cast(_TEXT)


def _replaced(strings: pa.Array, escapes: Sequence[tuple[str, str]]) -> pa.Array:
    data = _data_of(strings).to_pybytes()  # which Python searches far faster than Arrow its strings
    for char, escaped in escapes:
        if char.encode() in data:
            strings = pc.replace_substring(strings, char, escaped)
    return strings


def _data_of(strings: pa.Array) -> pa.Buffer:
    ends = _offsets_of(strings)
    data = strings.buffers()[2]
    return pa.py_buffer(b"") if data is None else data.slice(ends[0], ends[-1] - ends[0])


def _offsets_of(strings: pa.Array) -> memoryview:
    offsets = strings.buffers()[1]
    view = memoryview(offsets).cast("b").cast("q")
    return view[strings.offset : strings.offset + len(strings) + 1]


def _hex(array: pa.Array) -> pa.Array:
    """Return two hex digits for each byte, for the whole buffer at once."""
    array = array.cast(pa.large_binary())
    if array.offset:  # a slice: its buffers also contain the values before it
        array = pa.concat_arrays([array, pa.array([], pa.large_binary())])
    valid, offsets, data = array.buffers()
    digits = b"" if data is None else data.to_pybytes().hex().encode()
    doubled = pc.multiply(pa.Array.from_buffers(pa.int64(), len(array) + 1, [None, offsets]), 2)
    return pa.Array.from_buffers(_TEXT, len(array), [valid, doubled.buffers()[1], pa.py_buffer(digits)])
