"""A row log: the prepared rows of decoupled streams whose destination cannot hold them (RisingWave RFC 0055).

One Arrow IPC file for each task attempt with rows; of a query with routes, at least one for each route. The
order of a batch's rows is that of partition and row, which is the same in each replay of the log, whichever
attempt has written them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.fs as pafs

from ..arrow_ipc.reader import Messages, read_schema
from ..cleaning.deletion import local_root
from ..cleaning.regular_files import open_input
from ..contract import Batch, DataFile
from ..delta.files import delta_files
from ..error_causes import retryable
from ..errors import NEXT_TRY, TableChangedError
from ..file_tables.files import TableFiles
from .names import CHECKSUM, PLANNED_ROWS, RowLogName

ROWS_MAX = 1000
"""Rows that are read from the log at a time."""
IN_MEMORY_BYTES_MAX = 64 * 1024 * 1024
"""Size of a file that is read once. A larger one is read twice: first to compare its checksum."""
DECODED_BYTES_MAX = 4 * 1024**3
"""Limit for the size of an Arrow batch, decompressed. `RowLogWriter` writes smaller ones."""
_BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """Rows of one partition."""

    path: str
    partition: int
    rows: int
    checksum: int | None = None
    """CRC-32. None: an earlier version of Penstock has written the file."""
    first_row: int = 0
    """Place of the first row in its partition."""


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """The rows of one batch, in their order."""

    batch: Batch
    files: tuple[LoggedFile, ...]

    @classmethod
    def of(cls, batch: Batch, files: Iterable[DataFile]) -> LoggedBatch:
        """
        Raises:
            ValueError: a file is not of this batch, has an invalid checksum, or two have the same rows.
        """
        logged = []
        for file in files:
            name = RowLogName.parse(file.path)
            if name is None or (name.query_id, name.batch_id) != (batch.stream.query_id, batch.batch_id):
                raise ValueError("it lists a file that is not of the batch")
            checksum = int(file.statistics.removeprefix(CHECKSUM), 16) if file.statistics else None
            logged.append(LoggedFile(file.path, name.partition, file.rows, checksum, name.first_row))
        places = {(file.partition, file.first_row) for file in logged}
        if len(places) < len(logged):
            raise ValueError("it lists two files of the same rows of a partition")
        return cls(batch, tuple(sorted(logged, key=lambda file: (file.partition, file.first_row))))

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def rows_id(self) -> str:
        """Changes if the batch is written again, maybe with its rows in other places."""
        return hashlib.sha256("\n".join(file.path for file in self.files).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class LoggedRows:
    """Some rows of one partition."""

    partition: int
    row: int
    """Place of the first row in its partition."""
    position: int
    """Place of the first row in its batch."""
    rows: pa.RecordBatch


class RowLog:
    """The files below one location. Runs on the driver and in the delivery process.

    Args:
        location: a directory, or a URL of an object store
        storage_options: in the form of the Delta library
    """

    def __init__(self, location: str, storage_options: dict[str, str]) -> None:
        self.location = location
        self._options = storage_options

    def __repr__(self) -> str:
        return f"RowLog({self.location!r})"

    @cached_property
    def files(self) -> TableFiles:
        """Lists and deletes files."""
        return delta_files(self.location, self._options)

    def read(
        self, batch: LoggedBatch, start: int = 0, columns: Sequence[str] | None = None
    ) -> Iterator[LoggedRows]:
        """Yield the rows of a batch in their order, at most `ROWS_MAX` at a time.

        Args:
            start: position of the first row
            columns: None: all; those that a file does not have are left out

        Raises:
            RetryableError: the log cannot be read now.
            TableChangedError: a file is damaged.
        """
        position = 0
        for file in batch.files:
            end = position + file.rows
            if end > start:
                yield from self._read_file(batch.batch, file, position, max(start - position, 0), columns)
            position = end

    def schema(self, batch: LoggedBatch) -> pa.Schema:
        """Return the columns of a batch that has rows, as the query planned them. Raises as `read`."""
        file = batch.files[0]
        with (
            self._reading(batch.batch, file),
            open_input(self._filesystem(), self._path(file.path)) as opened,
        ):
            schema = Messages(opened).schema
            planned = (schema.metadata or {}).get(PLANNED_ROWS)
            return schema if planned is None else read_schema(planned)

    def _read_file(
        self, batch: Batch, file: LoggedFile, position: int, skipped: int, columns: Sequence[str] | None
    ) -> Iterator[LoggedRows]:
        row = 0
        path = self._path(file.path)
        with self._reading(batch, file), open_input(self._filesystem(), path) as on_disk:
            messages = Messages(_verified(batch, file, on_disk))
            names = messages.schema.names
            known = None if columns is None else [name for name in columns if name in names]
            for encoded in messages.batches(file.rows):
                if row + encoded.rows > skipped:  # others are not decompressed
                    rows = encoded.decode(DECODED_BYTES_MAX, known)
                    for first in range(max(skipped - row, 0), encoded.rows, ROWS_MAX):
                        part = rows.slice(first, ROWS_MAX)
                        part = part if known is None else part.select(known)
                        place = file.first_row + row + first
                        yield LoggedRows(file.partition, place, position + row + first, part)
                row += encoded.rows
        if row != file.rows:
            raise _damaged(batch, file, f"it has {row:,} rows instead of {file.rows:,}")

    @contextmanager
    def _reading(self, batch: Batch, file: LoggedFile) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise _damaged(batch, file, str(error)) from error
        except OSError as error:
            raise retryable(error)(
                f"The file {file.path} of the row log {self.location} cannot be read: {error}. Rows of batch "
                f"{batch.batch_id} of {batch.stream} were not sent. Check the storage.* options and that the "
                f"storage is reachable. {NEXT_TRY}"
            ) from error

    def _filesystem(self) -> pafs.FileSystem:
        if local_root(self.location) is not None:
            return pafs.LocalFileSystem()
        from deltalake.fs import DeltaStorageHandler

        return pafs.PyFileSystem(DeltaStorageHandler(self.location, self._options))

    def _path(self, path: str) -> str:
        root = local_root(self.location)
        return path if root is None else f"{root.rstrip('/')}/{path}"


def _verified(batch: Batch, file: LoggedFile, stream: pa.NativeFile) -> pa.NativeFile:
    """Return a stream of the same bytes. Without the checksum, damaged values could look like valid ones.

    Raises:
        TableChangedError: the file does not have its checksum.
    """
    if file.checksum is None:
        return stream
    if stream.size() <= IN_MEMORY_BYTES_MAX:
        stream = pa.BufferReader(stream.read_buffer())
    checksum = 0
    while block := stream.read(_BLOCK_BYTES):
        checksum = zlib.crc32(block, checksum)
    if checksum != file.checksum:
        raise _damaged(batch, file, "its content does not have the checksum of what was written")
    stream.seek(0)
    return stream


def _damaged(batch: Batch, file: LoggedFile, why: str) -> TableChangedError:
    return TableChangedError(
        f"The file {file.path} of the row log is damaged ({why}). Rows of batch {batch.batch_id} of "
        f"{batch.stream} were not sent. Restore the file and run `penstock retry`; or give the batch up with "
        "`penstock skip`."
    )
