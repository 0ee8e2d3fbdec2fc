"""What a commit of changes writes: of each file group with rows that leave, the next slice without them.

The rows are found on the newest slices when the commit is made. The rows of the batch are in files of their
own, which begin new file groups. These files are written again if they lose rows, or if their instant is no
longer the latest one: readers take the slice with the latest instant for the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from ..arrow_values import numeric_array
from ..changes.file_search import SearchedFile, SearchFiles
from ..changes.key_files import OpenFile, WrittenKeys, data_files, key_files, read_keys
from ..changes.masked_rows import KeySearch, MaskedRows
from ..changes.rewriting import Lazy, MaskedFile, OpenTableRows, RewriteFiles, TableRows, cannot_rewrite
from ..changes.ties import read_parquet
from ..changes.tombstones import Tombstones
from ..contract import Changes, DataFile, Manifest
from ..errors import PenstockError
from ..file_tables.files import TableFiles
from ..file_tables.manifest import LakeManifest
from .commit_metadata import RewrittenSlice
from .file_slices import FileSlice
from .names import META_COLUMNS, TOMBSTONES, instant_of
from .schema import Record, arrow_schema

_NO_ROWS = numeric_array(())


@dataclass(frozen=True, slots=True)
class MaskedSlice:
    """A data file of the table, and the rows that are left out of its next slice."""

    slice: FileSlice
    masked: pa.Array
    """Their numbers (int64)."""


class RewriteSlices(Protocol):
    """Writes the next slices of file groups."""

    def __call__(
        self, manifest: Manifest, content: LakeManifest, slices: Sequence[MaskedSlice]
    ) -> Sequence[RewrittenSlice]:
        """Return them, durable and invisible, one for each, with the instant that the content has.

        Raises:
            RetryableError: the storage cannot be reached now.
            PenstockError: a file is damaged.
        """
        ...


@dataclass(frozen=True, slots=True)
class FileWriters:
    """How commits of changes write files, see `changes.rewriting`. None: they cannot."""

    rewrite: RewriteFiles | None = None
    rewrite_slices: RewriteSlices | None = None
    open_rows: OpenTableRows | None = None


@dataclass(frozen=True, slots=True)
class ChangedSlices:
    """The files of one attempt, staged."""

    added: tuple[DataFile, ...]
    """They begin a file group."""
    slices: tuple[RewrittenSlice, ...]
    based_on: tuple[str, ...]
    """Paths of the files that the slices follow."""
    written: tuple[str, ...]
    """Paths of files that only this attempt needs."""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple([file.path for file in (*self.added, *(one.file for one in self.slices))])


class HudiChanges:
    """The changes of one manifest. Attempts to commit it share what they have read.

    Args:
        files: of the table
        search: see `SearchFiles`
    """

    def __init__(
        self,
        manifest: Manifest,
        content: LakeManifest,
        files: TableFiles,
        writers: FileWriters,
        search: SearchFiles,
    ) -> None:
        assert isinstance(content.mode, Changes)
        self.manifest = manifest
        self._content = content
        self._changes = content.mode
        self._files = files
        self._writers = writers
        self._search_files = partial(search, content)
        self._new = {file.path: file for file in data_files(content.files)}
        self._written: list[WrittenKeys] = []
        self._search: KeySearch | None = None
        self._tombstones = Tombstones.of(files, manifest.batch, content.mode, TOMBSTONES)

    def write(
        self, slices: Sequence[FileSlice], schema: Record, planned: Record, content: LakeManifest
    ) -> ChangedSlices:
        """Find the rows to mask in the newest slices, and write what the commit adds.

        Args:
            schema: of the table after the commit
            planned: of the table when the batch was planned
            content: of the manifest, with this schema and the instant of the commit

        Raises:
            RetryableError: the storage cannot be reached now.
            MissingFileError: a file is missing; another writer may have replaced and cleaned it.
            PenstockError: a file is damaged.
        """
        columns = arrow_schema(schema)
        rows = Lazy(lambda: self._opened_rows(columns, content))
        masked = self._masked_rows(slices, arrow_schema(planned).names, rows)
        parts: list[Sequence[DataFile]] = []
        rewritten: Sequence[RewrittenSlice] = ()
        kept, again = self._new_files(masked, str(content.table_version))
        touched = [
            MaskedSlice(one, masked.in_table[one.path]) for one in slices if one.path in masked.in_table
        ]
        try:
            if masked.computed is not None:
                parts.append(rows().write(masked.computed))
            if again:
                parts.append(self._rewrite(content, again))
            if touched:
                rewritten = self._rewrite_slices(content, touched)
        except BaseException:
            self.discard([file.path for part in parts for file in part])
            raise
        made = tuple([file for part in parts for file in part])
        written = [file.path for file in (*made, *(one.file for one in rewritten))]
        based_on = tuple([one.slice.path for one in touched])
        return ChangedSlices((*kept, *made), tuple(rewritten), based_on, tuple(written))

    def discard(self, paths: Sequence[str]) -> None:
        """Delete what an attempt has written that was certainly not committed. Clean-up finds the rest."""
        with suppress(PenstockError):
            self._files.delete(paths)

    def clean_up(self) -> None:
        """Delete what the manifest lists after its commit, and old tombstones. The rest is done later."""
        self.discard([file.path for file in self._content.files])
        if self._tombstones is not None:
            self._tombstones.prune()

    def _new_files(self, masked: MaskedRows, instant: str) -> tuple[list[DataFile], list[MaskedFile]]:
        """Return the files of the batch as they are, and those that have to be written again."""
        kept, again = [], []
        for path, file in self._new.items():
            lost = masked.in_new.get(path, _NO_ROWS)
            if not len(lost) and instant_of(path) == instant:
                kept.append(file)
            elif len(lost) < file.rows:
                again.append(MaskedFile(file, lost))
        return kept, again

    def _rewrite(self, content: LakeManifest, files: Sequence[MaskedFile]) -> Sequence[DataFile]:
        if self._writers.rewrite is None:
            raise cannot_rewrite(self.manifest)
        return self._writers.rewrite(self.manifest, content, files)

    def _rewrite_slices(
        self, content: LakeManifest, slices: Sequence[MaskedSlice]
    ) -> Sequence[RewrittenSlice]:
        if self._writers.rewrite_slices is None:
            raise cannot_rewrite(self.manifest)
        return self._writers.rewrite_slices(self.manifest, content, slices)

    def _opened_rows(self, columns: pa.Schema, content: LakeManifest) -> TableRows:
        if self._writers.open_rows is None:
            raise cannot_rewrite(self.manifest)
        names = {name: name for name in columns.names}
        return self._writers.open_rows(self.manifest, content, _no_values, names)

    def _masked_rows(
        self, slices: Sequence[FileSlice], planned: Sequence[str], open_rows: Callable[[], TableRows]
    ) -> MaskedRows:
        if self._search is None:
            batch = self.manifest.batch
            self._written = read_keys(batch, key_files(self._content.files), self._files.opened)
            if not self._written:
                return MaskedRows({}, {})
            self._search = KeySearch(
                self._changes,
                self._written,
                planned,
                self._files.opened,
                self._search_files,
                tombstones=self._tombstones,
            )
        searched = [SearchedFile(one.path, size_bytes=one.size_bytes) for one in slices]
        parts = [[SearchedFile(path) for path in one.files] for one in self._written]
        return self._search.masked_rows(searched, parts, open_reader=open_rows)


def written_rows(open_file: OpenFile, file: DataFile) -> pa.Table:
    """Return the rows of a data file without the columns of Hudi, of which some differ for each row.

    Raises:
        PenstockError: it is damaged.
    """
    rows = read_parquet(open_file, file)
    return rows.drop_columns([name for name in META_COLUMNS if name in rows.column_names])


def with_schema(content: LakeManifest, schema_json: str, instant: str) -> LakeManifest:
    """Return the content with another schema and another instant of the commit."""
    return replace(content, schema_json=schema_json, table_version=int(instant))


def _no_values(path: str) -> Mapping[str, pa.Scalar | None]:
    """Files of Hudi tables have all columns."""
    return {}
