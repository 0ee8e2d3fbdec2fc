"""The timeline of a Hudi table of version 6: one to three files for each instant.

An instant is a time in milliseconds, `20261125160359123`. It is *requested*, *inflight* and then *completed*;
readers see completed ones. Hudi's own writers move old instants into an archive, and take all data files
older than the rest as completed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from .names import META

_NAME = re.compile(r"(?P<instant>[0-9]{14,17})\.(?P<rest>[a-z.]+)")
_COMPLETED = ("commit", "deltacommit", "replacecommit")
_FORMAT = "%Y%m%d%H%M%S"
FIRST_INSTANT = "0"


def requested(instant: str) -> str:
    return f"{META}/{instant}.commit.requested"


def inflight(instant: str) -> str:
    return f"{META}/{instant}.inflight"


def completed(instant: str) -> str:
    return f"{META}/{instant}.commit"


@dataclass(frozen=True, slots=True)
class Timeline:
    """The active instants, without the archive."""

    commits: tuple[tuple[str, str], ...]
    """(instant, name of the file) of completed changes of the rows, oldest first."""
    pending: frozenset[str]
    """Instants of any action that are not completed."""
    latest: str
    """The latest instant of any action."""
    first: str = field(default=FIRST_INSTANT)
    """The first completed instant of a commit: files of earlier ones count as committed."""

    @classmethod
    def of(cls, names: Iterable[str]) -> Timeline:
        """Read the names of the files of a timeline."""
        found = [match for name in names if (match := _NAME.fullmatch(name))]
        completed_ones = {match["instant"] for match in found if "." not in match["rest"]} - {
            match["instant"] for match in found if match["rest"] == "inflight"
        }
        commits = sorted((match["instant"], match.string) for match in found if match["rest"] in _COMPLETED)
        completed_ones |= {instant for instant, _ in commits}
        every = {match["instant"] for match in found}
        return cls(
            commits=tuple(commits),
            pending=frozenset(every - completed_ones),
            latest=max(every, default=FIRST_INSTANT),
            first=commits[0][0] if commits else FIRST_INSTANT,
        )

    def has(self, instant: str) -> bool:
        """Return True if the instant is a completed commit in the timeline."""
        return any(instant == one for one, _ in self.commits)

    def is_archived(self, instant: str) -> bool:
        """Return True if the instant would be in the archive, if it was completed."""
        return bool(self.commits) and instant < self.first and instant not in self.pending


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
