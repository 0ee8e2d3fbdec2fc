"""Reads Arrow IPC streams and files from untrusted sources.

Arrow's own reader is not safe for this: crafted bytes crash it while it reads a schema, it allocates as much
memory as a stream claims for a compressed buffer, and it does not check the offsets in the columns. This
package reads framing and FlatBuffers with bounds checks. Arrow only receives buffers of a known size, and
validates the resulting columns; only whether strings are UTF-8 is not checked. Format:
https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from .flatbuffers import Table, number
from .rows import EncodedRows, damage
from .schemas import schema_in

_SCHEMA, _RECORD_BATCH = 1, 3
_CONTINUATION = 0xFFFFFFFF
_FILE_START = b"ARROW1\0\0"


@dataclass(frozen=True, slots=True)
class Stream:
    """Content of a stream."""

    schema: pa.Schema
    batches: list[pa.RecordBatch]


def read_stream(content: bytes, bytes_max: int, rows_max: int) -> Stream:
    """Read a stream.

    Args:
        bytes_max: limit for all batches, decompressed
        rows_max: limit for all batches

    Raises:
        ValueError: the stream exceeds a limit, is damaged, or has a type that Penstock does not write.
    """
    opened = Messages(pa.BufferReader(content))
    batches = []
    for encoded in opened.batches(rows_max):
        batches.append(encoded.decode(bytes_max))
        bytes_max -= batches[-1].get_total_buffer_size()
    return Stream(opened.schema, batches)


def read_schema(content: bytes) -> pa.Schema:
    """Read what `pyarrow.Schema.serialize` returns.

    Raises:
        ValueError: it is damaged, or has a type that Penstock does not write.
    """
    return Messages(pa.BufferReader(content)).schema


class Messages:
    """The messages of an opened stream or file: a schema, then record batches. They are read one by one.

    Args:
        source: at the start of a stream or file. The footer of a file is not read.

    Raises:
        ValueError: as `read_stream`.
        OSError: the source cannot be read.
    """

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._left = source.size()
        with damage():
            self._left -= source.tell()
            start = self._take(8)
            if start == _FILE_START:
                start = self._take(8)
            header, _ = self._message(start, _SCHEMA)
            self.schema = schema_in(header)

    def batches(self, rows_max: int) -> Iterator[EncodedRows]:
        """
        Args:
            rows_max: limit for all batches
        """
        while self._left:
            with damage():
                start = self._take(8)
                if start[4:] == bytes(4):  # the end of the stream
                    return
                header, body = self._message(start, _RECORD_BATCH)
                encoded = EncodedRows(header, body, self.schema)
                rows_max -= encoded.rows
                if rows_max < 0:
                    raise ValueError("it has more rows than Penstock wrote")
            yield encoded

    def _message(self, start: memoryview, kind: int) -> tuple[Table, memoryview]:
        """Return the header and the body of a message.

        Args:
            start: its first eight bytes
        """
        if number("<I", start, 0) != _CONTINUATION:
            raise ValueError("a message does not start with the continuation marker")
        message = Table.root(self._take(_aligned(number("<I", start, 4))))
        if message.number(1, "<B") != kind:
            raise ValueError("a message is neither a schema nor a record batch")
        return message.table(2), self._take(_aligned(message.number(3, "<q")))

    def _take(self, length: int) -> memoryview:
        if not 0 <= length <= self._left:
            raise ValueError("it is truncated")
        self._left -= length
        taken = memoryview(self._source.read_buffer(length))
        if len(taken) != length:
            raise ValueError("it is truncated")
        return taken


def _aligned(length: int) -> int:
    if length % 8:
        raise ValueError("a message is not aligned")
    return length
