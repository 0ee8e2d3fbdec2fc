"""Reads Arrow IPC streams of integer and string columns from untrusted sources.

Arrow's own reader is not safe for this: crafted bytes crash it while it reads a schema, and it allocates as
much memory as a stream claims for a compressed buffer. This module reads framing and FlatBuffers with bounds
checks. Arrow only receives buffers of a known size, and validates the resulting columns. Format:
https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

# The numbers below are from Arrow's Message.fbs and Schema.fbs.
_SCHEMA, _RECORD_BATCH = 1, 3
_INT, _UTF8, _LARGE_UTF8 = 2, 5, 20
_ZSTD = 1
_CONTINUATION = 0xFFFFFFFF
_UNCOMPRESSED = -1
"""Stored as the size of a buffer that is not compressed."""
_NAME_BYTES_MAX = 64
_COLUMNS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Stream:
    """Content of a stream."""

    schema: pa.Schema
    """Schema without its metadata."""
    metadata: bytes
    """Value of the requested metadata key."""
    batches: list[pa.RecordBatch]


def read_stream(content: bytes, key: bytes, bytes_max: int, rows_max: int) -> Stream:
    """Read a stream and validate all its values.

    Args:
        key: of the schema's metadata
        bytes_max: limit for all batches, decompressed
        rows_max: limit for all batches

    Raises:
        ValueError: the stream exceeds a limit, is damaged, or has columns of other types.
    """
    try:
        messages = _messages(memoryview(content))
        first, _ = next(messages)
        schema = _schema(first)
        metadata = _metadata(first, key)
        batches = []
        for header, body in messages:
            batch = _RecordBatch(header, body)
            rows_max -= batch.rows
            bytes_max -= batch.size_bytes
            if rows_max < 0 or bytes_max < 0:
                raise ValueError("it is larger than any stream that Penstock writes")
            batches.append(batch.read(schema))
    except (struct.error, IndexError, StopIteration) as error:
        raise ValueError(f"it is damaged or truncated: {error}") from None
    return Stream(schema, metadata, batches)


def _messages(content: memoryview) -> Iterator[tuple[_Table, memoryview]]:
    """Yield (header, body) of the schema, then of each record batch."""
    position, expected = 0, _SCHEMA
    while position < len(content):
        if _number("<I", content, position) != _CONTINUATION:
            raise ValueError("a message does not start with the continuation marker")
        length = _number("<I", content, position + 4)
        if length == 0:
            return
        if length % 8:
            raise ValueError("a message is not aligned")
        message = _Table.root(_part(content, position + 8, length))
        body = _part(content, position + 8 + length, message.number(3, "<q"))
        if message.number(1, "<B") != expected:
            raise ValueError("a message is neither a schema nor a record batch")
        yield message.table(2), body
        position += 8 + length + len(body)
        if len(body) % 8:
            raise ValueError("a message is not aligned")
        expected = _RECORD_BATCH


def _schema(header: _Table) -> pa.Schema:
    if header.number(0, "<h") != 0:
        raise ValueError("it is big-endian")
    fields = list(header.tables(1, _COLUMNS_MAX))
    return pa.schema(
        [(_text(field, 0, _NAME_BYTES_MAX).tobytes().decode(), _type(field)) for field in fields]
    )


def _type(field: _Table) -> pa.DataType:
    kind = field.number(2, "<B")
    if field.has(4) or kind not in (_INT, _UTF8, _LARGE_UTF8):
        raise ValueError("a column has a type other than integer or string")
    if kind == _INT and (field.table(3).number(0, "<i"), field.table(3).number(1, "<B")) != (64, 1):
        raise ValueError("a column has integers that are not 64 bits wide")
    return {_INT: pa.int64(), _UTF8: pa.string(), _LARGE_UTF8: pa.large_string()}[kind]


def _metadata(header: _Table, key: bytes) -> bytes:
    for entry in header.tables(2, _COLUMNS_MAX):
        if _text(entry, 0, _NAME_BYTES_MAX) == key:
            return _text(entry, 1, None).tobytes()
    raise ValueError(f"it lacks the key {key.decode()!r}")


def _text(table: _Table, field: int, bytes_max: int | None) -> memoryview:
    position, length = table.vector(field)
    if bytes_max is not None and length > bytes_max:
        raise ValueError("a name is too long")
    return _part(table.data, position, length)


class _RecordBatch:
    """A record batch whose buffers are still compressed."""

    def __init__(self, header: _Table, body: memoryview) -> None:
        self.rows = header.number(0, "<q")
        position, length = header.vector(2)
        ranges = list(struct.iter_unpack("<qq", _part(header.data, position, 16 * length)))
        self._parts = [_part(body, *one) for one in ranges]
        self._sizes = [_UNCOMPRESSED] * length
        if header.has(3):
            if header.table(3).number(0, "<b") != _ZSTD:
                raise ValueError("it is not compressed with zstd")
            self._sizes = [_number("<q", part, 0) if len(part) else 0 for part in self._parts]
            self._parts = [part[8:] for part in self._parts]
        if self.rows < 0 or min(self._sizes, default=0) < _UNCOMPRESSED:
            raise ValueError("a size is negative")
        if any(offset % 8 for offset, _ in ranges):
            raise ValueError("a buffer is not aligned")

    @property
    def size_bytes(self) -> int:
        """Decompressed size."""
        pairs = zip(self._sizes, self._parts, strict=True)
        return sum(len(part) if size == _UNCOMPRESSED else size for size, part in pairs)

    def read(self, schema: pa.Schema) -> pa.RecordBatch:
        buffers = map(self._buffer, self._parts, self._sizes)
        columns = []
        for kind in schema.types:
            own = [next(buffers) for _ in range(2 if kind == pa.int64() else 3)]
            validity = own[0] if own[0].size else None
            columns.append(pa.Array.from_buffers(kind, self.rows, [validity, *own[1:]]))
            columns[-1].validate(full=True)
        if next(buffers, None) is not None:
            raise ValueError("a record batch has more buffers than its columns need")
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    @staticmethod
    def _buffer(part: memoryview, size: int) -> pa.Buffer:
        if size == _UNCOMPRESSED:
            return pa.py_buffer(part)
        if size == 0:
            return pa.py_buffer(b"")
        buffer = pa.Codec("zstd").decompress(part, decompressed_size=size)
        if buffer.size != size:
            raise ValueError("a buffer does not have the declared size")
        return buffer


# FlatBuffers ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Table:
    """A FlatBuffers table. Fields are addressed by number; an absent field has its default value."""

    data: memoryview
    position: int

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        return cls(data, _number("<I", data, 0))

    def has(self, field: int) -> bool:
        return self._at(field) is not None

    def number(self, field: int, code: str) -> int:
        at = self._at(field)
        return 0 if at is None else _number(code, self.data, at)

    def table(self, field: int) -> _Table:
        at = self._at(field)
        if at is None:
            raise IndexError("a required table is absent")
        return _Table(self.data, at + _number("<I", self.data, at))

    def vector(self, field: int) -> tuple[int, int]:
        """(position, length) of a vector or string; length 0 if the field is absent."""
        at = self._at(field)
        if at is None:
            return 0, 0
        at += _number("<I", self.data, at)
        return at + 4, _number("<I", self.data, at)

    def tables(self, field: int, length_max: int) -> Iterator[_Table]:
        position, length = self.vector(field)
        if length > length_max:
            raise ValueError("it has more columns than any stream that Penstock writes")
        for at in range(position, position + 4 * length, 4):
            yield _Table(self.data, at + _number("<I", self.data, at))

    def _at(self, field: int) -> int | None:
        vtable = self.position - _number("<i", self.data, self.position)
        entry = 4 + 2 * field
        if entry + 2 > _number("<H", self.data, vtable):
            return None
        offset = _number("<H", self.data, vtable + entry)
        return self.position + offset if offset else None


def _number(code: str, data: memoryview, position: int) -> int:
    if position < 0:  # negative indices would count from the end
        raise IndexError("an offset is negative")
    (number,) = struct.unpack_from(code, data, position)
    return int(number)


def _part(data: memoryview, position: int, length: int) -> memoryview:
    if position < 0 or length < 0 or position + length > len(data):
        raise IndexError("an offset points outside of its message")
    return data[position : position + length]
