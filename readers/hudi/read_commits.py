"""Which commits a stream of a Hudi table has read, as its checkpoint has them.

A commit may be completed after a later one: its instant is chosen when it begins, or when a batch of Penstock
is planned. So where a stream is, is not one instant, but the set of instants that it has read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

KEPT = 1000
"""Instants that a checkpoint lists. Of earlier ones it has the number and the sum."""


@dataclass(frozen=True, slots=True)
class Older:
    """Instants that are not listed."""

    before: int
    """They are earlier than this one."""
    count: int
    total: int
    """Their sum."""


@dataclass(frozen=True, slots=True)
class ReadCommits:
    """A set of instants, as numbers."""

    first: str
    """The first instant of the timeline at that time: all earlier ones were read."""
    instants: frozenset[int]
    older: Older | None = None

    def __or__(self, more: Collection[int]) -> ReadCommits:
        return ReadCommits(self.first, self.instants.union(more), self.older) if more else self

    def to_dict(self) -> Mapping[str, Any]:
        """As JSON: the first of the listed instants, and how much later each of the next ones is."""
        listed, older = sorted(self.instants), self.older
        if older is None and len(listed) > KEPT:
            unlisted, listed = listed[:-KEPT], listed[-KEPT:]
            older = Older(listed[0], len(unlisted), sum(unlisted))
        steps = [*listed[:1], *(later - earlier for earlier, later in pairwise(listed))]
        more = {} if older is None else {"older": [older.before, older.count, older.total]}
        return {"first": self.first, "read": steps, **more}

    @classmethod
    def of(cls, content: object) -> ReadCommits:
        """
        Raises:
            ValueError, KeyError, TypeError: it has another form.
        """
        if not isinstance(content, Mapping):
            raise TypeError(f"{content!r} is no list of commits")
        older = Older(*map(_number, content["older"])) if "older" in content else None
        first = content["first"]
        if not (isinstance(first, str) and first.isdigit()):
            raise ValueError(f"{first!r} is no instant")
        return cls(first, frozenset(accumulate(map(_number, content["read"]))), older)

    def complete(self, there: Iterable[int]) -> ReadCommits | None:
        """Return the set with all instants; None if others were completed or removed since.

        Args:
            there: all instants of the table from `first` on, with those in the archive
        """
        older = self.older
        if older is None:
            return self
        found = [one for one in there if one < older.before]
        if (len(found), sum(found)) != (older.count, older.total):
            return None
        return ReadCommits(self.first, self.instants.union(found))


@dataclass(frozen=True, slots=True)
class Before:
    """What a stream has read before a commit: what it had read at some time, and then others."""

    start: ReadCommits
    then: Sequence[int] = ()
    count: int = 0
    """How many of these."""

    @property
    def commits(self) -> ReadCommits:
        return self.start | self.then[: self.count]


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("not a number")
    return value
