"""The versions of keys: slowly changing dimensions of type 2. Pure.

The history of a key is a row of points in time, the values of `valid_from`. At each of them a version begins,
or the key is deleted. A version ends at the next point. The table has no row for a deletion: it is known from
the end of the version before, if another version does not begin there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..contract import History
from ..errors import SchemaMismatchError


@dataclass(frozen=True, slots=True)
class Version:
    """A version that the table has."""

    number: int
    """Of its row."""
    valid_from: int
    valid_to: int | None


@dataclass(frozen=True, slots=True)
class Event:
    """A change of a key."""

    number: int
    """Of its row."""
    at: int
    is_deletion: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """The versions of one key after some changes. Points in time are numbers with their order."""

    kept: Mapping[int, int | None]
    """Versions of the table that stay, by their number: their end."""
    added: Mapping[int, int | None]
    """Versions that begin with an event, by the number of the event: their end."""
    replaced: Mapping[int, int]
    """For each of the added versions that begins where one of the table did, the number of that one."""


def timeline(versions: Iterable[Version], batches: Iterable[Sequence[Event]]) -> Timeline:
    """Apply changes of one key, one batch after the other.

    An event counts instead of what the key had at this time. Of two events of a batch at one time the later
    one of the sequence counts.

    Args:
        versions: that the table has; of two that begin at one time, the later one counts
    """
    points: dict[int, Version | Event] = {}
    old: dict[int, Version] = {}
    for version in versions:
        points[version.valid_from] = old[version.valid_from] = version
    for version in old.values():
        if version.valid_to is not None and version.valid_to not in points:
            points[version.valid_to] = Event(-1, version.valid_to, is_deletion=True)
    for events in batches:
        points.update((event.at, event) for event in events)
        points = _remembered(points)
    times = sorted(points)
    ends = dict(zip(times, [*times, None][1:], strict=True))
    kept, added, replaced = {}, {}, {}
    for at, point in points.items():
        if isinstance(point, Version):
            kept[point.number] = ends[at]
        elif not point.is_deletion:
            added[point.number] = ends[at]
            if at in old:
                replaced[point.number] = old[at].number
    return Timeline(kept, added, replaced)


def _remembered(points: dict[int, Version | Event]) -> dict[int, Version | Event]:
    """Return the points in their order, without deletions that follow no version: the table cannot tell them
    after this batch.
    """
    remembered: dict[int, Version | Event] = {}
    is_open = False
    for at in sorted(points):
        if is_open or not _deletes(points[at]):
            remembered[at] = points[at]
        is_open = not _deletes(points[at])
    return remembered


def _deletes(point: Version | Event) -> bool:
    return isinstance(point, Event) and point.is_deletion


def check_history(history: History, columns: Sequence[str]) -> None:
    """Check that a table has the columns of its history.

    Args:
        columns: of the table

    Raises:
        SchemaMismatchError: it has not.
    """
    known = {name.lower() for name in columns}
    names = (history.valid_from, history.valid_to, history.is_current)
    if missing := [name for name in names if name.lower() not in known]:
        raise SchemaMismatchError(
            f"history=true: the table has no column {', '.join(map(repr, missing))}, so its rows are not "
            "the versions of a history. Nothing was written. Give its columns with the options validFrom, "
            "validTo and isCurrent; or let the query create a new table."
        )
