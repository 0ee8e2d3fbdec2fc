"""Clean-up of a Hudi table: files that failed attempts have left.

Staged files are listed, and files in the places of readers whose instant is not completed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..cleaning.cleanup import ListedFile
from ..contract import Token
from ..delta.files import delta_files
from .claims import Claims
from .names import KEYS, META, SLICES, STAGED, claims_folder, instant_of, visible_path
from .table import HudiTableFiles
from .timeline import Timeline

_STAGED = (f"{STAGED}/", f"{SLICES}/", f"{KEYS}/")
"""Folders of files that no reader lists."""


class HudiCleanableTable:
    """`cleanup.CleanableTable` for Hudi. Each call reads the current state."""

    def __init__(self, table_uri: str, storage_options: Mapping[str, str]) -> None:
        self._table = HudiTableFiles(table_uri, storage_options)
        self._files = delta_files(table_uri, storage_options)

    def id_and_tokens(self, query_ids: Iterable[str]) -> tuple[str | None, Mapping[str, Token]]:
        table = self._table.load()
        if table is None:
            return None, {}
        timeline = self._table.timeline()
        with self._table.errors():
            claims = {one: Claims(self._table.storage, one).committed(timeline) for one in query_ids}
        return table.table_id, {one: claim.token for one, claim in claims.items() if claim is not None}

    def files(self) -> Iterator[ListedFile]:
        """Staged files, and files that no reader sees. A file that a reader may see is never returned."""
        timeline = self._table.timeline()
        for file in self._files.walk():
            listed = ListedFile(*file)
            if listed.path.startswith(_STAGED) or (
                not listed.path.startswith(f"{META}/") and not _is_visible(listed.path, timeline)
            ):
                yield listed

    def names(self) -> Iterator[set[str]]:
        """None: readers find files by their instants. `delete_files` checks that they do not."""
        return iter(())

    def delete_files(self, paths: Iterable[str]) -> int:
        """Delete files whose instant is still not completed, and staged ones that nobody commits."""
        timeline = self._table.timeline()
        unneeded = [path for path in paths if path.startswith(_STAGED) or not _is_visible(path, timeline)]
        return self._files.delete([path for path in unneeded if not _is_pending(path, timeline)])


def _is_visible(path: str, timeline: Timeline) -> bool:
    """Return True unless the instant of the file is known not to be committed."""
    instant = instant_of(visible_path(path))
    if instant is None or not timeline.commits:
        return True
    return timeline.has(instant) or instant < timeline.first


def _is_pending(path: str, timeline: Timeline) -> bool:
    return (instant_of(path) or "") in timeline.pending


@dataclass(frozen=True, slots=True)
class HudiRecords:
    """See `QueryRecords`: the query's claims."""

    table: HudiTableFiles
    query_id: str

    def found(self) -> Sequence[str]:
        folder = claims_folder(self.query_id)
        names = self.table.storage.names(folder)
        return [f"{len(names):,} claims in {folder}"] if names else []

    def remove(self) -> None:
        folder, storage = claims_folder(self.query_id), self.table.storage
        storage.delete_all(f"{folder}/{name}" for name in storage.names(folder))
        storage.remove_empty_folders(folder)
