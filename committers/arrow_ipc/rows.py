"""Reads the rows in an Arrow message. The numbers are from Arrow's Message.fbs."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from .flatbuffers import Table, number, part

_ZSTD = 1
_UNCOMPRESSED = -1
"""Stored as the size of a buffer that is not compressed."""


@contextmanager
def damage() -> Iterator[None]:
    """Raise ValueError for what damaged bytes cause."""
    try:
        yield
    except (struct.error, IndexError, TypeError, OverflowError, RecursionError, pa.ArrowException) as error:
        raise ValueError(f"it is damaged: {error}") from None


class EncodedRows:
    """A record batch whose buffers are still compressed."""

    def __init__(self, header: Table, body: memoryview, schema: pa.Schema) -> None:
        self._schema = schema
        self._nodes = header.structs(1, "<qq")
        ranges = header.structs(2, "<qq")
        self.rows = header.number(0, "<q")
        self._parts = [part(body, *one) for one in ranges]
        self._sizes = [_UNCOMPRESSED] * len(ranges)
        if header.has(3):
            if header.table(3).number(0, "<b") != _ZSTD:
                raise ValueError("it is not compressed with zstd")
            self._sizes = [number("<q", one, 0) if len(one) else 0 for one in self._parts]
            self._parts = [one[8:] for one in self._parts]
        if self.rows < 0 or min(self._sizes, default=0) < _UNCOMPRESSED:
            raise ValueError("a size is negative")
        if any(offset % 8 for offset, _ in ranges):
            raise ValueError("a buffer is not aligned")

    def decode(self, bytes_max: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return the rows. All their offsets and lengths are checked.

        Args:
            bytes_max: limit for the columns, decompressed
            columns: None: all. Others are not decompressed.

        Raises:
            ValueError: they exceed the limit or are damaged.
        """
        with damage():
            return self._decode(_Decoder(self._nodes, self._parts, self._sizes, bytes_max), columns)

    def _decode(self, decoder: _Decoder, columns: Sequence[str] | None) -> pa.RecordBatch:
        fields, arrays = [], []
        for field in self._schema:
            if columns is not None and field.name not in columns:
                decoder.skip(field.type)
                continue
            column = decoder.column(field.type)
            if column.length != self.rows:
                raise ValueError("a column does not have the number of rows of its batch")
            column.check(_stored(field.type))
            fields.append(field)
            arrays.append(column.array(field.type))
        decoder.check_end()
        if not arrays:  # `from_arrays` would lose the number of rows
            empty = pa.Array.from_buffers(pa.struct([]), self.rows, [None])
            return pa.RecordBatch.from_struct_array(empty)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, self._schema.metadata))


@dataclass(frozen=True, slots=True)
class _Column:
    """Length and buffers of an array."""

    length: int
    buffers: Sequence[pa.Buffer | None]
    children: Sequence[_Column]

    def array(self, kind: pa.DataType) -> pa.Array:
        """Return the array, without a check of what it contains."""
        children = [one.array(of) for one, of in zip(self.children, _children(kind), strict=True)]
        return pa.Array.from_buffers(kind, self.length, self.buffers, children=children)

    def check(self, kind: pa.DataType) -> None:
        """
        Raises:
            ValueError, pyarrow.ArrowInvalid: `array` must not be called, or what it returns is damaged.
        """
        for child, of in zip(self.children, _children(kind), strict=True):
            child.check(of)
            if pa.types.is_map(kind):  # Arrow ends the process for a map with a NULL among its keys
                entries = child.array(of)
                if entries.null_count or entries.field(0).null_count:
                    raise ValueError("a map has a NULL among its keys")
        self.array(kind).validate(full=True)


class _Decoder:
    """Builds the arrays of a record batch, depth first, as Arrow writes them."""

    def __init__(
        self,
        nodes: Sequence[tuple[int, ...]],
        parts: Sequence[memoryview],
        sizes: Sequence[int],
        bytes_max: int,
    ) -> None:
        self._nodes = iter(nodes)
        self._buffers = iter(zip(parts, sizes, strict=True))
        self._bytes_left = bytes_max

    def column(self, kind: pa.DataType) -> _Column:
        length, _ = self._node()
        if length < 0:
            raise ValueError("an array has a negative length")
        validity, *buffers = [self._buffer() for _ in range(kind.num_buffers)]
        if length == 0 and _has_offsets(kind) and not buffers[0].size:
            buffers[0] = pa.py_buffer(
                bytes(8)
            )  # Arrow for Java leaves them out, Arrow for C++ reads the first
        children = [self.column(child) for child in _children(kind)]
        return _Column(length, [validity if validity.size else None, *buffers], children)

    def skip(self, kind: pa.DataType) -> None:
        self._node()
        for _ in range(kind.num_buffers):
            self._next_buffer()
        for child in _children(kind):
            self.skip(child)

    def check_end(self) -> None:
        if next(self._nodes, None) is not None or next(self._buffers, None) is not None:
            raise ValueError("a record batch has more buffers than its columns need")

    def _node(self) -> tuple[int, ...]:
        node = next(self._nodes, None)
        if node is None:
            raise ValueError("a record batch has fewer arrays than its columns need")
        return node

    def _next_buffer(self) -> tuple[memoryview, int]:
        found = next(self._buffers, None)
        if found is None:
            raise ValueError("a record batch has fewer buffers than its columns need")
        return found

    def _buffer(self) -> pa.Buffer:
        content, size = self._next_buffer()
        self._bytes_left -= len(content) if size == _UNCOMPRESSED else size
        if self._bytes_left < 0:
            raise ValueError("it is larger than any stream that Penstock writes")
        if size == _UNCOMPRESSED:
            return pa.py_buffer(content)
        if size == 0:
            return pa.py_buffer(b"")
        try:
            buffer = pa.Codec("zstd").decompress(content, decompressed_size=size)
        except OSError as error:
            raise ValueError(f"a buffer cannot be decompressed: {error}") from None
        if buffer.size != size:
            raise ValueError("a buffer does not have the declared size")
        return buffer


def _children(kind: pa.DataType) -> Iterator[pa.DataType]:
    if pa.types.is_map(kind):
        yield pa.struct([kind.key_field, kind.item_field])
    elif pa.types.is_struct(kind):
        yield from (field.type for field in kind)
    elif pa.types.is_nested(kind):
        yield kind.value_type


def _has_offsets(kind: pa.DataType) -> bool:
    types = pa.types
    has_elements = types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind)
    return has_elements or kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _stored(kind: pa.DataType) -> pa.DataType:
    """Return the type with the same buffers and less to check.

    Spark casts any bytes to STRING, and does not check the digits of each decimal that it reads.
    """
    types = pa.types
    if types.is_string(kind):
        return pa.binary()
    if types.is_large_string(kind):
        return pa.large_binary()
    if types.is_decimal(kind):
        return pa.binary(kind.byte_width)
    if types.is_map(kind):
        return pa.map_(_stored_field(kind.key_field), _stored_field(kind.item_field))
    if types.is_struct(kind):
        return pa.struct([_stored_field(field) for field in kind])
    if types.is_fixed_size_list(kind):
        return pa.list_(_stored_field(kind.value_field), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(_stored_field(kind.value_field))
    if types.is_list(kind):
        return pa.list_(_stored_field(kind.value_field))
    return kind


def _stored_field(field: pa.Field) -> pa.Field:
    return field.with_type(_stored(field.type))
