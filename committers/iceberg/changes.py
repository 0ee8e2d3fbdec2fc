"""Commits changes to an Iceberg table: new files, masked rows of others, and the token, in one snapshot.

The rows to mask are found on the metadata that the attempt has loaded. The catalog accepts the snapshot only
if the branch's head has not moved since, so after a commit of another writer the next attempt searches that
writer's files too.

`merge=on-read` writes position deletes, one file for each data file and commit. `merge=on-write` writes the
data files again, without the rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.manifest import FileFormat, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from ..arrow_values import null_scalar, numeric_array, string_array
from ..changes.file_search import SearchedFile, SearchFiles, has_bounds
from ..changes.key_files import FOLDER, WrittenKeys, data_files, key_files, read_keys
from ..changes.last_changes import last_changes
from ..changes.masked_rows import KeySearch, MaskedRows
from ..changes.rewriting import MaskedFile, RewriteFiles, cannot_rewrite, only_on_read
from ..changes.tombstones import Tombstones
from ..contract import Batch, Changes, DataFile, Manifest, Mode
from ..errors import PenstockError, SchemaMismatchError, TableNotSupportedError
from ..file_tables.manifest import LakeManifest
from ..file_tables.shared_files import shared_with
from .arrow import arrow_type
from .catalog import io_properties
from .checks import DELETES_FORMAT_VERSION
from .data_files import iceberg_data_files, partition_strings
from .deletion_guard import table_deletion_guard
from .files import iceberg_files, open_location
from .live_files import LiveFiles
from .new_table import NewIcebergTable
from .position_deletes import DeletedRows, DeleteFiles, deletes_content, deletes_entry, union

ON_READ_PROPERTIES: Mapping[str, str] = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}
"""Of new tables, for other writers too."""

NameDeletes: TypeAlias = Callable[[Batch], Iterator[str]]
"""Returns paths for new delete files of a batch, below the location of its data files. No other attempt has
the same.
"""

_WRITE_THREADS = 8


@dataclass(frozen=True, slots=True)
class FileChanges:
    """What a commit does with files, and what it has written before."""

    added: tuple[DataFile, ...]
    """Data files, with paths below the location of the manifest."""
    deletes: tuple[IcebergDataFile, ...]
    """Delete files."""
    removed: frozenset[str]
    """Locations of data files and delete files."""
    written: tuple[str, ...]
    """Paths of files that only this attempt needs."""


class IcebergChanges:
    """The changes of one manifest. Attempts to commit it share what they have read.

    Args:
        table: whose location and file I/O are used
        table_name: for messages
        name_deletes: see `NameDeletes`
        rewrite: see `RewriteFiles`
        search: see `SearchFiles`
    """

    def __init__(
        self,
        manifest: Manifest,
        content: LakeManifest,
        table: Table,
        table_name: str,
        name_deletes: NameDeletes | None,
        rewrite: RewriteFiles | None,
        search: SearchFiles,
    ) -> None:
        assert isinstance(content.mode, Changes)
        self.manifest = manifest
        self._content = content
        self._changes = content.mode
        self._table_name = table_name
        self._name_deletes = name_deletes
        self._rewrite = rewrite
        self._search_files = partial(search, content)
        properties = io_properties(table)
        self._files = iceberg_files(content.location, properties, table_deletion_guard(table))
        self._open = open_location(properties)
        self._new = {file.path: file for file in data_files(content.files)}
        self._columns = _planned_columns(content)
        self._written: list[WrittenKeys] | None = None
        self._types: dict[str, pa.DataType] = {}
        self._search: KeySearch | None = None
        self._is_shared = False
        self._tombstones = Tombstones.of(self._files, manifest.batch, content.mode)
        self._deleted_rows = DeletedRows(self._open)

    def file_changes(self, table: Table, schema: Schema, live: LiveFiles) -> FileChanges:
        """Find the rows to mask in a version of the table, and write what the commit needs.

        Args:
            schema: of the table after the commit
            live: the files of this version

        Raises:
            TableNotSupportedError: the table has files that cannot be read.
            SchemaMismatchError: the table has lost a column that finds rows.
            RetryableError: the storage cannot be reached now.
            PenstockError: a file is damaged.
        """
        self._is_shared = shared_with(table.properties) is not None
        deletes = DeleteFiles(live.deletes, self._table_name)
        _check_parquet(live, self._table_name)
        masked = self._masked_rows(table, live, deletes)
        if is_on_read(self._changes, table.metadata, has_deletes=bool(live.deletes)):
            found = self._with_deletes(table, live, deletes, masked)
        else:
            found = self._rewritten(table, schema, live, deletes, masked)
        unneeded = [one.data_file.file_path for one in deletes.unneeded(live.data)]
        return replace(found, removed=found.removed.union(unneeded))

    def discard(self, attempt: FileChanges) -> None:
        """Delete what an attempt has written that was certainly not committed. Clean-up finds the rest."""
        self._delete(attempt.written)

    def clean_up(self) -> None:
        """Delete the key files of the batch after its commit, and old tombstones. The rest is done later, and
        so are key files that another table may still need.
        """
        if not self._is_shared:
            self._delete([file.path for file in key_files(self._content.files)])
        if self._tombstones is not None:
            self._tombstones.prune()

    # Finding rows ---------------------------------------------------------------------------------

    def _masked_rows(self, table: Table, live: LiveFiles, deletes: DeleteFiles) -> MaskedRows:
        search, written = self._search_in(table)
        schema = table.schema()
        searched = [
            SearchedFile(
                path,
                self._values(table, entry),
                self._bounds(schema, entry.data_file),
                size_bytes=entry.data_file.file_size_in_bytes,
            )
            for path, entry in live.data.items()
        ]
        new = {path: SearchedFile(self._located(path)) for path in self._new}

        def read_masked(paths: Sequence[str]) -> Mapping[str, pa.Array]:
            applying = {path: deletes.applying_to(live.data[path]) for path in paths}
            self._deleted_rows.load(one for some in applying.values() for one in some)
            return {
                path: self._deleted_rows.of(live.data[path].data_file, some)
                for path, some in applying.items()
                if some
            }

        return search.masked_rows(
            searched, [[new[path] for path in one.files] for one in written], read_masked
        )

    def _search_in(self, table: Table) -> tuple[KeySearch, list[WrittenKeys]]:
        """Return the search, a new one if the table's columns were widened since the last attempt."""
        types = {
            name: arrow_type(_current(table.schema(), column, self._table_name).field_type)
            for name, column in self._columns.items()
        }
        if self._search is None or self._written is None or types != self._types:
            batch = self.manifest.batch
            read = read_keys(batch, key_files(self._content.files), self._files.opened)
            self._types, self._written = types, [self._widened(one, types) for one in read]
            self._search = KeySearch(
                self._changes,
                last_changes(self._written, self._changes),
                self._open,
                self._search_files,
                {name: column.field_id for name, column in self._columns.items()},
                _mapped_names(table, self._columns),
                self._tombstones,
            )
        return self._search, self._written

    def _widened(self, written: WrittenKeys, types: Mapping[str, pa.DataType]) -> WrittenKeys:
        """Return the keys with the types of the table, in which later files of others have them."""
        keys = written.keys
        columns = [
            column.cast(types[name]) for name, column in zip(self._changes.keys, keys.columns, strict=True)
        ]
        order = [
            column.cast(types[name]) if name in types else column
            for name, column in zip(self._changes.order_by, keys.order, strict=True)
        ]
        return replace(written, keys=replace(keys, columns=tuple(columns), order=tuple(order)))

    def _values(self, table: Table, entry: ManifestEntry) -> dict[str, pa.Scalar]:
        """Values of columns that are the same in all rows: of files that others have added to the table, the
        columns of the partition may be missing.
        """
        file, found = entry.data_file, {}
        spec = table.specs()[file.spec_id]
        for number, part in enumerate(spec.fields):
            for name, column in self._columns.items():
                if part.source_id == column.field_id and str(part.transform) == "identity":
                    kind = table.schema().find_field(column.field_id).field_type
                    value = _scalar(file.partition[number], kind, self._types[name])
                    if value is not None:
                        found[name] = value
        return found

    def _bounds(self, schema: Schema, file: IcebergDataFile) -> dict[str, tuple[Any, Any]]:
        found, lower, upper = {}, file.lower_bounds or {}, file.upper_bounds or {}
        for name in self._changes.keys:
            number = self._columns[name].field_id
            kind = schema.find_field(number).field_type
            if not isinstance(kind, PrimitiveType) or not has_bounds(self._types[name]):
                continue
            if number in lower and number in upper:
                with suppress(ValueError):
                    found[name] = (_bound(kind, lower[number]), _bound(kind, upper[number]))
        return found

    def _located(self, path: str) -> str:
        return f"{self._content.location}/{path}"

    # Masked rows stay in their files --------------------------------------------------------------

    def _with_deletes(
        self, table: Table, live: LiveFiles, deletes: DeleteFiles, masked: MaskedRows
    ) -> FileChanges:
        deleted: list[tuple[IcebergDataFile, pa.Array]] = []
        removed, added = set[str](), []
        for path, rows in masked.in_table.items():
            entry = live.data[path]
            file, applying = entry.data_file, deletes.applying_to(entry)
            own = deletes.of_file(entry)
            removed.update(one.data_file.file_path for one in own)
            if len(self._deleted_rows.of(file, applying)) + len(rows) < file.record_count:
                deleted.append((file, union([rows, self._deleted_rows.of(file, own)])))
            else:
                removed.add(path)
        for path, new in self._new.items():
            lost = masked.in_new.get(self._located(path))
            if lost is None or len(lost) < new.rows:
                added.append(new)
            if lost is not None and len(lost) < new.rows:
                deleted.append((self._iceberg_file(table, new), lost))
        files, written = self._write_deletes(deleted)
        return FileChanges(tuple(added), files, frozenset(removed), written)

    def _iceberg_file(self, table: Table, file: DataFile) -> IcebergDataFile:
        spec = table.specs()[self._content.partition_spec_id]
        (found,) = iceberg_data_files([file], self._content.location, spec, table.schema())
        return found

    def _write_deletes(
        self, deleted: Sequence[tuple[IcebergDataFile, pa.Array]]
    ) -> tuple[tuple[IcebergDataFile, ...], tuple[str, ...]]:
        """Return new delete files, and their paths below the location of the data files."""
        if not deleted:
            return (), ()
        if self._name_deletes is None:
            raise cannot_rewrite(self.manifest)
        paths = [path for path, _ in zip(self._name_deletes(self.manifest.batch), deleted, strict=False)]
        if self._is_shared:  # a vacuum of the other table must not see them
            paths = [f"{FOLDER}/{path}" for path in paths]

        def write(path: str, of: tuple[IcebergDataFile, pa.Array]) -> IcebergDataFile:
            file, rows = of
            content = deletes_content(file.file_path, rows)
            self._files.create(path, content)
            return deletes_entry(self._located(path), len(content), file, rows)

        try:
            with ThreadPoolExecutor(_WRITE_THREADS) as threads:
                return tuple(threads.map(write, paths, deleted)), tuple(paths)
        except BaseException:
            self._delete(paths)
            raise

    # Files without masked rows take their place ---------------------------------------------------

    def _rewritten(
        self, table: Table, schema: Schema, live: LiveFiles, deletes: DeleteFiles, masked: MaskedRows
    ) -> FileChanges:
        """
        Args:
            schema: of the table after the commit
        """
        touched, removed = [], set[str]()
        for path, rows in masked.in_table.items():
            entry = live.data[path]
            before = self._deleted_rows.of(entry.data_file, deletes.applying_to(entry))
            removed.add(path)
            removed.update(one.data_file.file_path for one in deletes.of_file(entry))
            file, stored = self._own_file(table, entry.data_file), _identities(table, entry.data_file)
            touched.append(MaskedFile(file, union([before, rows]), stored))
        masked_new = [path for path in self._new if self._located(path) in masked.in_new]
        touched += [MaskedFile(self._new[path], masked.in_new[self._located(path)]) for path in masked_new]
        if touched and self._is_shared:
            raise only_on_read(self.manifest)
        files = self._written_again(table, schema, touched) if touched else ()
        kept = [file for path, file in self._new.items() if path not in masked_new]
        written = tuple([file.path for file in files])
        return FileChanges((*kept, *files), (), frozenset(removed), written)

    def _own_file(self, table: Table, file: IcebergDataFile) -> DataFile:
        """Return a file of the table as the writers have it. It has no partition values if its spec is an
        older one: its rows are split again.
        """
        spec, is_current = table.spec(), file.spec_id == table.metadata.default_spec_id
        values = partition_strings(file.partition, spec, table.schema()) if is_current else ()
        path = file.file_path.removeprefix(f"{self._content.location}/")
        return DataFile(path, file.file_size_in_bytes, file.record_count, values)

    def _written_again(self, table: Table, schema: Schema, files: Sequence[MaskedFile]) -> Sequence[DataFile]:
        """Write files again with all columns of the table: others may have added some since the plan."""
        if self._rewrite is None:
            raise cannot_rewrite(self.manifest)
        known = {column.field_id for column in table.schema().fields}
        new = tuple([column.name for column in schema.fields if column.field_id not in known])
        content = replace(self._content, schema_json=schema.model_dump_json(), new_columns=new)
        return self._rewrite(self.manifest, content, files)

    def _delete(self, paths: Sequence[str]) -> None:
        with suppress(PenstockError):
            self._files.delete(paths)


# Which of the two -----------------------------------------------------------------------------------


def is_on_read(changes: Changes, metadata: TableMetadata, *, has_deletes: bool) -> bool:
    """Return True if a commit masks rows by position deletes, False if it writes their files again.

    Args:
        has_deletes: the table has delete files already
    """
    if metadata.format_version < DELETES_FORMAT_VERSION or changes.merge == "on-write":
        return False
    names = ("write.delete.mode", "write.merge.mode")
    is_set = any(metadata.properties.get(name, "").lower() == "merge-on-read" for name in names)
    return changes.merge == "on-read" or is_set or has_deletes


def for_changes(new: NewIcebergTable, mode: Mode) -> NewIcebergTable:
    """Return how to create a table, for batches with this mode."""
    version = str(new.format_version or new.properties.get("format-version", DELETES_FORMAT_VERSION))
    if not isinstance(mode, Changes) or mode.merge == "on-write" or version == "1":
        return new
    return replace(new, properties={**ON_READ_PROPERTIES, **new.properties})


# Columns --------------------------------------------------------------------------------------------


def _planned_columns(content: LakeManifest) -> dict[str, NestedField]:
    """The columns that find rows, by the names that they had when the batch was planned."""
    assert isinstance(content.mode, Changes)
    changes, schema = content.mode, Schema.model_validate_json(content.schema_json)
    names = [*changes.keys, *(changes.order_by if changes.late_rows == "ignore" else ())]
    return {name: schema.find_field(name) for name in names}


def _current(schema: Schema, column: NestedField, table_name: str) -> NestedField:
    """
    Raises:
        SchemaMismatchError: the table does not have the column any more.
    """
    try:
        return schema.find_field(column.field_id)
    except ValueError:
        raise SchemaMismatchError(
            f"{table_name} has lost the column {column.name!r}, which keys or orderBy of the query name. The "
            "batch was not committed. Undo the change of the table."
        ) from None


def _identities(table: Table, file: IcebergDataFile) -> tuple[str, ...]:
    """The columns by whose values the rows of a file are partitioned: files of others may leave them out."""
    names = []
    for number, part in enumerate(table.specs()[file.spec_id].fields):
        if str(part.transform) == "identity" and file.partition[number] is not None:
            names.append(table.schema().find_column_name(part.source_id))
    return tuple([name for name in names if name is not None and "." not in name])


def _mapped_names(table: Table, columns: Mapping[str, NestedField]) -> dict[str, Collection[str]]:
    """Names of columns in files without field ids, from the table's name mapping."""
    mapping = table.name_mapping()
    by_id = {} if mapping is None else {one.field_id: one.names for one in mapping.root}
    return {name: by_id[column.field_id] for name, column in columns.items() if column.field_id in by_id}


def _scalar(value: Any, kind: IcebergType, data_type: pa.DataType) -> pa.Scalar | None:
    """Return a partition value as a scalar; None if that is not possible."""
    if value is None:
        return null_scalar(data_type)
    if isinstance(kind, StringType) and isinstance(value, str):
        return string_array([value])[0]
    if isinstance(kind, DecimalType):
        return string_array([format(value, "f")])[0].cast(data_type)
    if isinstance(kind, DateType) and isinstance(value, int):
        return numeric_array([value], pa.int32())[0].cast(data_type)
    is_number = isinstance(kind, IntegerType | LongType | TimestampType | TimestamptzType)
    return numeric_array([value])[0].cast(data_type) if is_number and isinstance(value, int) else None


def _bound(kind: PrimitiveType, value: bytes) -> Any:
    """
    Raises:
        ValueError: the value has another type.
    """
    try:
        bound = from_bytes(kind, value)
        return date(1970, 1, 1) + timedelta(int(bound)) if isinstance(kind, DateType) else bound
    except (struct.error, OverflowError, TypeError) as error:
        raise ValueError(str(error)) from None


def _check_parquet(live: LiveFiles, table_name: str) -> None:
    """
    Raises:
        TableNotSupportedError: rows cannot be found in the files of the table.
    """
    for path, entry in live.data.items():
        if entry.data_file.file_format is not FileFormat.PARQUET:
            raise TableNotSupportedError(
                f"{table_name} has data files that are not Parquet, for example {path}, in which rows cannot "
                "be found by key. Nothing was committed. Rewrite them: CALL ... rewrite_data_files(table => "
                "'...', options => map('rewrite-all', 'true'))."
            )
