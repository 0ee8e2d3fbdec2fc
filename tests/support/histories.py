"""The versions that a table with history should have: a dictionary of lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Version = tuple[Any, Any, Any]
"""Its first time, that of the next change or None, and its content."""


@dataclass
class Histories:
    """The versions of each key, in their order."""

    versions: dict[Any, list[Version]] = field(default_factory=dict)

    def apply(self, changes: Iterable[tuple[Any, Any, Any]]) -> None:
        """Apply the changes of a batch: key, time, and content or None for a deletion. The order does not
        matter, as no two have one key and one time.
        """
        by_key: dict[Any, dict[Any, Any]] = {}
        for key, time, content in changes:
            by_key.setdefault(key, {})[time] = content
        for key, contents in by_key.items():
            self.versions[key] = versions_with(self.versions.get(key, []), contents)

    def rows(self) -> list[Version]:
        return [version for versions in self.versions.values() for version in versions]


def versions_with(versions: list[Version], changes: dict[Any, Any]) -> list[Version]:
    """What the table knows of the time before: versions begin, and end without another one."""
    contents = {end: None for _, end, _ in versions if end is not None}
    contents |= {begin: content for begin, _, content in versions}
    contents |= changes
    times = sorted(contents)
    return [
        (time, following, contents[time])
        for time, following in zip(times, [*times, None][1:], strict=True)
        if contents[time] is not None
    ]
