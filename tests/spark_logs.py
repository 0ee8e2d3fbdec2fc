"""Spark's offsets log and commits log in memory, for tests that play Spark."""

from __future__ import annotations

from dataclasses import dataclass, field


class SparkError(Exception):
    """Spark itself ends the query."""


@dataclass
class Checkpoint:
    """Spark's two logs. A source offset is a number of rows."""

    name: str
    query_id: str = "q"
    first_id: int = 0
    """The id of the source's first row, as a query under this id reads it."""
    offsets: dict[int, int] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)

    @property
    def newest(self) -> int:
        return max(self.offsets, default=-1)

    def next_batch(self) -> int:
        """At a start: the newest batch again, unless it is logged as done."""
        return self.newest if self.newest >= 0 and self.newest not in self.commits else self.newest + 1

    def ids(self, batch_id: int) -> range:
        start, end = self.offsets.get(batch_id - 1, 0), self.offsets[batch_id]
        return range(self.first_id + start, self.first_id + end)

    def log_offsets(self, batch_id: int, end: int) -> None:
        if batch_id in self.offsets:
            raise SparkError(f"another driver has logged offsets of batch {batch_id}")
        self.offsets[batch_id] = end

    def log_commit(self, batch_id: int) -> None:
        if batch_id in self.commits:
            raise SparkError(f"another driver has logged the commit of batch {batch_id}")
        self.commits.add(batch_id)
