"""Commits changes to an Iceberg table: new files, masked rows of others, and the token, in one snapshot.

The rows to mask are found on the metadata that the attempt has loaded. The catalog accepts the snapshot only
if the branch's head has not moved since, so after a commit of another writer the next attempt searches that
writer's files too.

`merge=on-read` writes position deletes, one file for each data file and commit. `merge=on-write` writes the
data files again, without the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import pyarrow as pa
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from ..changes.file_search import SearchFiles
from ..changes.key_files import FOLDER, data_files, key_files
from ..changes.masked_rows import MaskedRows
from ..changes.rewriting import (
    Lazy,
    MaskedFile,
    OpenTableRows,
    RewriteFiles,
    TableRows,
    cannot_rewrite,
    only_on_read,
)
from ..changes.tombstones import Tombstones
from ..contract import Batch, Changes, DataFile, Manifest, Mode
from ..errors import PenstockError
from ..file_tables.manifest import LakeManifest
from ..file_tables.shared_files import shared_with
from .catalog import io_properties
from .checks import DELETES_FORMAT_VERSION
from .data_files import iceberg_data_files, partition_strings
from .deletion_guard import table_deletion_guard
from .files import iceberg_files, open_location
from .live_files import LiveFiles
from .new_table import NewIcebergTable
from .position_deletes import DeleteFiles, deletes_content, deletes_entry, union
from .row_search import IcebergSearch, partition_values

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
        open_rows: see `OpenTableRows`
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
        open_rows: OpenTableRows | None = None,
    ) -> None:
        assert isinstance(content.mode, Changes)
        self.manifest = manifest
        self._content = content
        self._changes = content.mode
        self._table_name = table_name
        self._name_deletes = name_deletes
        self._rewrite = rewrite
        self._open_rows = open_rows
        properties = io_properties(table)
        self._files = iceberg_files(content.location, properties, table_deletion_guard(table))
        self._new = {file.path: file for file in data_files(content.files)}
        self._is_shared = False
        self._tombstones = Tombstones.of(self._files, manifest.batch, content.mode)
        self._search = IcebergSearch(
            manifest,
            content,
            table_name,
            self._files,
            open_location(properties),
            partial(search, content),
            self._tombstones,
        )

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
        rows = Lazy(lambda: self._opened_rows(table, schema, live))
        masked = self._search.masked_rows(table, live, deletes, rows)
        if masked.computed is not None and self._is_shared:
            raise only_on_read(self.manifest)
        computed = () if masked.computed is None else tuple(rows().write(masked.computed))
        written = tuple([file.path for file in computed])
        try:
            if is_on_read(self._changes, table.metadata, has_deletes=bool(live.deletes)):
                found = self._with_deletes(table, live, deletes, masked)
            else:
                found = self._rewritten(table, schema, live, deletes, masked)
        except BaseException:
            self._delete(written)
            raise
        unneeded = [one.data_file.file_path for one in deletes.unneeded(live.data)]
        return FileChanges(
            (*found.added, *computed),
            found.deletes,
            found.removed.union(unneeded),
            (*found.written, *written),
        )

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

    def _opened_rows(self, table: Table, schema: Schema, live: LiveFiles) -> TableRows:
        if self._open_rows is None:
            raise cannot_rewrite(self.manifest)
        ids = {column.field_id: column.name for column in schema.fields}

        def values_of(path: str) -> Mapping[str, pa.Scalar | None]:
            return partition_values(table, live.data[path].data_file, ids) if path in live.data else {}

        planned = Schema.model_validate_json(self._content.schema_json).fields
        names = {column.name: ids[column.field_id] for column in planned if column.field_id in ids}
        return self._open_rows(self.manifest, self._content_of(table, schema), values_of, names)

    def _content_of(self, table: Table, schema: Schema) -> LakeManifest:
        """Return the manifest with all columns of the table: others may have added some since the plan."""
        known = {column.field_id for column in table.schema().fields}
        new = tuple([column.name for column in schema.fields if column.field_id not in known])
        return replace(self._content, schema_json=schema.model_dump_json(), new_columns=new)

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
            if len(self._search.deleted_rows.of(file, applying)) + len(rows) < file.record_count:
                deleted.append((file, union([rows, self._search.deleted_rows.of(file, own)])))
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
            before = self._search.deleted_rows.of(entry.data_file, deletes.applying_to(entry))
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
        if self._rewrite is None:
            raise cannot_rewrite(self.manifest)
        return self._rewrite(self.manifest, self._content_of(table, schema), files)

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


def _identities(table: Table, file: IcebergDataFile) -> tuple[str, ...]:
    """The columns by whose values the rows of a file are partitioned: files of others may leave them out."""
    names = []
    for number, part in enumerate(table.specs()[file.spec_id].fields):
        if str(part.transform) == "identity" and file.partition[number] is not None:
            names.append(table.schema().find_column_name(part.source_id))
    return tuple([name for name in names if name is not None and "." not in name])
