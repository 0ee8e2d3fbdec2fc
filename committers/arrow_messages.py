"""Reads an Arrow IPC stream that somebody else may have written.

Arrow allocates the memory that a stream claims for its decompressed buffers, and checks only on request that
offsets lie within a buffer: without these checks crafted bytes end the process.
The format: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

_RECORD_BATCH = 3
"""In Arrow's Message.fbs, the type of the header."""
_UNCOMPRESSED = -1
"""In place of the size of a buffer that is not compressed."""


def read_stream(body: bytes, bytes_max: int, rows_max: int) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The stream's schema and its batches, all of them validated in full. Their columns are not nested.

    Args:
        bytes_max: of all batches, decompressed
        rows_max: of all batches

    Raises:
        ValueError: the stream is larger than that, damaged, or no stream of flat columns.
        OSError: it is cut off.
    """
    messages = pa.ipc.MessageReader.open_stream(body)
    schema = pa.ipc.read_schema(next(messages))
    if any(pa.types.is_nested(kind) or pa.types.is_dictionary(kind) for kind in schema.types):
        raise ValueError("a column is nested or has a dictionary")
    batches = []
    for message in messages:
        rows, size_bytes = _claimed(message)
        rows_max -= rows
        bytes_max -= size_bytes
        if rows_max < 0 or bytes_max < 0:
            raise ValueError("it is larger than any that Penstock writes")
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        batches.append(batch)
    return schema, batches


def _claimed(message: pa.ipc.Message) -> tuple[int, int]:
    """(rows, decompressed bytes) of a record batch, as it says itself."""
    metadata, body = memoryview(message.metadata), memoryview(message.body)
    try:
        envelope = _Table(metadata, _number("<I", metadata, 0))
        kind = envelope.field(1)
        header = envelope.field(2)
        if kind is None or header is None or metadata[kind] != _RECORD_BATCH:
            raise ValueError("a message is no record batch")
        batch = _Table(metadata, header + _number("<I", metadata, header))
        length, buffers = batch.field(0), batch.field(2)
        rows = 0 if length is None else _number("<q", metadata, length)
        ranges = [] if buffers is None else list(_ranges(metadata, buffers))
        is_compressed = batch.field(3) is not None
        sizes = [_size(body, *one, is_compressed) for one in ranges]
    except (struct.error, IndexError):
        raise ValueError("a record batch is damaged") from None
    if rows < 0 or any(size < 0 for size in sizes):
        raise ValueError("a record batch has a negative size")
    return rows, sum(sizes)


class _Table:
    """A table of FlatBuffers: its fields by their number."""

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self._position = position
        self._vtable = position - _number("<i", data, position)

    def field(self, number: int) -> int | None:
        """Where the field is; None if it is left out."""
        entry = 4 + 2 * number
        if entry >= _number("<H", self._data, self._vtable):
            return None
        offset = _number("<H", self._data, self._vtable + entry)
        return self._position + offset if offset else None


def _number(format_: str, data: memoryview, position: int) -> int:
    if position < 0:  # Python would count from the end
        raise IndexError(position)
    (number,) = struct.unpack_from(format_, data, position)
    return int(number)


def _ranges(data: memoryview, field: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of each buffer in the body."""
    vector = field + _number("<I", data, field)
    for index in range(_number("<I", data, vector)):
        at = vector + 4 + 16 * index
        yield _number("<q", data, at), _number("<q", data, at + 8)


def _size(body: memoryview, offset: int, length: int, is_compressed: bool) -> int:
    if not is_compressed or length == 0:
        return length
    size = _number("<q", body, offset)
    return length if size == _UNCOMPRESSED else size
