"""Writes the rows of one task attempt to a file of the row log. Executors only."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from ...committers.contract import AttemptId, DataFile, DataFiles
from ...committers.crash_points import reach
from ...committers.errors import RetryableError
from ...committers.row_log.names import CHECKSUM, row_log_path
from ..delta.filesystem import open_filesystem
from ..parquet.new_files import LocalFiles, NewFiles
from ..parquet.uploads import Uploads

UPLOAD_BYTES_MAX = 64 * 1024 * 1024
"""Data that may wait for its upload to an object store."""
BATCH_BYTES_MAX = 1024**3
"""Size of an Arrow batch; a larger one is written in parts."""
BLOCK_BYTES = 1024 * 1024
"""Data that is written at a time."""

Check = Callable[[pa.RecordBatch], object]
"""Raises `SchemaMismatchError` if the destination would not accept a value."""


def accept_all(_: pa.RecordBatch) -> None:
    """A `Check` for destinations whose delivery finds the rows that cannot be sent."""


@dataclass(frozen=True, slots=True)
class RowLogWriters:
    """Opens task writers. Pickled to the executors, with the options of the object store."""

    location: str
    storage_options: Mapping[str, str] = field(repr=False)
    check: Check

    def open(self, attempt: AttemptId) -> RowLogWriter:
        return RowLogWriter(self, attempt)

    def new_files(self) -> NewFiles:
        filesystem, root = open_filesystem(self.location, dict(self.storage_options))
        return LocalFiles(root) if isinstance(filesystem, LocalFileSystem) else Uploads(filesystem, root)


class RowLogWriter:
    """See `TaskWriter`. One Arrow IPC file, compressed with zstd; none for a task without rows.

    It holds one Arrow batch in memory and, on an object store, what waits for its upload.
    """

    def __init__(self, config: RowLogWriters, attempt: AttemptId) -> None:
        self._config = config
        self._batch_id = attempt.batch_id
        self._path = row_log_path(attempt)
        self._files: NewFiles | None = None
        self._content: _Checksummed | None = None
        self._stream: pa.NativeFile | None = None
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._rows = 0

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """See `ChecksRows`."""
        self._config.check(batch)

    def write(self, batch: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaMismatchError: the destination would not accept a value.
            RetryableError: the file cannot be written.
        """
        if not batch.num_rows:
            return
        self._config.check(batch)
        with self._writing():
            self._write(batch)

    def finish(self) -> DataFiles:
        if self._writer is None or self._stream is None or self._content is None or self._files is None:
            return ()
        with self._writing():
            self._writer.close()
            size_bytes = self._stream.tell()
            self._stream.close()
            self._files.finish()
        reach("write.files_closed", self._batch_id)
        checksum = f"{CHECKSUM}{self._content.checksum:08x}"
        return (DataFile(self._path, size_bytes, self._rows, statistics=checksum),)

    def abort(self) -> None:
        """Delete the file. Never raises, so that the original error is reported."""
        if self._files is not None:
            self._files.delete_all()
        for opened in (self._writer, self._stream):
            with suppress(Exception):
                if opened is not None:
                    opened.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RetryableError(
                f"The file {self._path} of the row log {self._config.location} cannot be written: {error}. "
                f"No row of batch {self._batch_id} waits for its delivery. Check that the storage has space, "
                "and that this user may write to it. Then start the query again: it writes the batch again."
            ) from error

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._open(batch.schema)
            reach("write.file_open", self._batch_id)
        assert self._writer is not None
        assert self._files is not None
        # The reader has a limit for the size of what is written at a time.
        parts = batch.get_total_buffer_size() // BATCH_BYTES_MAX + 1
        rows = -(-batch.num_rows // parts)
        for first in range(0, batch.num_rows, rows):
            self._writer.write_batch(batch.slice(first, rows))
        self._rows += batch.num_rows
        while self._files.on_their_way_bytes > UPLOAD_BYTES_MAX:
            self._files.wait_for_one()

    def _open(self, schema: pa.Schema) -> None:
        self._files = self._config.new_files()
        self._content = _Checksummed(self._files.open(self._path))
        # Arrow writes each column by itself.
        self._stream = pa.BufferedOutputStream(pa.PythonFile(self._content, mode="w"), BLOCK_BYTES)
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._writer = pa.ipc.new_file(self._stream, schema, options=options)


class _Checksummed:
    """A file for Arrow that keeps the CRC-32 of what is written to it."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self.checksum = 0

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, content: bytes) -> None:
        self.checksum = zlib.crc32(content, self.checksum)
        self._stream.write(content)

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()
