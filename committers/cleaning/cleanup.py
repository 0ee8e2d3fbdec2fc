"""Clean-up: finds and deletes data files that no table version, manifest or running batch needs.

Runs in the command line, also while queries write the table. Unneeded files come from failed or superseded
task attempts, from drivers that died before they prepared a batch, and from aborted batches.

A file is deleted only if all of these conditions hold:

    ours       its name was made by Penstock, and the store knows its query as a writer of this table
    settled    the table's token and the store are at or past its batch: no driver can commit files of this
               batch any more, however late
    unlisted   no PREPARED or COMMITTED manifest and no readable version of the table lists it, except for
               key files of a COMMITTED one
    old        it was last modified before the grace period

Age alone is not enough: a task that runs for days closes its first files days before its batch is prepared.
Names alone are not enough either: a batch could be prepared between the check and the deletion. The token
only moves forward, so a settled batch stays settled.

A batch write whose driver died has no token, and often no store. Its id contains the table and its start time
(`batch_writes`), and drivers refuse to commit one that is too old. So the id alone shows that the files are
ours and settled. The files must be older than that limit, too.

This determines the order of the checks: first the tokens, then the files, then the manifests that list them.
A batch committed after the first check was not settled. Everything except the age is checked again right
before each deletion.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Protocol, TypeVar

from ..changes.key_files import is_key_path
from ..contract import Manifest, ManifestRecord, ManifestState, StreamKey, Token
from ..protocol.batch_writes import GIVEN_UP_AFTER, BatchWrite, batch_write_of

_T = TypeVar("_T")

_ANY_TIME = datetime.max.replace(tzinfo=timezone.utc)
FILES_PER_CHECK = 1000
"""Number of files deleted between two checks of the manifests."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file found by listing the storage. `path` is relative to the table's location, not encoded."""

    path: str
    size_bytes: int
    modified_at: datetime


class ParsedName(Protocol):
    """The query and batch parsed from a data file's name."""

    @property
    def query_id(self) -> str: ...

    @property
    def batch_id(self) -> int: ...


NameParser = Callable[[str], "ParsedName | None"]
"""Parses the name of a data file written by Penstock; returns None for other files."""


class CleanableTable(Protocol):
    """A table that clean-up can work on. Each call reads the current state."""

    def id_and_tokens(self, query_ids: Iterable[str]) -> tuple[str | None, Mapping[str, Token]]:
        """The table's own id and the last batch of each given query, from one load of the table.

        None and no tokens if the table does not exist; queries without a token are left out.
        """
        ...

    def files(self) -> Iterator[ListedFile]:
        """All files below the location, except those of other tables inside it."""
        ...

    def names(self) -> Iterator[set[str]]:
        """Base names of all files that any readable version of the table may need.

        An instance yields the names of each version once: the next call yields only new ones.
        """
        ...

    def delete_files(self, paths: Iterable[str]) -> int:
        """Delete files; return the number deleted. Missing files are not an error."""
        ...


class CleanableStore(Protocol):
    """What clean-up needs from the manifest store."""

    def streams_of(self, query_id: str) -> Sequence[StreamKey]: ...

    def history(self, stream: StreamKey, limit: int) -> Sequence[ManifestRecord]: ...

    def record(self, stream: StreamKey, batch_id: int) -> ManifestRecord | None: ...

    def manifest(self, stream: StreamKey, batch_id: int) -> Manifest | None: ...

    def manifests(self, stream: StreamKey, state: ManifestState) -> Iterator[Manifest]: ...


class FileStatus(Enum):
    """Classification of a file that no version of the table lists."""

    NOT_OURS = "not written by a query that the store knows for this table"
    UNSETTLED = "its batch may still be committed"
    YOUNG = "younger than the grace period"
    UNNEEDED = "can be deleted"


def classify(
    file: ListedFile, name: ParsedName | None, settled: Mapping[str, int], written_before: datetime
) -> FileStatus:
    """Classify a file that no manifest lists.

    Args:
        name: parsed file name
        settled: for each query of the table, the last batch that no future commit can add files to
        written_before: end of the grace period
    """
    if name is None or name.query_id not in settled:
        return FileStatus.NOT_OURS
    if name.batch_id > settled[name.query_id]:
        return FileStatus.UNSETTLED
    return FileStatus.UNNEEDED if file.modified_at < written_before else FileStatus.YOUNG


def settled_batches(tokens: Mapping[str, Token], newest: Mapping[str, int]) -> dict[str, int]:
    """For each query in the store, the last batch that no future commit can add files to; -1 if none.

    Args:
        tokens: last batches in the table
        newest: for each query, the newest batch in the store; -1 if there is none
    """
    return {
        query_id: min(tokens[query_id].batch_id, batch_id) if query_id in tokens else -1
        for query_id, batch_id in newest.items()
    }


@dataclass(slots=True)
class ClassifiedFiles:
    """Files of one table that nothing needs, by class. Files that a manifest lists are left out."""

    unneeded: list[ListedFile] = field(default_factory=list)
    young: list[ListedFile] = field(default_factory=list)
    unsettled: list[ListedFile] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Total size of the files that can be deleted."""
        return sum(file.size_bytes for file in self.unneeded)


class Cleanup:
    """Finds and deletes unneeded files of one table.

    Args:
        store: the manifest store
        table: the table
        cleaned: streams of this table whose files may be deleted
        parse: parses the name of a data file
        paths_of: returns the files that a manifest lists
        ended: for streams whose queries have ended for good: returns for each query the last batch whose
            files nobody needs any more. Then the token and the age do not matter, and only files of these
            queries are found. None: the queries may run.
    """

    def __init__(
        self,
        store: CleanableStore,
        table: CleanableTable,
        cleaned: Sequence[StreamKey],
        parse: NameParser,
        paths_of: Callable[[Manifest], Iterable[str]],
        ended: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        self._store = store
        self._ended = ended
        self._table = table
        self._cleaned = cleaned
        self._parse = parse
        self._paths_of = paths_of

    def find(self, now: datetime, grace: timedelta) -> ClassifiedFiles:
        """Find unneeded files. Changes nothing.

        Args:
            grace: keep files younger than this; files of batch writes are kept at least for `GIVEN_UP_AFTER`

        Raises:
            ManifestCorruptError: a manifest cannot be read, so the files that it lists are unknown.
            RetryableError: the table or the store cannot be read.
        """
        table_id, settled = self._id_and_settled()
        files: dict[str, tuple[ListedFile, FileStatus]] = {}
        for file in self._table.files():
            name = self._parse(file.path)
            written_before = _ANY_TIME if self._ended is not None else now - grace
            write = None if name is None or self._ended is not None else _batch_write(name, table_id)
            if name is not None and write is not None:
                written_before = now - max(grace, GIVEN_UP_AFTER)
                settled[name.query_id] = 0 if write.began_at < written_before else -1
            verdict = classify(file, name, settled, written_before)
            if verdict is not FileStatus.NOT_OURS:
                files[posixpath.basename(file.path)] = (file, verdict)
        if not files:
            return ClassifiedFiles()
        for names in self._table.names():
            _drop(files, names)
        for names in self._names_in_manifests(files):
            _drop(files, names)
        return _found(files.values())

    def delete(self, found: ClassifiedFiles) -> Iterator[int]:
        """Delete files that are still unneeded; yield the number of deleted files after each chunk."""
        for start in range(0, len(found.unneeded), FILES_PER_CHECK):
            chunk = found.unneeded[start : start + FILES_PER_CHECK]
            yield self._table.delete_files(self._still_unneeded(chunk))

    def _still_unneeded(self, files: Sequence[ListedFile]) -> list[str]:
        table_id, settled = self._id_and_settled()
        parsed = {file.path: self._parse(file.path) for file in files}
        for name in parsed.values():
            if name is not None and _batch_write(name, table_id) is not None:
                settled[name.query_id] = 0  # it was old enough when it was found
        left = {
            posixpath.basename(path): path
            for path, name in parsed.items()
            if name is not None and name.batch_id <= settled.get(name.query_id, -1)
        }
        for names in self._table.names():
            _drop(left, names)
        batches = {(name.query_id, name.batch_id) for name in parsed.values() if name is not None}
        for names in self._names_of_batches(sorted(batches)):
            _drop(left, names)
        return list(left.values())

    def _id_and_settled(self) -> tuple[str | None, dict[str, int]]:
        table_id, tokens = self._table.id_and_tokens([stream.query_id for stream in self._cleaned])
        if self._ended is not None:
            return table_id, dict(self._ended())
        newest = {}
        for stream in self._cleaned:
            records = self._store.history(stream, 1)
            newest[stream.query_id] = records[0].batch.batch_id if records else -1
        return table_id, settled_batches(tokens, newest)

    def _names_in_manifests(self, files: Mapping[str, tuple[ListedFile, FileStatus]]) -> Iterator[set[str]]:
        """Yield the file names listed by manifests, PREPARED before COMMITTED, so that no batch is missed in
        between.
        """
        parsed = map(self._parse, files)
        naming = self._naming({name.query_id for name in parsed if name is not None})
        for stream in naming:
            yield from map(self._names, self._store.manifests(stream, ManifestState.PREPARED))
        for stream in naming:
            # Reading the whole history takes a while, so stop if nothing is left to delete.
            if any(verdict is FileStatus.UNNEEDED for _, verdict in files.values()):
                yield from map(self._lasting_names, self._store.manifests(stream, ManifestState.COMMITTED))

    def _names_of_batches(self, batches: Collection[tuple[str, int]]) -> Iterator[set[str]]:
        """The file names listed by the current manifests of these batches, and by all that are PREPARED."""
        for stream in self._naming({query_id for query_id, _ in batches}):
            yield from map(self._names, self._store.manifests(stream, ManifestState.PREPARED))
            for query_id, batch_id in batches:
                if query_id == stream.query_id and (state := self._state(stream, batch_id)) is not None:
                    manifest = self._store.manifest(stream, batch_id)
                    names = self._lasting_names if state is ManifestState.COMMITTED else self._names
                    yield from () if manifest is None else (names(manifest),)

    def _naming(self, query_ids: set[str]) -> list[StreamKey]:
        """The streams whose manifests may list files of the cleaned streams or of these queries: those of the
        same queries.
        """
        queries = query_ids.union(stream.query_id for stream in self._cleaned)
        return [stream for query_id in sorted(queries) for stream in self._store.streams_of(query_id)]

    def _state(self, stream: StreamKey, batch_id: int) -> ManifestState | None:
        """None if it was aborted, or is unknown."""
        record = self._store.record(stream, batch_id)
        return None if record is None or record.state is ManifestState.ABORTED else record.state

    def _names(self, manifest: Manifest) -> set[str]:
        return {posixpath.basename(path) for path in self._paths_of(manifest)}

    def _lasting_names(self, manifest: Manifest) -> set[str]:
        """Without the key files: only the commit needs them."""
        return {posixpath.basename(path) for path in self._paths_of(manifest) if not is_key_path(path)}


def _batch_write(name: ParsedName, table_id: str | None) -> BatchWrite | None:
    """The batch write that wrote the file, if it wrote to this table and its id has a start time."""
    write = batch_write_of(name.query_id)
    return write if write is not None and write.is_into(table_id) else None


def _drop(files: dict[str, _T], names: Iterable[str]) -> None:
    for name in names:
        files.pop(name, None)


def _found(files: Iterable[tuple[ListedFile, FileStatus]]) -> ClassifiedFiles:
    found = ClassifiedFiles()
    lists = {
        FileStatus.UNNEEDED: found.unneeded,
        FileStatus.YOUNG: found.young,
        FileStatus.UNSETTLED: found.unsettled,
    }
    for file, verdict in sorted(files, key=lambda judged: judged[0].path):
        lists[verdict].append(file)
    return found
