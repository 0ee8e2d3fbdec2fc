"""Clean-up of a Paimon table: its tokens, its data files, and the files that its snapshots list.

Snapshots and tags of all branches count. pypaimon reads their manifests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..cleaning.cleanup import ListedFile
from ..contract import Token
from .files import files_of
from .table import PaimonTable
from .tokens import Tokens

_BRANCH = "branch-"


class PaimonCleanableTable:
    """`cleanup.CleanableTable` for Paimon. Each call reads the current state."""

    def __init__(self, table: PaimonTable) -> None:
        self._table = table
        self._read: set[str] = set()
        """Manifests that were read."""

    def id_and_tokens(self, query_ids: Iterable[str]) -> tuple[str | None, Mapping[str, Token]]:
        table_id = self._table.table_id()
        if table_id is None:
            return None, {}
        notes = Tokens(self._table)
        tokens = {query_id: notes.note(query_id).token for query_id in query_ids}
        return table_id, {query_id: token for query_id, token in tokens.items() if token is not None}

    def files(self) -> Iterator[ListedFile]:
        files = files_of(self._table)
        for path, size_bytes, modified_at in () if files is None else files.walk():
            if path.endswith(".parquet"):
                yield ListedFile(path, size_bytes, modified_at)

    def names(self) -> Iterator[set[str]]:
        """Base names of the data files in manifests that were not read before.

        Raises:
            RetryableError: a manifest cannot be read, so the files that it lists are unknown.
        """
        if self._table.table_id() is None:
            return
        loaded = self._table.load()
        try:
            for snapshot in self._snapshots(loaded):
                yield from self._names_in(loaded, snapshot)
        except Exception as error:  # noqa: BLE001  pypaimon raises errors of any type
            raise self._table.unreadable(error) from None

    def delete_files(self, paths: Iterable[str]) -> int:
        files = files_of(self._table)
        return 0 if files is None else files.delete(paths)

    def _snapshots(self, table: Any) -> Iterator[Any]:
        from pypaimon import TagManager
        from pypaimon.snapshot.snapshot_manager import SnapshotManager

        branches = [
            name.removeprefix(_BRANCH) for name in self._table.names("branch") if name.startswith(_BRANCH)
        ]
        newest = table.snapshot_manager().get_latest_snapshot()  # of the catalog, if there is one
        if newest is not None:
            yield newest
        for branch in ("main", *branches):
            yield from SnapshotManager(table.file_io, table.table_path, branch).list_snapshots()
            tags = TagManager(table.file_io, table.table_path, branch)
            for name in tags.list_tags():
                tag = tags.get(name)
                if tag is not None:
                    yield tag.trim_to_snapshot()

    def _names_in(self, table: Any, snapshot: Any) -> Iterator[set[str]]:
        from pypaimon.manifest.manifest_file_manager import ManifestFileManager
        from pypaimon.manifest.manifest_list_manager import ManifestListManager

        manifests = ManifestFileManager(table)
        for manifest in ManifestListManager(table).read_all(snapshot):
            if manifest.file_name not in self._read:
                entries = manifests.read(manifest.file_name)
                yield {entry.file.file_name for entry in entries}
                self._read.add(manifest.file_name)


@dataclass(frozen=True, slots=True)
class PaimonRecords:
    """See `QueryRecords`: the query's note."""

    table: PaimonTable
    query_id: str

    def found(self) -> Sequence[str]:
        name = Tokens(self.table).noted(self.query_id)
        return [] if name is None else [f"{name} in {self.table.place}"]

    def remove(self) -> None:
        name = Tokens(self.table).noted(self.query_id)
        try:
            with suppress(FileNotFoundError):
                if name is not None:
                    self.table.delete(name)
        except OSError as error:
            raise self.table.unreadable(error) from error
