"""Writes the changes of one task attempt to a file table: data files, and the keys of their rows."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ...committers.arrow_values import null_scalar
from ...committers.changes.key_files import FOLDER, SUFFIX, Keys, WrittenKeys, key_table
from ...committers.changes.keys import FALSE, TRUE, KeySet, last_rows, one_array, row_numbers
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
from .row_kinds import ChangedRows, RowKinds

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


class StoresDeletions(ChecksAndWritesRows, Protocol):
    """Writes data files of a table in which a deletion is a row, too."""

    def delete(self, keys: Keys) -> None:
        """
        Args:
            keys: of rows that are deleted; none is among those that are written
        """
        ...


@dataclass(frozen=True, slots=True)
class ChangeFilesConfig:
    """Opens the writer of a task attempt. Pickled on the driver."""

    data: OpensDataFiles
    kinds: RowKinds
    may_keep: bool = True
    """False: the commit cannot complete rows that keep values of the table's, and they are bad rows."""
    stores_deletions: bool = False
    """True: the writers of data files are `StoresDeletions`."""
    folder: str = FOLDER
    """Of the key files, below the location of the data files."""

    def open(self, attempt: AttemptId) -> ChangeFileWriter:
        return ChangeFileWriter(self, FileNames.of(attempt))


class ChangeFileWriter:
    """See `TaskWriter`. Of each key it keeps the last row, as far as it has the rows in memory.

    Rows are collected up to half of `buffer_bytes_max` of the configuration; while they are compared and
    sorted out, they take twice as much. Then the last row of each key is written by a writer of data files,
    which has its own buffers, and the keys with it: one part of the attempt. With more rows several parts
    follow, whose files are apart, so that no file has two rows of one key.

    If the last row of a key keeps columns, its older rows go into the key file (see `key_files`). With a
    history, each version of a key is written, and ends where the next one of the part begins.
    """

    def __init__(self, config: ChangeFilesConfig, names: FileNames) -> None:
        self._config = config
        self._names = names
        self._kinds = config.kinds
        schema, where = config.data.row_schema, str(names)
        self._project = config.data.projector(where)
        self._schema = schema
        self._identity = [in_case_of(name, schema) for name in config.kinds.changes.identity]
        keys = pa.schema([schema.field(name) for name in self._identity])
        self._project_keys = SchemaProjector(keys, where, narrows=config.data.narrows)
        self._location = config.data.open_location()
        self._checker: ChecksAndWritesRows | None = None
        self._upserts: list[pa.RecordBatch] = []
        self._upsert_order: list[tuple[pa.Array, ...]] = []
        self._upsert_kept: list[Mapping[str, pa.Array]] = []
        self._deletes: list[Keys] = []
        self._buffered_bytes = 0
        self._buffered_bytes_max = min(config.data.buffer_bytes_max, ARRAY_BYTES_MAX) // 2
        self._files: list[DataFile] = []
        self._writers: list[ChecksAndWritesRows] = []
        self._key_files: NewFiles = open_new_files(*self._location)

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """See `ChecksRows`."""
        changed = self._split(batch)
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
        changed = self._split(batch)
        if changed.upserts.num_rows:
            self._upserts.append(self._project(changed.upserts))
            self._upsert_order.append(changed.upsert_order)
            self._upsert_kept.append(self._kept_in_table(changed))
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

    def _split(self, batch: pa.RecordBatch) -> ChangedRows:
        changed = self._kinds.split(batch)
        if not self._config.may_keep:
            changed.check_whole()
        return changed

    def _kept_in_table(self, changed: ChangedRows) -> Mapping[str, pa.Array]:
        """The columns of the table that rows keep, and for which rows."""
        kept = {in_case_of(name, self._schema): is_kept for name, is_kept in changed.kept.items()}
        given = {name.lower() for name in changed.upserts.schema.names}
        every = pa.repeat(TRUE, changed.upserts.num_rows)
        missing = (name for name in self._schema.names if name.lower() not in given)
        kept.update((name, every) for name in missing if self._kinds.changes.is_partial(name))
        return kept

    def _write_part(self) -> None:
        if not self._buffered_bytes:
            return
        keys, rows, older = self._last_rows()
        names = replace(self._names, first=len(self._files))
        written: DataFiles = ()
        deleted = keys.take(pc.indices_nonzero(keys.is_deleted)) if self._config.stores_deletions else ()
        if rows.num_rows or len(deleted):
            writer = self._config.data.open_files(names, self._location)
            self._writers.append(writer)
            for batch in rows.to_batches(_ROWS_PER_WRITE):
                writer.write(batch)
            if isinstance(deleted, Keys) and len(deleted):
                cast("StoresDeletions", writer).delete(deleted)
            written = writer.finish()
        self._files += written
        paths = tuple([file.path for file in written])
        self._write_keys(WrittenKeys(keys, self._names.batch_id, paths, *older))

    def _last_rows(self) -> tuple[Keys, pa.Table, tuple[Keys, pa.Table] | tuple[()]]:
        """The last rows of the buffer, the columns of those that are no deletions, and older rows whose
        values they may keep. Empties the buffer.
        """
        rows = pa.Table.from_batches(self._upserts, schema=self._schema)
        parts = list(self._deletes)
        if self._upserts:
            columns = [one_array(rows.column(name)) for name in self._identity]
            order = [pa.concat_arrays(some) for some in zip(*self._upsert_order, strict=True)]
            parts.insert(0, _keys_of(columns, order, is_deleted=False, kept=self._kept()))
        keys = Keys.concat(parts)
        self._upserts, self._upsert_order, self._deletes, self._buffered_bytes = [], [], [], 0
        self._upsert_kept = []
        last = last_rows(keys.columns, keys.order)
        if len(last.tied):
            self._check_equal(keys, rows, last.tied, last.tied_with)
        if self._kinds.changes.history is not None:
            rows = self._with_ends(keys.take(last.rows), last.rows, rows)
        if len(last.rows) == len(keys):
            return keys, rows, ()
        chosen = last.rows.filter(pc.less(last.rows, pa.scalar(rows.num_rows)))
        return keys.take(last.rows), rows.take(chosen), self._older(keys, rows, last.rows)

    def _kept(self) -> dict[str, pa.Array]:
        """For each column that keeps its value for some of the buffered rows: for which."""
        pairs = list(zip(self._upserts, self._upsert_kept, strict=True))
        return {
            name: pa.concat_arrays([kept.get(name, pa.repeat(FALSE, one.num_rows)) for one, kept in pairs])
            for name in sorted({name for kept in self._upsert_kept for name in kept})
        }

    def _older(self, keys: Keys, rows: pa.Table, last: pa.Array) -> tuple[Keys, pa.Table] | tuple[()]:
        """The rows before a last one that keeps columns, and their columns.

        Args:
            last: numbers of the last rows
        """
        keeps = pa.repeat(FALSE, len(keys))
        for is_kept in keys.kept.values():
            keeps = pc.or_(keeps, is_kept)
        keeping = last.filter(keeps.take(last))
        if not len(keeping):
            return ()
        mine, _ = KeySet([column.take(keeping) for column in keys.columns]).find(keys.columns)
        some = keys.take(mine)
        distinct = last_rows([*some.columns, *some.order], ())
        if len(distinct.tied):
            self._check_equal(keys, rows, mine.take(distinct.tied), mine.take(distinct.tied_with))
        older = mine.take(distinct.rows)
        is_last = last_rows(keys.take(older).columns, keys.take(older).order).rows
        older = older.filter(pc.invert(pc.is_in(row_numbers(len(older)), value_set=is_last)))
        if not len(older):
            return ()
        fields = [one.with_nullable(True) for one in rows.schema]
        is_deleted = keys.is_deleted.take(older)
        places = pc.if_else(is_deleted, null_scalar(pa.int64()), older)
        return keys.take(older), rows.take(places).cast(pa.schema(fields))

    def _with_ends(self, keys: Keys, numbers: pa.Array, rows: pa.Table) -> pa.Table:
        """End each version where the next change of its key is.

        Args:
            numbers: of the rows with these keys; those behind the end of `rows` are deletions
        """
        *of_key, at = keys.columns
        table = pa.Table.from_arrays([*of_key, at], names=[*map(str, range(len(of_key))), "at"])
        in_order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
        in_order = in_order.cast(pa.int64())
        is_same = pa.repeat(TRUE, max(len(keys) - 1, 0))
        for column in of_key:
            column = column.take(in_order)
            is_same = pc.and_(is_same, pc.equal(column.slice(0, len(is_same)), column.slice(1)))
        following = pc.if_else(is_same, in_order.slice(1), null_scalar(pa.int64()))
        following = pa.concat_arrays([following, pa.nulls(1, pa.int64())])
        ends = at.take(following.take(pc.array_sort_indices(in_order)))  # in the order of the keys
        end_of_row = ends.take(pc.index_in(row_numbers(rows.num_rows), value_set=numbers))
        history = self._kinds.changes.history
        assert history is not None
        for name, column in (
            (history.valid_to, end_of_row),
            (history.is_current, pc.is_null(end_of_row)),
        ):
            number = self._schema.get_field_index(in_case_of(name, self._schema))
            rows = rows.set_column(number, self._schema.field(number), column)
        return rows

    def _check_equal(self, keys: Keys, rows: pa.Table, tied: pa.Array, tied_with: pa.Array) -> None:
        """
        Raises:
            SchemaMismatchError: rows of one key differ, and no order separates them.
        """
        deleted = keys.is_deleted.take(tied)
        differ = pc.xor(deleted, keys.is_deleted.take(tied_with))
        staying = pc.invert(deleted)
        for is_kept in keys.kept.values():
            differ = pc.or_(differ, pc.xor(is_kept.take(tied), is_kept.take(tied_with)))
        if pc.any(differ).as_py() or not are_equal(
            rows.take(tied.filter(staying)), rows.take(tied_with.filter(staying))
        ):
            raise ambiguous(str(self._names), has_order=bool(keys.order))

    def _write_keys(self, written: WrittenKeys) -> None:
        name = self._names.name(len(self._files), SUFFIX)
        path = posixpath.join(self._config.folder, str(name))
        with self._key_files.open(path) as sink:
            table = key_table(written)
            pq.write_table(table, sink, compression="zstd", row_group_size=_KEYS_PER_ROW_GROUP)
            size = sink.tell()
        self._files.append(DataFile(path, size, table.num_rows))


def _keys_of(
    columns: Sequence[pa.Array],
    order: Sequence[pa.Array],
    *,
    is_deleted: bool,
    kept: Mapping[str, pa.Array] = MappingProxyType({}),
) -> Keys:
    flags = pa.repeat(pa.scalar(is_deleted), len(columns[0]))
    return Keys(tuple(columns), tuple(order), flags, kept)


def in_case_of(name: str, columns: pa.Schema) -> str:
    """Return the name of a column as the columns have it."""
    return next((one for one in columns.names if one.lower() == name.lower()), name)
