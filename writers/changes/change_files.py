"""Writes the changes of one task attempt to a file table: data files, and the keys of their rows."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ...committers.changes.key_files import FOLDER, SUFFIX, Keys, WrittenKeys, key_table
from ...committers.changes.keys import last_rows, one_array
from ...committers.changes.last_changes import ambiguous
from ...committers.changes.same_rows import are_equal
from ...committers.contract import AttemptId, DataFile, DataFiles, TaskWriter
from ...committers.file_tables.evolution import Narrowing
from ..bad_rows import ChecksRows
from ..parquet.data_files import ARRAY_BYTES_MAX
from ..parquet.file_names import FileNames
from ..parquet.new_files import NewFiles
from ..parquet.schema_projection import SchemaProjector
from ..parquet.uploads import open_new_files
from .row_kinds import RowKinds

_KEYS_PER_ROW_GROUP = 1_000_000
_ROWS_PER_WRITE = 64 * 1024


class OpensDataFiles(Protocol):
    """How the data files of a table are written, in one of the formats."""

    @property
    def row_schema(self) -> pa.Schema:
        """The columns of the table."""
        ...

    @property
    def narrows(self) -> Narrowing: ...

    @property
    def buffer_bytes_max(self) -> int: ...

    def open_location(self) -> tuple[FileSystem, str]:
        """Return where the files are."""
        ...

    def projector(self, where: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Return what converts rows of the query to rows of `row_schema`."""
        ...

    def open_files(self, names: FileNames, location: tuple[FileSystem, str]) -> ChecksAndWritesRows: ...


class ChecksAndWritesRows(TaskWriter[DataFiles], ChecksRows, Protocol):
    """Writes data files."""


@dataclass(frozen=True, slots=True)
class ChangeFilesConfig:
    """Opens the writer of a task attempt. Pickled on the driver."""

    data: OpensDataFiles
    kinds: RowKinds

    def open(self, attempt: AttemptId) -> ChangeFileWriter:
        return ChangeFileWriter(self, FileNames.of(attempt))


class ChangeFileWriter:
    """See `TaskWriter`. Of each key it keeps the last row, as far as it has the rows in memory.

    Rows are collected up to half of `buffer_bytes_max` of the configuration; while they are compared and
    sorted out, they take twice as much. Then the last row of each key is written by a writer of data files,
    which has its own buffers, and the keys with it: one part of the attempt. With more rows several parts
    follow, whose files are apart, so that no file has two rows of one key.
    """

    def __init__(self, config: ChangeFilesConfig, names: FileNames) -> None:
        self._config = config
        self._names = names
        self._kinds = config.kinds
        schema, where = config.data.row_schema, str(names)
        self._project = config.data.projector(where)
        keys = pa.schema([schema.field(name) for name in config.kinds.changes.keys])
        self._project_keys = SchemaProjector(keys, where, narrows=config.data.narrows)
        self._location = config.data.open_location()
        self._checker: ChecksAndWritesRows | None = None
        self._upserts: list[pa.RecordBatch] = []
        self._upsert_order: list[tuple[pa.Array, ...]] = []
        self._deletes: list[Keys] = []
        self._buffered_bytes = 0
        self._buffered_bytes_max = min(config.data.buffer_bytes_max, ARRAY_BYTES_MAX) // 2
        self._files: list[DataFile] = []
        self._writers: list[ChecksAndWritesRows] = []
        self._key_files: NewFiles = open_new_files(*self._location)

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """See `ChecksRows`."""
        changed = self._kinds.split(batch)
        self._project_keys(changed.deletes)
        if self._checker is None:
            self._checker = self._config.data.open_files(self._names, self._location)
        self._checker.check_rows(changed.upserts)

    def write(self, batch: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaMismatchError: the rows do not fit the table, a key has NULL, or two rows of one key differ
                and have no order.
        """
        if not batch.num_rows:
            return
        changed = self._kinds.split(batch)
        if changed.upserts.num_rows:
            self._upserts.append(self._project(changed.upserts))
            self._upsert_order.append(changed.upsert_order)
            self._buffered_bytes += self._upserts[-1].nbytes
        if changed.deletes.num_rows:
            keys = self._project_keys(changed.deletes)
            self._deletes.append(_keys_of(keys.columns, changed.delete_order, is_deleted=True))
            self._buffered_bytes += keys.nbytes
        if self._buffered_bytes >= self._buffered_bytes_max:
            self._write_part()

    def finish(self) -> DataFiles:
        """Write what is left. The returned files survive a power failure: data files, then key files."""
        self._write_part()
        self._key_files.finish()
        return tuple(self._files)

    def abort(self) -> None:
        for writer in self._writers:
            writer.abort()
        self._key_files.delete_all()
        if self._checker is not None:
            self._checker.abort()

    def _write_part(self) -> None:
        if not self._buffered_bytes:
            return
        keys, rows = self._last_rows()
        names = replace(self._names, first=len(self._files))
        written: DataFiles = ()
        if rows.num_rows:
            writer = self._config.data.open_files(names, self._location)
            self._writers.append(writer)
            for batch in rows.to_batches(_ROWS_PER_WRITE):
                writer.write(batch)
            written = writer.finish()
        self._files += written
        paths = tuple([file.path for file in written])
        self._write_keys(WrittenKeys(keys, self._names.batch_id, paths))

    def _last_rows(self) -> tuple[Keys, pa.Table]:
        """The last rows of the buffer, and the rows of those that are no deletions. Empties the buffer."""
        schema = self._config.data.row_schema
        rows = pa.Table.from_batches(self._upserts, schema=schema)
        parts = list(self._deletes)
        if self._upserts:
            columns = [one_array(rows.column(name)) for name in self._kinds.changes.keys]
            order = [pa.concat_arrays(some) for some in zip(*self._upsert_order, strict=True)]
            parts.insert(0, _keys_of(columns, order, is_deleted=False))
        keys = Keys.concat(parts)
        self._upserts, self._upsert_order, self._deletes, self._buffered_bytes = [], [], [], 0
        last = last_rows(keys.columns, keys.order)
        if len(last.tied):
            self._check_equal(keys, rows, last.tied, last.tied_with)
        if len(last.rows) == len(keys):
            return keys, rows
        chosen = last.rows.filter(pc.less(last.rows, pa.scalar(rows.num_rows)))
        return keys.take(last.rows), rows.take(chosen)

    def _check_equal(self, keys: Keys, rows: pa.Table, tied: pa.Array, tied_with: pa.Array) -> None:
        """
        Raises:
            SchemaMismatchError: rows of one key differ, and no order separates them.
        """
        deleted = keys.is_deleted.take(tied)
        differ = pc.xor(deleted, keys.is_deleted.take(tied_with))
        staying = pc.invert(deleted)
        if pc.any(differ).as_py() or not are_equal(
            rows.take(tied.filter(staying)), rows.take(tied_with.filter(staying))
        ):
            raise ambiguous(str(self._names), has_order=bool(keys.order))

    def _write_keys(self, written: WrittenKeys) -> None:
        name = self._names.name(len(self._files), SUFFIX)
        path = posixpath.join(FOLDER, str(name))
        with self._key_files.open(path) as sink:
            table = key_table(written)
            pq.write_table(table, sink, compression="zstd", row_group_size=_KEYS_PER_ROW_GROUP)
            size = sink.tell()
        self._files.append(DataFile(path, size, len(written.keys)))


def _keys_of(columns: Sequence[pa.Array], order: Sequence[pa.Array], *, is_deleted: bool) -> Keys:
    flags = pa.repeat(pa.scalar(is_deleted), len(columns[0]))
    return Keys(tuple(columns), tuple(order), flags)
