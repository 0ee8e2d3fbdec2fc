"""The data and delete files of a branch's head, read from its manifests."""

from __future__ import annotations

import gc
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from threading import Lock
from typing import cast

from pyiceberg.io import FileIO, InputFile, InputStream
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from .library.snapshots import Live

CACHED_ENTRIES_MAX = 10_000
"""Entries of manifests kept in this process. One of a file with statistics of 20 columns takes 5 kB."""

_THREADS = 8


class ManifestCache:
    """Entries of the manifests read last. Manifests never change."""

    def __init__(self, entries_max: int = CACHED_ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._kept: OrderedDict[str, list[ManifestEntry]] = OrderedDict()
        self._count = 0
        self._lock = Lock()

    def has(self, path: str) -> bool:
        with self._lock:
            return path in self._kept

    def read(self, io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
        """Return the files that the manifest adds or keeps."""
        path = manifest.manifest_path
        with self._lock:
            known = self._kept.get(path)
            if known is not None:
                self._kept.move_to_end(path)
                return known
        entries = list(manifest.fetch_manifest_entry(io, discard_deleted=True))
        with self._lock:
            if path not in self._kept and len(entries) <= self._entries_max:
                self._kept[path] = entries
                self._count += len(entries)
                while self._count > self._entries_max:
                    _, dropped = self._kept.popitem(last=False)
                    self._count -= len(dropped)
        return entries


MANIFEST_CACHE = ManifestCache()


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """All files of a branch's head."""

    manifests: Live
    data: Mapping[str, ManifestEntry]
    """Data files by location."""
    deletes: tuple[ManifestEntry, ...]
    """Delete files."""


def live_files(table: Table, branch: str, cache: ManifestCache = MANIFEST_CACHE) -> LiveFiles:
    """
    Raises:
        Exception: raised by the storage: a manifest cannot be read.
    """
    return files_of(table.metadata.snapshot_by_name(branch), table.io, cache)


def files_of(
    snapshot: Snapshot | None,
    io: FileIO,
    cache: ManifestCache = MANIFEST_CACHE,
    needed: Callable[[ManifestFile], bool] = lambda _: True,
) -> LiveFiles:
    """
    Args:
        snapshot: any one of the table; None: no files
        needed: returns False for a manifest that is not read

    Raises: as `live_files`.
    """
    manifests = [] if snapshot is None else list(filter(needed, snapshot.manifests(io)))
    with _without_garbage_collection():
        live = [(one, cache.read(source, one)) for one, source in _sources(io, manifests, cache)]
    return LiveFiles(
        live,
        {entry.data_file.file_path: entry for entry in _entries(live, ManifestContent.DATA)},
        tuple(_entries(live, ManifestContent.DELETES)),
    )


def _sources(
    io: FileIO, manifests: Sequence[ManifestFile], cache: ManifestCache
) -> Iterator[tuple[ManifestFile, FileIO]]:
    """Yield manifests with what to read them from. Some are downloaded ahead of time, by other threads. One
    thread decodes them: Python does not decode two at once, and to change between threads takes as long
    again.
    """
    with ThreadPoolExecutor(_THREADS) as threads:
        ahead: deque[tuple[ManifestFile, Future[_Downloaded] | None]] = deque()

        def first() -> tuple[ManifestFile, FileIO]:
            manifest, downloaded = ahead.popleft()
            return manifest, io if downloaded is None else cast("FileIO", downloaded.result())

        for manifest in manifests:
            path = manifest.manifest_path
            is_there = len(manifests) < 2 or cache.has(path)
            ahead.append((manifest, None if is_there else threads.submit(_Downloaded, io, path)))
            if len(ahead) > _THREADS:
                yield first()
        while ahead:
            yield first()


class _Downloaded:
    """A manifest in memory. For `fetch_manifest_entry` it stands for the storage, of which that only takes
    `new_input`.
    """

    def __init__(self, io: FileIO, path: str) -> None:
        with io.new_input(path).open() as stream:
            self._content = stream.read()

    def new_input(self, location: str) -> InputFile:
        return _Content(location, self._content)


class _Content(InputFile):
    def __init__(self, location: str, content: bytes) -> None:
        super().__init__(location)
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return BytesIO(self._content)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Entries have no cycles, and are so many that looking for some takes a third of the time."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def _entries(live: Live, content: ManifestContent) -> list[ManifestEntry]:
    """Compared by value: for format version 1 the library returns a number."""
    return [entry for manifest, some in live if manifest.content == content for entry in some]
