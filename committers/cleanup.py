"""Clean-up: which data files under a table's location nothing needs, and deleting them.

Runs in the command line, also while queries write the table. What is left behind: files of task attempts
that failed or lost, of drivers that died before they prepared, and of batches that were given up.

A file is deleted only if all of this holds:

    ours       Penstock made its name, and the store knows its query as a writer of this very table
    settled    the table's token is at or past its batch, and so is the store: no commit, by whichever
               driver and however late, adds files of such a batch any more
    unnamed    no PREPARED or COMMITTED manifest and no version of the table that can be read names it
    old        it was last modified before the grace period

Age alone would not do: a task that runs for days has closed its first files days before its batch is
prepared. Nor would names alone: between the look and the deletion a batch could be prepared. The token
only moves on, so what is settled stays settled.

A batch write whose driver died has no token, and often no store. Its id says into which table it went and
when it began (`batch_writes`), and every driver refuses to commit one that began long ago. So its id alone
shows that its files are ours and settled. The files must be older than that, too.

The order of looking follows from that: first the tokens, then the files, then who names them. Whatever is
committed after the first look is of batches that were not settled. All but the age is looked at again right
before each deletion.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Protocol, TypeVar

from .batch_writes import GIVEN_UP_AFTER, BatchWrite, batch_write_of
from .contract import Manifest, ManifestRecord, ManifestState, StreamKey, Token

_T = TypeVar("_T")

FILES_PER_CHECK = 1000
"""How many files are deleted between two looks at who names them."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as the storage lists it. `path` is relative to the table's location, unencoded."""

    path: str
    size_bytes: int
    modified_at: datetime


class ParsedName(Protocol):
    """What the name of a data file says."""

    @property
    def query_id(self) -> str: ...

    @property
    def batch_id(self) -> int: ...


NameParser = Callable[[str], "ParsedName | None"]
"""What the name of a data file of ours says; None for everybody else's files."""


class CleanableTable(Protocol):
    """A table as clean-up looks at it. Every call looks anew."""

    def id_and_tokens(self, query_ids: Iterable[str]) -> tuple[str | None, Mapping[str, Token]]:
        """The table's own id, and the last batch of each of the queries that it holds, from one load.

        None and no tokens if there is no table; queries without a token are left out.
        """
        ...

    def files(self) -> Iterator[ListedFile]:
        """Every file below the location, but for those of other tables inside it."""
        ...

    def names(self) -> Iterator[set[str]]:
        """Base names of all files that some version of the table that can be read may need.

        An instance yields the names of one version at most once: the next call brings what is new.
        """
        ...

    def delete_files(self, paths: Iterable[str]) -> int:
        """Delete files; the number deleted. Files already gone are no error."""
        ...


class CleanableStore(Protocol):
    """What clean-up asks the manifest store for."""

    def history(self, stream: StreamKey, limit: int) -> Sequence[ManifestRecord]: ...

    def record(self, stream: StreamKey, batch_id: int) -> ManifestRecord | None: ...

    def manifest(self, stream: StreamKey, batch_id: int) -> Manifest | None: ...

    def manifests(self, stream: StreamKey, state: ManifestState) -> Iterator[Manifest]: ...


class FileStatus(Enum):
    """What becomes of a file that no version of the table names."""

    NOT_OURS = "not written by a query that the store knows for this table"
    UNSETTLED = "its batch may still be committed"
    YOUNG = "younger than the grace period"
    UNNEEDED = "can be deleted"


def classify(
    file: ListedFile, name: ParsedName | None, settled: Mapping[str, int], written_before: datetime
) -> FileStatus:
    """The verdict on one file, as long as nothing names it.

    Args:
        name: what the file's name says
        settled: for each query of the table, the last batch that no commit adds files of any more
        written_before: the end of the grace period
    """
    if name is None or name.query_id not in settled:
        return FileStatus.NOT_OURS
    if name.batch_id > settled[name.query_id]:
        return FileStatus.UNSETTLED
    return FileStatus.UNNEEDED if file.modified_at < written_before else FileStatus.YOUNG


def settled_batches(tokens: Mapping[str, Token], newest: Mapping[str, int]) -> dict[str, int]:
    """For each query that the store knows, the last batch that no commit adds files of any more; -1 is none.

    Args:
        tokens: as the table has them
        newest: for each query, the newest batch that the store knows; -1 if there is none
    """
    return {
        query_id: min(tokens[query_id].batch_id, batch_id) if query_id in tokens else -1
        for query_id, batch_id in newest.items()
    }


@dataclass(slots=True)
class ClassifiedFiles:
    """What clean-up found in one table. The lists hold only files that nothing names."""

    unneeded: list[ListedFile] = field(default_factory=list)
    young: list[ListedFile] = field(default_factory=list)
    unsettled: list[ListedFile] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Of the files that can be deleted."""
        return sum(file.size_bytes for file in self.unneeded)


class Cleanup:
    """Finds and deletes the unneeded files of one table.

    Args:
        store: the manifest store
        table: the table
        cleaned: the streams whose files may be deleted, all of them writing this table
        known: all streams of the store; whose manifests may name a file of the cleaned ones
        parse: what the name of a data file says
        paths_of: the files that a manifest names
    """

    def __init__(
        self,
        store: CleanableStore,
        table: CleanableTable,
        cleaned: Sequence[StreamKey],
        known: Sequence[StreamKey],
        parse: NameParser,
        paths_of: Callable[[Manifest], Iterable[str]],
    ) -> None:
        self._store = store
        self._table = table
        self._cleaned = cleaned
        self._known = known
        self._parse = parse
        self._paths_of = paths_of

    def find(self, now: datetime, grace: timedelta) -> ClassifiedFiles:
        """Look, and touch nothing.

        Args:
            grace: younger files stay; files of batch writes stay for `GIVEN_UP_AFTER` at least

        Raises:
            ManifestCorruptError: nobody can tell which files a manifest names.
            RetryableError: the table or the store cannot be read.
        """
        table_id, settled = self._id_and_settled()
        files: dict[str, tuple[ListedFile, FileStatus]] = {}
        for file in self._table.files():
            name, written_before = self._parse(file.path), now - grace
            if name is not None and (write := _batch_write(name, table_id)) is not None:
                written_before = now - max(grace, GIVEN_UP_AFTER)
                settled[name.query_id] = 0 if write.began_at < written_before else -1
            verdict = classify(file, name, settled, written_before)
            if verdict is not FileStatus.NOT_OURS:
                files[posixpath.basename(file.path)] = (file, verdict)
        for names in self._table.names():
            _drop(files, names)
        for names in self._names_in_manifests(files):
            _drop(files, names)
        return _found(files.values())

    def delete(self, found: ClassifiedFiles) -> Iterator[int]:
        """Delete what was found and is still unneeded; yields the number of files after each chunk."""
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
        for manifest in self._manifests_of(sorted(batches)):
            _drop(left, self._names(manifest))
        return list(left.values())

    def _id_and_settled(self) -> tuple[str | None, dict[str, int]]:
        table_id, tokens = self._table.id_and_tokens([stream.query_id for stream in self._cleaned])
        newest = {}
        for stream in self._cleaned:
            records = self._store.history(stream, 1)
            newest[stream.query_id] = records[0].batch.batch_id if records else -1
        return table_id, settled_batches(tokens, newest)

    def _names_in_manifests(self, files: Mapping[str, tuple[ListedFile, FileStatus]]) -> Iterator[set[str]]:
        """What the manifests name, PREPARED before COMMITTED, so that none slips through between."""
        parsed = map(self._parse, files)
        naming = self._naming({name.query_id for name in parsed if name is not None})
        for stream in naming:
            yield from map(self._names, self._store.manifests(stream, ManifestState.PREPARED))
        for stream in naming:
            # The whole history, which takes a while: only as long as there is something to delete.
            if any(verdict is FileStatus.UNNEEDED for _, verdict in files.values()):
                yield from map(self._names, self._store.manifests(stream, ManifestState.COMMITTED))

    def _manifests_of(self, batches: Collection[tuple[str, int]]) -> Iterator[Manifest]:
        """The manifests that these batches have now, and all that are PREPARED now."""
        for stream in self._naming({query_id for query_id, _ in batches}):
            yield from self._store.manifests(stream, ManifestState.PREPARED)
            for query_id, batch_id in batches:
                if query_id == stream.query_id and self._holds(stream, batch_id):
                    manifest = self._store.manifest(stream, batch_id)
                    yield from () if manifest is None else (manifest,)

    def _naming(self, query_ids: set[str]) -> list[StreamKey]:
        """The streams whose manifests may name files of the cleaned streams, or of these queries."""
        queries = query_ids.union(stream.query_id for stream in self._cleaned)
        return [stream for stream in self._known if stream.query_id in queries]

    def _holds(self, stream: StreamKey, batch_id: int) -> bool:
        record = self._store.record(stream, batch_id)
        return record is not None and record.state is not ManifestState.ABORTED

    def _names(self, manifest: Manifest) -> set[str]:
        return {posixpath.basename(path) for path in self._paths_of(manifest)}


def _batch_write(name: ParsedName, table_id: str | None) -> BatchWrite | None:
    """The batch write that wrote the file, if it went into this very table and its id says when it began."""
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
