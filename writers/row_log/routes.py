"""Writes the rows of one task attempt to the row log, each route to files of its own. Executors only."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from ...committers.contract import AttemptId, DataFile, DataFiles
from ...committers.crash_points import reach
from ...committers.errors import RetryableError
from ...committers.row_log.names import CHECKSUM, PLANNED_ROWS, row_log_path
from ..parquet.new_files import NewFiles
from ..parquet.splitting import split_by
from .route_names import Route, RouteColumns
from .writer import UPLOAD_BYTES_MAX, RowLogWriters, accept_all

CHUNK_BYTES = 16 * 1024 * 1024
"""Arrow data that is split at a time."""
HELD_BYTES_MAX = 64 * 1024 * 1024
"""Size of the files of all routes in memory. If it is exceeded, the largest ones are written."""


@dataclass(frozen=True, slots=True)
class RouteWriters:
    """Opens task writers. Pickled to the executors, with the options of the object store."""

    location: str
    storage_options: Mapping[str, str] = field(repr=False)
    columns: RouteColumns
    rows: pa.Schema
    """Of the query, for the plans of the tables: Spark sends all columns as nullable ones."""

    def open(self, attempt: AttemptId) -> RouteWriter:
        return RouteWriter(self, attempt)


class RouteWriter:
    """See `TaskWriter`. Its payload are the files of all routes; their `partition_values` say which one.

    It holds one chunk and its split copy, the compressed rows up to `HELD_BYTES_MAX` and, on an object
    store, what waits for its upload: not more for many routes than for one.
    """

    def __init__(self, config: RouteWriters, attempt: AttemptId) -> None:
        self._config = config
        self._attempt = attempt
        self._chunk: list[pa.RecordBatch] = []
        self._chunk_bytes = 0
        self._open: dict[Route, _File] = {}
        self._held_bytes = 0
        self._logged_rows = 0
        self._closed: list[DataFile] = []
        self._files: NewFiles | None = None
        self._schema: pa.Schema | None = None

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """See `ChecksRows`."""
        self._config.columns.texts(batch)

    def write(self, batch: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaMismatchError: a row has no route.
            RetryableError: a file cannot be written.
        """
        if not batch.num_rows:
            return
        parts = batch.nbytes // CHUNK_BYTES + 1
        rows = -(-batch.num_rows // parts)
        for first in range(0, batch.num_rows, rows):
            self._chunk.append(batch.slice(first, rows))
            self._chunk_bytes += self._chunk[-1].nbytes
            if self._chunk_bytes >= CHUNK_BYTES:
                self._split()

    def finish(self) -> DataFiles:
        self._split()
        for route in list(self._open):
            self._close(route)
        if self._files is not None:
            with self._writing():
                self._files.finish()
            reach("write.files_closed", self._attempt.batch_id)
        return tuple(self._closed)

    def abort(self) -> None:
        """Delete the files. Never raises, so that the original error is reported."""
        if self._files is not None:
            self._files.delete_all()

    def _split(self) -> None:
        if not self._chunk:
            return
        rows = pa.Table.from_batches(self._chunk)
        self._chunk, self._chunk_bytes = [], 0
        texts = self._config.columns.texts(rows)
        for row, own in split_by(texts, rows):
            self._append(tuple(text[row].as_py() for text in texts), own)
        if self._held_bytes > HELD_BYTES_MAX:
            for route in sorted(self._open, key=lambda one: self._open[one].size_bytes, reverse=True):
                self._close(route)
                if self._held_bytes <= HELD_BYTES_MAX // 2:
                    break

    def _append(self, route: Route, rows: pa.RecordBatch) -> None:
        if route not in self._open:
            self._open[route] = _File(self._with_plan(rows.schema))
        file = self._open[route]
        self._held_bytes -= file.size_bytes
        file.append(rows)
        self._held_bytes += file.size_bytes

    def _with_plan(self, schema: pa.Schema) -> pa.Schema:
        if self._schema is None:
            planned = self._config.rows.serialize().to_pybytes()
            self._schema = schema.with_metadata({PLANNED_ROWS: planned})
        return self._schema

    def _close(self, route: Route) -> None:
        file = self._open.pop(route)
        self._held_bytes -= file.size_bytes
        content = file.close()
        path = row_log_path(self._attempt, self._logged_rows)
        self._logged_rows += file.rows
        with self._writing():
            if self._files is None:
                self._files = RowLogWriters(
                    self._config.location, self._config.storage_options, accept_all
                ).new_files()
                reach("write.file_open", self._attempt.batch_id)
            with self._files.open(path) as stream:
                stream.write(content)
            while self._files.on_their_way_bytes > UPLOAD_BYTES_MAX:
                self._files.wait_for_one()
        values = tuple(zip(self._config.columns.names, route, strict=True))
        checksum = f"{CHECKSUM}{zlib.crc32(content):08x}"
        self._closed.append(DataFile(path, content.size, file.rows, values, checksum))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RetryableError(
                f"A file of the row log {self._config.location} cannot be written: {error}. No row of batch "
                f"{self._attempt.batch_id} waits for its delivery. Check that the storage has space, and "
                "that this user may write to it. Then start the query again: it writes the batch again."
            ) from error


class _File:
    """An Arrow IPC file in memory, compressed with zstd."""

    def __init__(self, schema: pa.Schema) -> None:
        self._stream = pa.BufferOutputStream()
        self._writer = pa.ipc.new_file(
            self._stream, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        )
        self._schema = schema
        self.rows = 0

    @property
    def size_bytes(self) -> int:
        return int(self._stream.tell())

    def append(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows.replace_schema_metadata(self._schema.metadata))
        self.rows += rows.num_rows

    def close(self) -> pa.Buffer:
        self._writer.close()
        return self._stream.getvalue()
