"""Compaction of files that a table has already: many small ones of a partition become a few large ones.

Runs in the delivery process, beside the stream, and gives way to it: a commit of another writer makes an
attempt fail, and after some attempts the work is left to the next time.

    look      the small files of the table as it is now
    rewrite   their rows into new files, which no table version names; this takes a while
    replace   one table commit that removes the old files and adds the new ones, on a version in which the
              old ones are all still there, as they were; what others have changed meanwhile is left out

The stream's token is not touched. The new files carry the id of a batch that the stream has yet to reach,
about an hour ahead at its pace: clean-up deletes none of them before the token gets there, and nothing is
committed on a version where it has. So a process that sleeps between writing and committing, for however
long, commits no file that is gone; and files of one that dies are found by clean-up.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ..contract import Conflict, DataFile, ManifestRecord
from ..errors import CommitStateUnknownError, PenstockError
from .manifest import LakeManifest

AHEAD_S = 3600.0
"""How long a run may take, counted in batches of the stream. What a crash leaves stays for as many."""
BATCHES_AHEAD_MIN, BATCHES_AHEAD_MAX = 10, 10_000
RECENT_BATCHES = 1000
"""Batches by which the stream's pace is measured."""


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """What is worth rewriting, and how much at a time."""

    target_file_bytes: int
    small_file_bytes: int
    """Files of at least this size stay as they are."""
    files_min: int = 4
    """A partition with fewer small files than this is left alone."""
    run_bytes_max: int = 512 * 1024**2
    """Bytes that one run reads at most, about; the rest is for the next one."""
    attempts_max: int = 5
    """To commit, against other writers."""
    wait_s: float = 0.05
    """Between two attempts, about; doubles with each."""


@dataclass(frozen=True, slots=True)
class VisibleFiles:
    """The files of one table version that can be rewritten: plain ones, none of whose rows are deleted."""

    content: LakeManifest
    """The table as it is, and these files."""
    token_batch: int
    """The stream's last batch in this version."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Files of one partition, and the new ones with the very same rows."""

    sources: tuple[DataFile, ...]
    files: tuple[DataFile, ...]


class FileRewriter(Protocol):
    """Writes new files from old ones, with the product's own writer."""

    def __call__(
        self, content: LakeManifest, groups: Sequence[tuple[DataFile, ...]], batch_id: int
    ) -> Sequence[Rewritten]:
        """Rewrite each group, whose files are of one partition; what it cannot rewrite it leaves out.

        Args:
            content: the table as it was looked at
            batch_id: for the names of the new files

        Raises:
            PenstockError: no new file is left.
        """
        ...


@dataclass(frozen=True, slots=True)
class Replaced:
    """The table has these new files, and their sources no longer, since this attempt."""

    table_version: int
    groups: tuple[Rewritten, ...]


@dataclass(frozen=True, slots=True)
class Outdated:
    """The table is no longer one in which these files can be replaced; nothing was committed."""

    reason: str


Replacement: TypeAlias = Replaced | Conflict | Outdated


class CompactableTable(Protocol):
    """A table as compaction sees it. Every call looks anew."""

    def visible_files(self) -> VisibleFiles | None:
        """What there is to rewrite; None while the stream has delivered nothing, or if others do it."""
        ...

    def replace(self, content: LakeManifest, rewritten: Sequence[Rewritten], batch_id: int) -> Replacement:
        """One attempt to commit. Groups of which a source is gone or has changed are left out.

        Args:
            content: from `visible_files`
            batch_id: in the names of the new files

        Raises:
            CommitStateUnknownError: it may have landed. Delete nothing.
            PenstockError: nothing landed.
        """
        ...

    def delete_files(self, paths: Iterable[str]) -> int: ...


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one run has done."""

    sources: int = 0
    files: int = 0
    size_bytes: int = 0
    """Of the new files."""
    conflicts: int = 0
    """Attempts that another writer was faster than."""
    given_up: str = ""
    """Why nothing was replaced although there was something to do; empty otherwise."""


def choose_groups(files: Iterable[DataFile], policy: CompactionPolicy) -> list[tuple[DataFile, ...]]:
    """Small files of one partition each, the partitions with the most of them first.

    A file larger than all smaller ones of its partition together stays as it is: rewriting it again and again
    for the sake of a few new rows would cost more than it brings.
    """
    partitions: dict[object, list[DataFile]] = {}
    for file in files:
        if file.size_bytes < policy.small_file_bytes:
            partitions.setdefault(file.partition_values, []).append(file)
    groups: list[tuple[DataFile, ...]] = []
    left = policy.run_bytes_max
    for small in sorted(partitions.values(), key=len, reverse=True):
        group = _worthwhile(small, left, policy)
        if group:
            groups.append(group)
            left -= sum(file.size_bytes for file in group)
    return groups


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
    """The id of a batch that the stream delivers in about an hour, or later.

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


class Compaction:
    """Compacts one table. Runs in the delivery process.

    Args:
        recent: the stream's last batches in the store, newest first
        sleep, rng: injected, so that tests run without waiting
    """

    def __init__(
        self,
        table: CompactableTable,
        rewrite: FileRewriter,
        policy: CompactionPolicy,
        *,
        recent: Callable[[], Sequence[ManifestRecord]] = tuple,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._table = table
        self._rewrite = rewrite
        self._policy = policy
        self._recent = recent
        self._sleep = sleep
        self._rng = rng or random.Random()

    def run(self) -> Compacted:
        """Compact what is worth it, up to the policy's bounds.

        Raises:
            PenstockError: table or storage cannot be reached, or do not allow it. No row is affected.
        """
        visible = self._table.visible_files()
        groups = [] if visible is None else choose_groups(visible.content.files, self._policy)
        if visible is None or not groups:
            return Compacted()
        batch_id = batch_ahead(visible.token_batch, self._recent())
        rewritten = self._rewrite(visible.content, groups, batch_id)
        if not rewritten:
            return Compacted()
        try:
            outcome, conflicts = self._replace(visible.content, rewritten, batch_id)
        except CommitStateUnknownError:
            raise
        except PenstockError:
            self._delete(rewritten)
            raise
        replaced = outcome.groups if isinstance(outcome, Replaced) else ()
        self._delete([group for group in rewritten if group not in replaced])
        return _summary(replaced, conflicts, "" if isinstance(outcome, Replaced) else outcome.reason)

    def _replace(
        self, content: LakeManifest, rewritten: Sequence[Rewritten], batch_id: int
    ) -> tuple[Replacement, int]:
        """(how the last attempt ended, conflicts)"""
        outcome: Replacement = Conflict("nothing was tried")
        for attempt in range(self._policy.attempts_max):
            if attempt:
                self._sleep(self._policy.wait_s * 2 ** (attempt - 1) * self._rng.uniform(0.5, 1.5))
            outcome = self._table.replace(content, rewritten, batch_id)
            if not isinstance(outcome, Conflict):
                return outcome, attempt
        return outcome, self._policy.attempts_max

    def _delete(self, groups: Iterable[Rewritten]) -> None:
        """What stays is an orphan, which clean-up finds."""
        paths = [file.path for group in groups for file in group.files]
        if paths:
            with suppress(PenstockError):
                self._table.delete_files(paths)


def _summary(replaced: Sequence[Rewritten], conflicts: int, given_up: str) -> Compacted:
    files = [file for group in replaced for file in group.files]
    return Compacted(
        sources=sum(len(group.sources) for group in replaced),
        files=len(files),
        size_bytes=sum(file.size_bytes for file in files),
        conflicts=conflicts,
        given_up=given_up,
    )
