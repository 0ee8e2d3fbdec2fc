"""Caches the state of a Delta table, without its files, and updates it from the last log entries.

The cost of loading a table grows with its files and log entries; an object store needs a request per entry. A
process that has loaded a table once only reads the entries that follow, usually the one of its own last
commit. A cached snapshot is discarded, and the library loads the table, if

- the log entry of its version is no longer the same file. Then the table was dropped, re-created or restored,
  or the log was cleaned up, and a free "next" version may be long outdated. This is checked last before a
  commit, and again right after it;
- an entry sets columns, properties or protocol: only the library reads these;
- it was not used for a while, or too many entries follow.

This is only a cache: without it, for example in a new process, the table is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from deltalake import DeltaTable, Schema
from deltalake.table import Metadata, ProtocolVersions

from ..texts.safe_text import get_logger
from .library import in_short
from .log_entry import changes_of
from .log_files import LogFiles, open_log_files
from .table import app_version, load_if_there, load_version

logger = get_logger(__name__)

KEPT_S = 300.0
"""How long a snapshot stays valid after its last use. Logs keep their entries for longer."""
ENTRIES_MAX = 20
"""With more new entries than this, the library is faster: it reads a log checkpoint."""
SNAPSHOTS_MAX = 1000
LIBRARY_ONLY_S = 60.0
"""How long only the library reads and writes a log after a request for one of its files has failed."""


class LogChangedError(Exception):
    """The log entry that a commit was based on is missing, so the commit may or may not be valid."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The log entry that the snapshot reflects. The next entry is read or written after it."""

    files: LogFiles
    version: int
    identity: str
    """Identity of the entry's file."""
    read_at_s: float

    def is_there(self) -> bool:
        return self.files.identity(self.version) == self.identity


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A Delta table at one version; see `DeltaTableState`. Immutable."""

    table_uri: str
    """In the library's form."""
    _options: Mapping[str, str]
    _version: int
    _metadata: Metadata
    _schema: Schema
    _protocol: ProtocolVersions
    _app_versions: dict[str, int | None]
    """As loaded by the library at this version, or as set by entries since."""
    _handle: DeltaTable | None
    """The library's table, only while it is in use: it is large, because it holds data of each file."""
    tail: LogTail | None = None
    """None: only the library can read and write the log, and the snapshot can be used only once."""

    @classmethod
    def of(cls, table: DeltaTable, storage_options: Mapping[str, str]) -> TableSnapshot:
        return cls(
            table.table_uri,
            dict(storage_options),
            table.version(),
            table.metadata(),
            table.schema(),
            table.protocol(),
            {},
            table,
        )

    def version(self) -> int:
        return self._version

    def metadata(self) -> Metadata:
        return self._metadata

    def schema(self) -> Schema:
        return self._schema

    def protocol(self) -> ProtocolVersions:
        return self._protocol

    def handle(self) -> DeltaTable:
        """The library's table at this version.

        Raises:
            RetryableError: the log cannot be read now.
        """
        return self._handle or load_version(self.table_uri, self._options, self._version)

    def app_version(self, app_id: str) -> int | None:
        """Version of an application transaction. The library reads the log since the last checkpoint for each
        of them.

        Raises:
            RetryableError: the log cannot be read now.
        """
        if app_id not in self._app_versions:
            self._app_versions[app_id] = app_version(self.handle(), app_id)
        return self._app_versions[app_id]

    def after(self, entry: LogTail, app_versions: Mapping[str, int]) -> TableSnapshot:
        """The table after one more entry that adds files and sets these transactions."""
        return replace(
            self,
            _version=entry.version,
            _app_versions={**self._app_versions, **app_versions},
            _handle=None,
            tail=entry,
        )

    def append(self, entry: bytes, app_versions: Mapping[str, int]) -> TableSnapshot:
        """Commit such an entry; return the table after it.

        Raises:
            FileExistsError: the next version is taken, possibly by this same entry.
            LogChangedError: the commit may or may not be in the table.
            Exception: of the storage; the commit may or may not be in the table.
        """
        tail = self.tail
        assert tail is not None, "the library commits"
        next_version = tail.version + 1
        identity = tail.files.put(next_version, entry)
        if not tail.is_there():
            raise LogChangedError(f"version {tail.version} was replaced or cleaned up in the meantime")
        return self.after(replace(tail, version=next_version, identity=identity), app_versions)


def advance(snapshot: TableSnapshot, now_s: float) -> TableSnapshot | None:
    """Advance the snapshot to the newest version; None if the table has to be loaded.

    Raises:
        Exception: of the storage, or of an invalid entry.
    """
    first = last = snapshot.tail
    if first is None or last is None or not 0 <= now_s - first.read_at_s < KEPT_S:
        return None
    while (file := first.files.read(last.version + 1)) is not None:
        changes = changes_of(file.content)
        if changes.has_other_layout or last.version == first.version + ENTRIES_MAX:
            return None
        last = LogTail(first.files, last.version + 1, file.identity, now_s)
        snapshot = snapshot.after(last, changes.app_versions)
    if last is not first and not first.is_there():
        return None
    return replace(snapshot, tail=replace(last, read_at_s=now_s)) if last.is_there() else None


_Key: TypeAlias = "tuple[str, frozenset[tuple[str, str]]]"


class SnapshotCache:
    """Table snapshots of a process, by table. Safe to share among threads.

    Args:
        clock: seconds since 1970, from a clock that continues while the machine sleeps
        open_files: opens a table's log; returns None if only the library can
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        open_files: Callable[[str, Mapping[str, str]], LogFiles | None] = open_log_files,
    ) -> None:
        self._clock = clock
        self._open_files = open_files
        self._snapshot_cache: dict[_Key, TableSnapshot] = {}
        self._failed_at_s: dict[_Key, float] = {}
        """When a request for a file of the log last failed, for tables with a recent failure."""

    def load(self, table_uri: str, storage_options: Mapping[str, str]) -> TableSnapshot | None:
        """The table at its newest version; None if it does not exist.

        Raises:
            RetryableError: it cannot be read now.
        """
        key = _key(table_uri, storage_options)
        snapshot = self._advance(key)
        if snapshot is None:
            table = load_if_there(table_uri, storage_options)
            if table is None:
                return None
            snapshot = self._with_tail(key, TableSnapshot.of(table, storage_options))
        self._keep(key, snapshot)
        return snapshot

    def append(
        self,
        table_uri: str,
        storage_options: Mapping[str, str],
        snapshot: TableSnapshot,
        entry: bytes,
        app_versions: Mapping[str, int],
    ) -> None:
        """See `TableSnapshot.append`."""
        self._keep(_key(table_uri, storage_options), snapshot.append(entry, app_versions))

    def _keep(self, key: _Key, snapshot: TableSnapshot) -> None:
        if snapshot.tail is not None:
            if len(self._snapshot_cache) >= SNAPSHOTS_MAX:
                self._snapshot_cache.clear()
            self._snapshot_cache[key] = replace(snapshot, _handle=None)

    def _advance(self, key: _Key) -> TableSnapshot | None:
        known = self._snapshot_cache.pop(key, None)
        try:
            return None if known is None else advance(known, self._clock())
        except Exception as error:  # noqa: BLE001  the library reports what is wrong
            logger.debug("The Delta table %s is loaded again: %s", key[0], in_short(error))
            return None

    def _with_tail(self, key: _Key, snapshot: TableSnapshot) -> TableSnapshot:
        """Attach the log's files, if they can be reached without the library."""
        files = None if self._has_failed(key) else self._open_files(key[0], dict(key[1]))
        if files is None:
            return snapshot
        try:
            identity = files.identity(snapshot.version())
        except Exception as error:  # noqa: BLE001  the library has just read the table
            self._failed(key, error)
            return snapshot
        self._failed_at_s.pop(key, None)
        if identity is None:
            return snapshot
        return replace(snapshot, tail=LogTail(files, snapshot.version(), identity, self._clock()))

    def _has_failed(self, key: _Key) -> bool:
        failed_at_s = self._failed_at_s.get(key)
        return failed_at_s is not None and 0 <= self._clock() - failed_at_s < LIBRARY_ONLY_S

    def _failed(self, key: _Key, error: Exception) -> None:
        if key not in self._failed_at_s:
            logger.info(
                "Reading the log files of the Delta table %s failed: %s. Commits go through the Delta "
                "library, which takes longer. The files are tried again every %.0f s.",
                key[0],
                in_short(error),
                LIBRARY_ONLY_S,
            )
        if len(self._failed_at_s) >= SNAPSHOTS_MAX:
            self._failed_at_s.clear()
        self._failed_at_s[key] = self._clock()


def _key(table_uri: str, storage_options: Mapping[str, str]) -> _Key:
    return table_uri, frozenset(storage_options.items())


SNAPSHOT_CACHE = SnapshotCache()
"""The instance of this process."""
