"""Finds the fragments of a Lance table that a commit changes, because a batch replaces or deletes rows.

Runs at the commit, on the version that the commit is based on. Deleted rows are masked by deletion files of
Lance; a version lists them, so new rows, deletions and the token are one commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from ..changes.key_files import Keys, data_files, key_files, read_keys
from ..changes.keys import KeySet, one_array
from ..changes.last_changes import last_changes
from ..changes.rewriting import MaskedFile, RewriteFiles, cannot_rewrite
from ..contract import Changes, DataFile, Manifest
from ..errors import RetryableError
from ..file_tables.files import TableFiles
from ..file_tables.manifest import LakeManifest
from .library import in_short, read_file

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata, LanceFragment

_ADDRESS = "_rowaddr"


@dataclass(frozen=True, slots=True)
class ChangedFragments:
    """What a version of the table has after the commit."""

    kept: tuple[FragmentMetadata, ...]
    """Those that it has now, some with more deleted rows."""
    files: tuple[DataFile, ...]
    """The data files of the batch without the rows that lose against another task's."""
    written: tuple[DataFile, ...] = ()
    """Those of `files` that only this attempt needs."""


class LanceChanges:
    """The changes of one manifest. Attempts to commit it share what they have read.

    Args:
        files: of the table
        rewrite: see `RewriteFiles`
    """

    def __init__(
        self,
        manifest: Manifest,
        content: LakeManifest,
        files: TableFiles,
        storage_options: Mapping[str, str],
        rewrite: RewriteFiles | None,
    ) -> None:
        assert isinstance(content.mode, Changes)
        self._manifest = manifest
        self._content = content
        self._changes = content.mode
        self._files = files
        self._options = storage_options
        self._rewrite = rewrite
        self._written = read_keys(manifest.batch, key_files(content.files), files.opened)
        self._last = last_changes(self._written, content.mode) if self._written else None

    def fragments(self, table: LanceDataset) -> ChangedFragments:
        """Find the rows to mask in a version of the table, and write what the commit needs.

        Raises:
            RetryableError: the table cannot be read or written now.
        """
        if self._last is None:
            return ChangedFragments(tuple([one.metadata for one in table.get_fragments()]), ())
        keys = KeySet(self._last.keys.columns)
        try:
            kept = tuple([self._without(fragment, keys, table) for fragment in table.get_fragments()])
        except Exception as error:
            raise RetryableError(
                f"The rows that batch {self._manifest.batch.batch_id} of {self._manifest.batch.stream} "
                f"changes cannot be found: {in_short(error)}. Nothing was committed. Check that the storage "
                "is reachable. The query's next start, or its next delivery, tries again."
            ) from error
        masked = self._losing_rows(table.uri)
        new = [file for file in data_files(self._content.files) if file.path not in masked]
        written: Sequence[DataFile] = ()
        if masked:
            if self._rewrite is None:
                raise cannot_rewrite(self._manifest)
            written = self._rewrite(self._manifest, self._content, list(masked.values()))
        return ChangedFragments(kept, (*new, *written), tuple(written))

    def _without(self, fragment: LanceFragment, keys: KeySet, table: LanceDataset) -> FragmentMetadata:
        """Return the fragment without the rows that have one of the keys."""
        columns = list(self._changes.keys)
        found: list[pa.Array] = []
        for batch in fragment.scanner(columns=columns, with_row_address=True).to_batches():
            rows, _ = keys.find(
                [_of_type(batch.column(n), k) for n, k in zip(columns, keys.columns, strict=True)]
            )
            found.append(batch.column(_ADDRESS).take(rows))
        addresses = pa.concat_arrays(found) if found else pa.array([], pa.uint64())
        if not len(addresses):
            return fragment.metadata
        listed = ",".join(map(str, addresses.to_pylist()))
        left: FragmentMetadata | None = fragment.delete(f"{_ADDRESS} IN ({listed})")
        return self._emptied(fragment.metadata, table.version) if left is None else left

    def _emptied(self, fragment: FragmentMetadata, version: int) -> FragmentMetadata:
        """Return the fragment with all rows deleted. The commit cannot remove it; compaction does.

        The library writes no such deletion file: https://lance.org/format/table/ describes it.
        """
        from lance.fragment import DeletionFile
        from lance.fragment import FragmentMetadata as Metadata

        number = uuid.uuid4().int >> 65  # fits into a signed number of 64 bits
        rows = BitMap(range(fragment.physical_rows))
        self._files.create(f"_deletions/{fragment.id}-{version}-{number}.bin", rows.serialize())
        deleted = DeletionFile(version, number, "bitmap", fragment.physical_rows, None)
        return Metadata(fragment.id, fragment.files, fragment.physical_rows, deleted, fragment.row_id_meta)

    def _losing_rows(self, location: str) -> dict[str, MaskedFile]:
        """Find the rows of the batch that are not the last ones of their keys, by file."""
        assert self._last is not None
        new = {file.path: file for file in data_files(self._content.files)}
        found = {}
        for part, lost in zip(self._written, self._last.losing, strict=True):
            for path in part.files if len(lost) else ():
                rows = self._rows_of(f"{location}/{path}", lost)
                if len(rows):
                    found[path] = MaskedFile(new[path], rows)
        return found

    def _rows_of(self, path: str, keys: Keys) -> pa.Array:
        columns = [one_array(column) for column in self._key_columns(path).columns]
        typed = [_of_type(column, key) for column, key in zip(columns, keys.columns, strict=True)]
        rows, _ = KeySet(keys.columns).find(typed)
        return rows

    def _key_columns(self, path: str) -> pa.Table:
        return read_file(path, self._options, list(self._changes.keys))


def _of_type(column: pa.Array, key: pa.Array) -> pa.Array:
    return column if column.type == key.type else pc.cast(column, key.type)
