"""The timeline of a Hudi table: one to three files for each instant.

An instant is a time in milliseconds, `20261125160359123`. It is *requested*, *inflight* and then *completed*;
readers see completed ones. Hudi's own writers move old instants into an archive, and take all data files
older than the rest as completed. See `layout` for the names of the files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from .layout import LAYOUT_1, Layout

_INSTANT_DIGITS = range(14, 18)
COMPLETED = ("commit", "deltacommit", "replacecommit")
"""Actions that change rows, as their completed instants are named."""
_CHANGES = (*COMPLETED, "clustering", "compaction", "logcompaction")
_FORMAT = "%Y%m%d%H%M%S"
FIRST_INSTANT = "0"


@dataclass(frozen=True, slots=True)
class Timeline:
    """The active instants, without the archive."""

    commits: tuple[tuple[str, str], ...]
    """(instant, name of the file) of completed changes of the rows, oldest first."""
    pending: frozenset[str]
    """Instants of any action that are not completed."""
    pending_changes: frozenset[str]
    """Those of actions that may rewrite data files."""
    latest: str
    """The latest instant of any action; in layout 2, the latest time of a completion if that is later."""
    first: str = field(default=FIRST_INSTANT)
    """The first completed instant of a commit, without those that a savepoint keeps from the archive: files
    of earlier ones count as committed.
    """
    last_completion: str = FIRST_INSTANT
    """In layout 2, the latest time at which one of the commits was completed."""
    layout: Layout = LAYOUT_1

    @classmethod
    def of(cls, names: Iterable[str], layout: Layout = LAYOUT_1) -> Timeline:
        """Read the names of the files of a timeline, which may be thousands."""
        every, done, saved, commits, times = set(), set(), set(), [], set()
        changes = set()
        last_completion = FIRST_INSTANT
        for name in names:
            times_of, _, rest = name.partition(".")
            instant, _, completion = times_of.partition("_")
            if not rest or not instant.isdigit() or len(instant) not in _INSTANT_DIGITS:
                continue
            every.add(instant)
            times.add(completion)
            if rest in COMPLETED:
                commits.append((instant, name))
                last_completion = max(last_completion, completion)
            elif rest == "savepoint":
                saved.add(instant)
            if "." not in rest and rest != "inflight":
                done.add(instant)
            elif rest == "inflight" or rest.partition(".")[0] in _CHANGES:
                changes.add(instant)
        commits.sort()
        first = next((instant for instant, _ in commits if instant not in saved), None)
        return cls(
            commits=tuple(commits),
            pending=frozenset(every - done),
            pending_changes=frozenset(changes - done),
            latest=max(every | times, default=FIRST_INSTANT),
            first=first or (commits[0][0] if commits else FIRST_INSTANT),
            last_completion=last_completion,
            layout=layout,
        )

    def has(self, instant: str) -> bool:
        """Return True if the instant is a completed commit in the timeline."""
        return self.path_of(instant) is not None

    def path_of(self, instant: str) -> str | None:
        """Return the path of a completed commit in the timeline."""
        position = bisect_left(self.commits, (instant, ""))
        if position == len(self.commits) or self.commits[position][0] != instant:
            return None
        return f"{self.layout.folder}/{self.commits[position][1]}"

    def order_of(self, instant: str) -> tuple[str, str]:
        """Return what orders completed commits: the time of the completion, or the instant in layout 1.

        Args:
            instant: of a completed commit
        """
        path = self.path_of(instant)
        assert path is not None
        completion = path.rpartition("/")[2].partition(".")[0].partition("_")[2]
        return completion or instant, instant

    def is_after_commits(self, instant: str) -> bool:
        """Return True if the instant is later than all completed commits."""
        return not self.commits or self.commits[-1][0] < instant

    def may_lack_files_of(self, instant: str) -> bool:
        """Return True if a file of this commit that is not in its place is missing: no later commit in the
        timeline or the archive can have replaced it.
        """
        return self.has(instant) and not any(
            name.endswith(".replacecommit") for one, name in self.commits if one > instant
        )

    def is_archived(self, instant: str) -> bool:
        """Return True if the instant would be in the archive, if it was completed."""
        is_before = bool(self.commits) and instant < self.first
        return is_before and instant not in self.pending and not self.has(instant)


def next_instant(latest: str, now: datetime) -> str:
    """Return the instant of now, or the one after the latest if that is later.

    Args:
        now: in the time zone of the table
    """
    wanted = instant_at(now)
    if wanted > latest.ljust(17, "0"):
        return wanted
    return instant_at(time_of(latest) + timedelta(milliseconds=1))


def instant_at(time: datetime) -> str:
    return f"{time.strftime(_FORMAT)}{time.microsecond // 1000:03d}"


def time_of(instant: str) -> datetime:
    """Return the time of an instant, in the time zone of its table."""
    padded = instant.ljust(17, "0")
    millis = timedelta(milliseconds=int(padded[14:17]))
    return datetime.strptime(padded[:14], _FORMAT).replace(tzinfo=timezone.utc) + millis
