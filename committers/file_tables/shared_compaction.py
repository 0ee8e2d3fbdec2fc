"""Compaction of two tables that share their files: both get the same new files.

    list      list the small files that both tables have
    rewrite   write their rows to new files, once
    prepare   store the old and the new files: one record for both tables
    replace   replace the files in the first table, then in the second one
    forget    delete the record

The tables agree on the rows at all times, because the old and the new files have the same ones. A process
that dies between two steps leaves the record, and the next run continues: a table that has the old files gets
the new ones, and a table that has the new files is done. So no token is needed.

Clean-up deletes no new file that a table may get. Before the first commit, the id of a future batch protects
the files, as in `compaction`. After that, the first table lists them.

If a table no longer has the old files of a group, because others have changed it, the group is left out. If
that is the second table, the first one keeps the new files, and the tables no longer share these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from ..contract import Conflict, DataFile, DataFiles, ManifestRecord, StreamKey
from ..crash_points import reach
from ..errors import CommitStateUnknownError, PenstockError, RetryableError
from .compaction import (
    Attempts,
    CompactableTable,
    Compacted,
    CompactionPolicy,
    Outdated,
    Replaced,
    Replacement,
    Rewritten,
    VisibleFiles,
    batch_ahead,
    choose_groups,
    summary,
)
from .manifest import LakeManifest
from .prepared_compaction import PreparedCompaction, decode_compaction, encode_compaction

_ANY_BATCH = 2**62


@dataclass(frozen=True, slots=True)
class TableOfPair:
    """One of the two tables."""

    name: str
    """For display."""
    table: CompactableTable
    files_of: Callable[[DataFiles], DataFiles]
    """Returns what this table commits of files that have the partition values of both tables."""


class PairRewriter(Protocol):
    """As `FileRewriter`, for files that both tables can commit."""

    def __call__(
        self,
        first: LakeManifest,
        second: LakeManifest,
        groups: Sequence[tuple[DataFile, ...]],
        batch_id: int,
    ) -> Sequence[Rewritten]: ...


class PreparedCompactions(Protocol):
    """The store of prepared compactions."""

    def put(self, stream: StreamKey, content: bytes) -> None: ...

    def of_stream(self, stream: StreamKey) -> bytes | None: ...

    def remove(self, stream: StreamKey) -> None: ...


class SharedCompaction:
    """Compacts two tables. Runs in the delivery process, for the stream into the first one.

    Args:
        first: the table in whose location the files are
        recent: returns the stream's last batches in the store, newest first
    """

    def __init__(
        self,
        stream: StreamKey,
        first: TableOfPair,
        second: TableOfPair,
        rewrite: PairRewriter,
        policy: CompactionPolicy,
        store: PreparedCompactions,
        *,
        recent: Callable[[], Sequence[ManifestRecord]] = tuple,
    ) -> None:
        self._stream = stream
        self._first = first
        self._second = second
        self._rewrite = rewrite
        self._policy = policy
        self._store = store
        self._recent = recent
        self._attempts = Attempts(policy)

    def run(self) -> Compacted:
        """Finish the compaction that an earlier run has prepared; or compact up to the policy's limits.

        Raises:
            CommitStateUnknownError: a table may have the new files. The next run goes on.
            PenstockError: a table or the storage cannot be reached, or denies access. No row is affected.
        """
        content = self._store.of_stream(self._stream)
        if content is not None:
            compacted, _ = self._finish(decode_compaction(self._stream, content))
            return compacted
        prepared = self._prepare()
        if prepared is None:
            return Compacted()
        compacted, unused = self._finish(prepared)
        paths = [file.path for group in unused for file in group.files]
        if paths:
            with suppress(PenstockError):  # clean-up finds them
                self._first.table.delete_files(paths)
        return compacted

    def _prepare(self) -> PreparedCompaction | None:
        first, second = self._first.table.visible_files(), self._second.table.visible_files()
        if first is None or second is None:
            return None
        groups = choose_groups(_in_both(first, second), self._policy)
        if not groups:
            return None
        batch_id = batch_ahead(max(first.token_batch, second.token_batch), self._recent())
        rewritten = tuple(self._rewrite(first.content, second.content, groups, batch_id))
        if not rewritten:
            return None
        reach("pair.rewritten", batch_id)
        prepared = PreparedCompaction(
            batch_id,
            (first.content, second.content),
            tuple([_of(self._first, group) for group in rewritten]),
            tuple([_of(self._second, group) for group in rewritten]),
        )
        self._store.put(self._stream, encode_compaction(prepared))
        reach("pair.prepared", batch_id)
        return prepared

    def _finish(self, prepared: PreparedCompaction) -> tuple[Compacted, list[Rewritten]]:
        """(what was done, groups that the first table has certainly not got in this call)"""
        content, _ = prepared.contents
        first = self._replace(self._first, content, prepared.of_first, prepared.batch_id)
        if isinstance(first.outcome, Conflict):
            return Compacted(conflicts=first.conflicts, given_up=first.why(self._first)), []
        reach("pair.first", prepared.batch_id)
        there = [group for group in prepared.of_first if group in first.groups]
        of_second = tuple(
            [two for one, two in zip(prepared.of_first, prepared.of_second, strict=True) if one in there]
        )
        second = _Result(Outdated(""), (), 0)
        if of_second:
            # The first table names the new files, so that clean-up keeps them, whichever batch is committed.
            second = self._replace(self._second, prepared.contents[1], of_second, _ANY_BATCH)
        if isinstance(second.outcome, Conflict):
            conflicts = first.conflicts + second.conflicts
            return Compacted(conflicts=conflicts, given_up=second.why(self._second)), []
        reach("pair.second", prepared.batch_id)
        self._store.remove(self._stream)
        given_up = first.why(self._first) if not there else ""
        if len(second.groups) < len(of_second):
            given_up = second.why(self._second)
        compacted = summary(there, first.conflicts + second.conflicts, given_up)
        return compacted, [group for group in prepared.of_first if group not in there]

    def _replace(
        self, one: TableOfPair, content: LakeManifest, groups: tuple[Rewritten, ...], batch_id: int
    ) -> _Result:
        try:
            outcome, conflicts = self._attempts.replace(one.table, content, groups, batch_id)
            replaced = outcome.groups if isinstance(outcome, Replaced) else ()
            rest = [group for group in groups if group not in replaced]
            visible = one.table.visible_files() if rest else None
        except (RetryableError, CommitStateUnknownError):
            raise
        except PenstockError:  # it was dropped, or has a feature that does not allow this
            self._store.remove(self._stream)
            raise
        paths = set() if visible is None else {file.path for file in visible.content.files}
        earlier = [group for group in rest if paths.issuperset(file.path for file in group.files)]
        return _Result(outcome, (*replaced, *(earlier if visible is not None else ())), conflicts)


@dataclass(frozen=True, slots=True)
class _Result:
    """What became of the groups in one table."""

    outcome: Replacement
    groups: tuple[Rewritten, ...]
    """Those whose new files the table has."""
    conflicts: int

    def why(self, one: TableOfPair) -> str:
        """Why the table does not have all new files."""
        reason = "some old files were removed or changed by others"
        return f"{one.name}: {reason if isinstance(self.outcome, Replaced) else self.outcome.reason}"


def _in_both(first: VisibleFiles, second: VisibleFiles) -> list[DataFile]:
    """The files that both tables have, with the partition values of both, without those with deleted rows."""
    others = {file.path: file for file in second.content.files}
    return [
        replace(file, partition_values=(*file.partition_values, *other.partition_values))
        for file in first.content.files
        if (other := others.get(file.path)) is not None
        and (other.size_bytes, other.rows) == (file.size_bytes, file.rows)
        and file.path not in first.deleted
        and file.path not in second.deleted
    ]


def _of(one: TableOfPair, group: Rewritten) -> Rewritten:
    return Rewritten(one.files_of(group.sources), one.files_of(group.files))
