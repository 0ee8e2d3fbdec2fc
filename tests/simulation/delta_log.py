"""The log of a Delta table in an object store, read and written as the Delta library does it.

What is imitated is deltalake 1.6.6, its errors and oddities included. Whatever the library asks a storage
for is a step here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from tests.simulation.delta_versions import Checkpoint, Entry, Segment, TableVersion, find_conflict
from tests.simulation.object_store import ObjectStore
from tests.simulation.scheduler import DAY_S, UnreachableError, as_os_error

T = TypeVar("T")

LOG = "_delta_log"
RETRIES_MAX = 15
"""Of a commit that does not say, as the library has it."""

_CHECKPOINT_INTERVAL = 100
_LOG_RETENTION_S = 30 * DAY_S
_TOMBSTONE_RETENTION_S = 7 * DAY_S
"""What the library takes where a table does not say; tables of the simulation never do."""


class DeltaLog:
    """The log of the table at one location, as the library reads and writes it."""

    def __init__(self, objects: ObjectStore, table_uri: str) -> None:
        self.objects = objects
        self.table_uri = table_uri
        self.folder = f"{table_uri}/{LOG}/"
        self.on_create: Callable[[str, bytes], None] = lambda _path, _content: None
        """Told of files that the product creates beside the log, before they are there."""
        self._stored = objects.objects
        self._paths: list[str] = []
        self._checkpoints: list[int] = []
        """Versions that a checkpoint was ever asked for, ascending; as `_paths`, more than there may be."""

    @property
    def now_ms(self) -> int:
        return int(self.objects.scheduler.now * 1000)

    def read(self, what: str, act: Callable[[], T]) -> T:
        """
        Raises:
            OSError: the storage does not answer.
        """
        with as_os_error("Generic S3 error: "):
            return self.objects.scheduler.request(what, act, about=self.table_uri, writes=False)

    # Reading

    def load(self, number: int | None = None) -> Segment:
        """What a version is read from; the newest if not said.

        Raises:
            TableNotFoundError: there is no log, or the version is older than what it still has.
            DeltaError: the log does not make that version, or is taken away while it is read.
        """
        segment = self.read("list log", lambda: self.segment(number))
        self.read("read log", lambda: self._check_there(segment))
        return segment

    def segment(self, number: int | None = None) -> Segment:
        """Without a step."""
        found = self._entries(0, number)
        base = self._checkpoint_at(number)
        if not found and base is None:
            self.check_location()
            raise TableNotFoundError("Generic delta kernel error: No files in log segment")
        first = 0 if base is None else base.version.number + 1
        entries = {at: entry for at, entry in found.items() if at >= first}
        newest = max(entries, default=first - 1)
        if len(entries) != newest - first + 1:
            raise DeltaError("Kernel error: Generic delta kernel error: Expected contiguous commit files")
        if number is not None and newest != number:
            raise DeltaError(
                f"Kernel error: Generic delta kernel error: LogSegment end version {newest} not the same as "
                f"the specified end version {number}"
            )
        return Segment(first, newest, list(entries.values()), base)

    def entries(self) -> Iterable[Entry]:
        """All JSON entries that are there, without a step."""
        return self._entries(0).values()

    def check_location(self) -> None:
        """Without a step. A folder on the local disk is looked for before anything is looked for in it."""
        if not self.objects.is_remote and not any(path.startswith(self.table_uri) for path in self._stored):
            raise TableNotFoundError(f'Local path "{self.table_uri}" does not exist')

    def has_files(self) -> bool:
        """Without a step: is there any part of a log?"""
        return any(path in self._stored for path in self._paths) or self._checkpoint_at(None) is not None

    def has(self, data_file: str) -> bool:
        """Without a step."""
        return f"{self.table_uri}/{data_file}" in self._stored

    def _entries(self, first: int, last: int | None = None) -> dict[int, Entry]:
        """The JSON entries from `first` to `last` that are there, ascending."""
        paths = self._paths[first : None if last is None else last + 1]
        stored = self._stored
        return {at: stored[path].content for at, path in enumerate(paths, first) if path in stored}

    def _checkpoint_at(self, number: int | None) -> Checkpoint | None:
        """The newest one up to a version."""
        for at in reversed(self._checkpoints):
            if number is None or at <= number:
                found = self._stored.get(self._checkpoint_path(at))
                if found is not None:
                    return found.content
        return None

    def _check_there(self, segment: Segment) -> None:
        stored = self._stored
        paths = self._paths[segment.first : segment.number + 1]
        gone = [path for path in paths if path not in stored]
        if segment.checkpoint is not None:
            path = self._checkpoint_path(segment.checkpoint.version.number)
            gone += [path] if path not in stored else []
        if gone:
            raise DeltaError(f"Kernel error: File not found: {gone[0]}")

    def transaction_version(self, segment: Segment, app_id: str) -> int | None:
        """The library reads the log for it, newest entry first, each time that it is asked."""

        def act() -> int | None:
            for at in range(segment.number, segment.first - 1, -1):
                found = self._stored.get(self._paths[at])
                if found is None:
                    raise DeltaError(f"Kernel error: File not found: {self._paths[at]}")
                if app_id in found.content.txn:
                    return found.content.txn[app_id]
            if segment.checkpoint is None:
                return None
            self._check_there(segment)
            return segment.checkpoint.version.txn.get(app_id)

        return self.read("read txn", act)

    def find_number_at(self, moment: datetime) -> int:
        """The version that was the newest one at a time; the oldest one left if there was none."""
        return self.read("list log", lambda: self.number_at(moment.timestamp()))

    def number_at(self, seconds: float) -> int:
        """The same without a step."""
        there = self._entries(0)
        old = (at for at in there if self.written_at(at) <= seconds)
        return max(old, default=min(there, default=0))

    def written_at(self, number: int) -> float:
        """Without a step: when the version became the newest one."""
        return self._stored[self._paths[number]].modified_at

    def history(self, number: int, limit: int | None) -> list[dict[str, Any]]:
        """Commit infos, newest first, as a handle at version `number` shows them.

        The library lists from `limit` versions back to the end of the log, which may have moved on since, and
        numbers what it finds downwards from the handle's version.
        """
        first = 0 if limit is None else max(0, number - limit + 1)
        entries = self.read("read history", lambda: self._entries(first))
        newest_first = enumerate(reversed(entries.values()))
        return [
            {"timestamp": entry.timestamp, **entry.info, "version": number - at} for at, entry in newest_first
        ]

    # Writing

    def newest_since(self, number: int) -> int:
        """The newest version, for a handle at version `number`.

        Raises:
            DeltaError: that version's entry is gone, or the storage does not answer.
        """
        try:
            entries = self.read("list log", lambda: self._entries(number))
        except OSError as error:
            raise DeltaError(
                f"Generic DeltaTable error: Error interacting with object store: {error}"
            ) from error
        if number not in entries:
            raise DeltaError(f"Invalid table version: {number}")
        return max(entries)

    def put(self, number: int, entry: Entry) -> None:
        """Commit the entry as that version.

        Raises:
            FileExistsError: there is one, be it this very entry that was sent twice.
            OSError: it may be there or not.
        """
        for at in range(len(self._paths), number + 1):
            self._paths.append(f"{self.folder}{at:020}.json")
        with as_os_error("Generic S3 error: "):
            self.objects.put(self._paths[number], entry, if_absent=True)

    def commit(self, number: int, entry: Entry, retries: int | None = None) -> int:
        """On a handle at version `number`. Without retries for the next version only; else on top of what
        others have committed meanwhile, unless that forbids it. Returns the version.

        Raises:
            CommitFailedError: it did not land, or not so that the library would know.
            DeltaError, OSError: it may be there or not.
        """
        retries = RETRIES_MAX if retries is None else retries
        for _ in range(retries + 1):
            newest = self.newest_since(number)
            if newest > number:
                self._check_no_conflict(number, newest, entry, retries)
                number = newest
            try:
                self.put(number + 1, entry)
            except FileExistsError:
                entry = entry.again()
                continue
            return number + 1
        raise CommitFailedError(f"Failed to commit transaction: {retries}")

    def _check_no_conflict(self, number: int, newest: int, entry: Entry, retries: int) -> None:
        """
        Raises:
            CommitFailedError: what was committed since version `number` forbids the entry.
        """
        if retries == 0:
            raise CommitFailedError("Failed to commit transaction: 0")
        for other in self.read("read log", lambda: list(self._entries(number + 1, newest).values())):
            conflict = find_conflict(other, entry)
            if conflict:
                raise CommitFailedError(f"Failed to commit transaction: {conflict}")

    def commit_new_table(self, entry: Entry, retries: int | None) -> int:
        """Returns the version. With retries a table that somebody else creates meanwhile gets this one's
        metadata on top.
        """
        try:
            self.put_next(0, entry)
        except CommitFailedError:
            if retries == 0:
                raise
            newest = self.read("list log", lambda: max(self._entries(0)))
            self.put_next(newest + 1, entry.again())
            return newest + 1
        return 0

    def put_next(self, number: int, entry: Entry) -> None:
        """As that version, whoever is on the way to another one.

        Raises:
            CommitFailedError: it is taken.
            OSError: it may be there or not.
        """
        try:
            self.put(number, entry)
        except FileExistsError as error:
            raise CommitFailedError("Failed to commit transaction: 0") from error

    def read_back(self, number: int) -> Segment:
        """The library looks at its own commit, and fails if it cannot."""
        return self.read("read back", lambda: self.segment(number))

    def after_commit(self, number: int, *, checkpoint: bool = True, drop_expired: bool = True) -> None:
        """What the library does before it says that it has committed; it fails if that fails."""
        version = self.read_back(number).version()
        interval = int(version.metadata.configuration.get("delta.checkpointInterval", _CHECKPOINT_INTERVAL))
        if checkpoint and (number + 1) % interval == 0:
            self.write_checkpoint(version)
        if drop_expired:
            self.drop_expired()

    def write_checkpoint(self, version: TableVersion) -> None:
        """
        Raises:
            DeltaError, OSError: it may be there or not.
        """
        oldest = self.now_ms - _TOMBSTONE_RETENTION_S * 1000
        removed = [path for path, removed_at in version.tombstones.items() if removed_at > oldest]
        self._checkpoints = sorted({*self._checkpoints, version.number})
        path = self._checkpoint_path(version.number)
        try:
            self.objects.put(path, Checkpoint(version, removed))
        except (UnreachableError, OSError) as error:
            raise DeltaError(f"Kernel error: Arrow error: External: {error}") from error
        with as_os_error("Kernel error -> "):
            self.objects.put(f"{self.folder}_last_checkpoint", version.number)

    def drop_before(self, number: int, written_before: float) -> None:
        """Delete what the checkpoint of version `number` makes superfluous, oldest first.

        Args:
            written_before: seconds since 1970
        """
        paths = self._paths[:number] + [self._checkpoint_path(at) for at in self._checkpoints if at < number]
        with as_os_error("Generic S3 error: "):
            for path in sorted(paths):
                found = self._stored.get(path)
                if found is not None and found.modified_at <= written_before:
                    self.objects.delete(path)

    def drop_expired(self) -> None:
        """What the library does with a log that is older than its retention: all younger versions stay
        readable.
        """
        written_before = self.objects.scheduler.now - _LOG_RETENTION_S
        there = ((at, self._stored[path]) for at, path in enumerate(self._paths) if path in self._stored)
        young = (at for at, entry in there if entry.modified_at > written_before)
        checkpoint = self._checkpoint_at(next(young, None))
        if checkpoint is not None:
            self.drop_before(checkpoint.version.number, written_before)

    def path(self, number: int) -> str:
        """Of the entry of a version."""
        return self._paths[number]

    def _checkpoint_path(self, number: int) -> str:
        return f"{self.folder}{number:020}.checkpoint.parquet"
