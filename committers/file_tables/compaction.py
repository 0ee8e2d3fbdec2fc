"""Compaction of committed files: rewrites many small files of a partition into a few large ones, and files
with many deleted rows without these.

Runs in the delivery process, at the same time as the stream, and gives way to it: if another writer commits
first, the attempt fails. After a few attempts the work is left to the next run.

    list      list the files of the current table, and which of their rows are deleted
    rewrite   write their rows to new files, which are not committed; this takes a while
    replace   remove the old files and add the new ones in one table commit, on a version in which the
              old ones are still there and unchanged; groups that others have changed are left out, also
              those of which more rows are deleted now: they would come back

The stream's token is not changed. The new files carry the id of a future batch, about an hour ahead at the
stream's pace. Clean-up does not delete them before the token reaches that batch, and the compaction is not
committed after that. So a process that was suspended between writing and committing never commits missing
files, and the files of a crashed process are found by clean-up.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import MappingProxyType
from typing import Protocol, TypeAlias

import pyarrow as pa

from ..contract import Conflict, DataFile, ManifestRecord
from ..errors import CommitStateUnknownError, PenstockError
from .manifest import LakeManifest

AHEAD_S = 3600.0
"""How long a run may take, converted to batches of the stream. Files left by a crash stay for as long."""
BATCHES_AHEAD_MIN, BATCHES_AHEAD_MAX = 10, 10_000
RECENT_BATCHES = 1000
"""Number of batches used to measure the stream's pace."""


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """Which files are worth rewriting, and how many at a time."""

    target_file_bytes: int
    small_file_bytes: int
    """Files of at least this size are not rewritten."""
    files_min: int = 4
    """A partition with fewer small files than this is skipped."""
    run_bytes_max: int = 512 * 1024**2
    """Approximate limit of bytes read in one run; the rest is left to the next run."""
    attempts_max: int = 5
    """Commit attempts if other writers commit first."""
    wait_s: float = 0.05
    """Approximate wait between two attempts; doubles each time."""
    deleted_max: float = 0.2
    """Files of which a larger share of the rows is deleted are rewritten in any case."""


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """The deleted rows of a data file."""

    count: int
    origin: str
    """Where they are recorded. It changes with each further deletion."""


ReadDeleted: TypeAlias = Callable[[Collection[str]], Mapping[str, "pa.Array"]]
"""Returns the numbers of the deleted rows (int64) of files, by path."""


@dataclass(frozen=True, slots=True)
class VisibleFiles:
    """The files of one table version that can be rewritten."""

    content: LakeManifest
    """The current table, and these files."""
    token_batch: int
    """The stream's last batch in this version."""
    deleted: Mapping[str, DeletedRows] = field(default_factory=dict)
    """By path, for files that may have deleted rows."""
    read_deleted: ReadDeleted = lambda _: {}
    """For files in `deleted`."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Files of one partition, and the new files with the same rows, except those that are deleted."""

    sources: tuple[DataFile, ...]
    files: tuple[DataFile, ...]
    deleted: tuple[tuple[str, str], ...] = ()
    """Origins of the deleted rows that were left out, by path of the source."""


class FileRewriter(Protocol):
    """Rewrites files with Penstock's own writer."""

    def __call__(
        self,
        content: LakeManifest,
        groups: Sequence[tuple[DataFile, ...]],
        batch_id: int,
        deleted: Mapping[str, pa.Array] = MappingProxyType({}),
    ) -> Sequence[Rewritten]:
        """Rewrite each group; the files of a group are in one partition. Groups that cannot be rewritten are
        left out.

        Args:
            content: the table when its files were listed
            batch_id: used in the names of the new files
            deleted: numbers of rows (int64) that are left out, by path

        Raises:
            PenstockError: the new files were deleted.
        """
        ...


@dataclass(frozen=True, slots=True)
class Replaced:
    """This attempt has replaced the source files by the new ones."""

    table_version: int
    groups: tuple[Rewritten, ...]


@dataclass(frozen=True, slots=True)
class Outdated:
    """These files can no longer be replaced in this table; nothing was committed."""

    reason: str


Replacement: TypeAlias = Replaced | Conflict | Outdated


class CompactableTable(Protocol):
    """A table that can be compacted. Each call reads the current state."""

    def visible_files(self) -> VisibleFiles | None:
        """The files that can be rewritten; None if the stream has committed nothing yet, or if others compact
        the table.
        """
        ...

    def replace(self, content: LakeManifest, rewritten: Sequence[Rewritten], batch_id: int) -> Replacement:
        """Make one commit attempt. Groups with a missing or changed source file are left out, and those of
        which other rows are deleted now.

        Args:
            content: from `visible_files`
            batch_id: used in the names of the new files

        Raises:
            CommitStateUnknownError: the commit may have succeeded. Do not delete anything.
            PenstockError: nothing was committed.
        """
        ...

    def delete_files(self, paths: Iterable[str]) -> int: ...


@dataclass(frozen=True, slots=True)
class Compacted:
    """Result of one run."""

    sources: int = 0
    files: int = 0
    size_bytes: int = 0
    """Total size of the new files."""
    conflicts: int = 0
    """Number of attempts that failed because another writer committed first."""
    given_up: str = ""
    """Why files were not replaced; empty otherwise."""

    def summary(self) -> str:
        """For display; empty if there was nothing to do."""
        if self.sources:
            more = f", except {self.given_up}" if self.given_up else ""
            return f"compacted {self.sources:,} files into {self.files:,}{more}"
        return f"compacted nothing: {self.given_up}" if self.given_up else ""


def choose_groups(
    files: Iterable[DataFile],
    policy: CompactionPolicy,
    deleted: Mapping[str, DeletedRows] = MappingProxyType({}),
) -> list[tuple[DataFile, ...]]:
    """Choose groups of files, one partition each: first those with many deleted rows, then small ones,
    starting with the partitions with the most of them.

    A small file that is larger than all smaller files of its partition together is not rewritten: rewriting
    it again for a few new rows would cost more than it saves.

    Args:
        deleted: see `VisibleFiles`
    """
    sparse: dict[object, list[DataFile]] = {}
    partitions: dict[object, list[DataFile]] = {}
    for file in files:
        if file.path in deleted and deleted[file.path].count > policy.deleted_max * file.rows:
            sparse.setdefault(file.partition_values, []).append(file)
        elif file.size_bytes < policy.small_file_bytes:
            partitions.setdefault(file.partition_values, []).append(file)
    groups: list[tuple[DataFile, ...]] = []
    left = policy.run_bytes_max
    for many in sorted(sparse.values(), key=len, reverse=True):
        if group := _up_to(left, many, at_least=0 if groups else 1):
            groups.append(group)
            left -= sum(file.size_bytes for file in group)
    for small in sorted(partitions.values(), key=len, reverse=True):
        group = _worthwhile(small, left, policy)
        if group:
            groups.append(group)
            left -= sum(file.size_bytes for file in group)
    return groups


def _up_to(bytes_max: int, files: Sequence[DataFile], at_least: int) -> tuple[DataFile, ...]:
    """The first files that are not larger together."""
    totals = accumulate(file.size_bytes for file in files)
    return tuple(
        [
            file
            for number, (file, total) in enumerate(zip(files, totals, strict=True))
            if number < at_least or total <= bytes_max
        ]
    )


def _worthwhile(files: list[DataFile], bytes_max: int, policy: CompactionPolicy) -> tuple[DataFile, ...]:
    chosen: list[DataFile] = []
    total = 0
    for file in sorted(files, key=lambda file: (file.size_bytes, file.path)):
        if total + file.size_bytes > bytes_max:
            break
        chosen.append(file)
        total += file.size_bytes
    while len(chosen) > 1 and chosen[-1].size_bytes > total - chosen[-1].size_bytes:
        total -= chosen.pop().size_bytes
    becomes = math.ceil(total / policy.target_file_bytes)
    return tuple(chosen) if len(chosen) >= policy.files_min and becomes < len(chosen) else ()


def batch_ahead(token_batch: int, recent: Sequence[ManifestRecord]) -> int:
    """The id of a batch that the stream reaches in about an hour or later.

    Args:
        token_batch: the last batch in the table
        recent: the stream's last batches, newest first
    """
    if len(recent) < 2:
        return token_batch + BATCHES_AHEAD_MAX
    newest, oldest = recent[0], recent[-1]
    seconds = max((newest.prepared_at - oldest.prepared_at).total_seconds(), 0.001)
    batches = math.ceil((newest.batch.batch_id - oldest.batch.batch_id) / seconds * AHEAD_S)
    ahead = min(max(batches, BATCHES_AHEAD_MIN), BATCHES_AHEAD_MAX)
    return max(token_batch, newest.batch.batch_id) + ahead


@dataclass(frozen=True, slots=True)
class Attempts:
    """Attempts to replace files, with growing pauses, until no other writer commits at the same time."""

    policy: CompactionPolicy
    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=random.Random)

    def replace(
        self, table: CompactableTable, content: LakeManifest, groups: Sequence[Rewritten], batch_id: int
    ) -> tuple[Replacement, int]:
        """(outcome of the last attempt, number of conflicts)"""
        outcome: Replacement = Conflict("no attempt was made")
        for attempt in range(self.policy.attempts_max):
            if attempt:
                self.sleep(self.policy.wait_s * 2 ** (attempt - 1) * self.rng.uniform(0.5, 1.5))
            outcome = table.replace(content, groups, batch_id)
            if not isinstance(outcome, Conflict):
                return outcome, attempt
        return outcome, self.policy.attempts_max


class Compaction:
    """Compacts one table. Runs in the delivery process.

    Args:
        recent: returns the stream's last batches in the store, newest first
        sleep: injected for tests
    """

    def __init__(
        self,
        table: CompactableTable,
        rewrite: FileRewriter,
        policy: CompactionPolicy,
        *,
        recent: Callable[[], Sequence[ManifestRecord]] = tuple,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._table = table
        self._rewrite = rewrite
        self._policy = policy
        self._recent = recent
        self._attempts = Attempts(policy, sleep)

    def run(self) -> Compacted:
        """Compact files up to the policy's limits.

        Raises:
            PenstockError: table or storage cannot be reached, or deny access. No row is affected.
        """
        visible = self._table.visible_files()
        groups = []
        if visible is not None:
            groups = choose_groups(visible.content.files, self._policy, visible.deleted)
        if visible is None or not groups:
            return Compacted()
        batch_id = batch_ahead(visible.token_batch, self._recent())
        origins = {file.path: visible.deleted.get(file.path) for group in groups for file in group}
        deleted = visible.read_deleted([path for path, origin in origins.items() if origin is not None])
        rewritten = [
            _with_origins(group, visible.deleted)
            for group in self._rewrite(visible.content, groups, batch_id, deleted)
        ]
        if not rewritten:
            return Compacted()
        try:
            outcome, conflicts = self._attempts.replace(self._table, visible.content, rewritten, batch_id)
        except CommitStateUnknownError:
            raise
        except PenstockError:
            self._delete(rewritten)
            raise
        replaced = outcome.groups if isinstance(outcome, Replaced) else ()
        self._delete([group for group in rewritten if group not in replaced])
        return summary(replaced, conflicts, "" if isinstance(outcome, Replaced) else outcome.reason)

    def _delete(self, groups: Iterable[Rewritten]) -> None:
        """Delete the new files of these groups. Files that cannot be deleted are found by clean-up later."""
        paths = [file.path for group in groups for file in group.files]
        if paths:
            with suppress(PenstockError):
                self._table.delete_files(paths)


def _with_origins(group: Rewritten, deleted: Mapping[str, DeletedRows]) -> Rewritten:
    paths = [file.path for file in group.sources if file.path in deleted]
    return replace(group, deleted=tuple([(path, deleted[path].origin) for path in paths]))


def summary(replaced: Sequence[Rewritten], conflicts: int, given_up: str) -> Compacted:
    files = [file for group in replaced for file in group.files]
    return Compacted(
        sources=sum(len(group.sources) for group in replaced),
        files=len(files),
        size_bytes=sum(file.size_bytes for file in files),
        conflicts=conflicts,
        given_up=given_up,
    )
