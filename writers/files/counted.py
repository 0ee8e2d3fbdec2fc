"""The file that an encoder writes to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa


class Counted:
    """A file object that counts its bytes. An encoder that closes it leaves the file open."""

    def __init__(self, sink: pa.NativeFile) -> None:
        self._sink = sink
        self.size_bytes = 0
        self.closed = False

    def write(self, data: bytes) -> None:
        self._sink.write(data)
        self.size_bytes += len(data)

    def tell(self) -> int:
        return self.size_bytes

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Do nothing: it would not make the data durable earlier."""

    def close(self) -> None:
        self.closed = True


_CORRUPT_RECORD = "_corrupt_record"


def corrupt_record_problems(schema: pa.Schema) -> Iterator[str]:
    """Name the column that Spark fills with lines which it cannot parse, and with NULL in all other rows."""
    for name in schema.names:
        if name.lower() == _CORRUPT_RECORD:
            yield (
                f"{name}: Spark returns NULL for this column, unless it cannot parse a line. Rename it in "
                "the query."
            )


class TextFile:
    """Bytes of a file, compressed as a whole or not."""

    def __init__(self, file: Counted, codec: str) -> None:
        self._stream: Any = pa.PythonFile(file, mode="w")
        if codec != "none":
            self._stream = pa.CompressedOutputStream(self._stream, codec)

    @property
    def memory_bytes(self) -> int:
        return 256 * 1024

    def write_bytes(self, data: bytes) -> None:
        self._stream.write(data)

    def close(self) -> None:
        self._stream.close()
