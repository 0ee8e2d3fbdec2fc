"""The entries that wait to be sent, in their order."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .entry import Entry

PayloadT = TypeVar("PayloadT")


@dataclass(slots=True, eq=False)
class Queued(Generic[PayloadT]):
    """An entry that is not done."""

    entry: Entry[PayloadT]
    buffered_at: float
    attempts: int = 0
    first_sent_at: float = math.inf
    together_max: int | None = None
    """Entries of the next request with this one, if the destination has refused a larger one."""


class EntryBuffer(Generic[PayloadT]):
    """A queue in the order of positions, to which failed entries return at their old place: the front.

    With `order_by_key`, at most one entry of a key can be taken at a time. The others of the key stay behind
    until it is released.

    With `in_order`, no entry can be taken while another one waits for its next attempt.
    """

    def __init__(self, *, order_by_key: bool, in_order: bool = False) -> None:
        self._order_by_key = order_by_key
        self._in_order = in_order
        self._fresh: deque[Queued[PayloadT]] = deque()
        self._returned: list[tuple[int, Queued[PayloadT]]] = []
        """Heap by position: entries that can be taken, and whose place is not at the end."""
        self._waiting: list[tuple[float, int, Queued[PayloadT]]] = []
        """Heap by the time of the next attempt."""
        self._behind: dict[Hashable, deque[Queued[PayloadT]]] = {}
        """For each key with an entry that is not done: the entries after it."""
        self.entries = 0
        self.bytes = 0
        self.ready_bytes = 0

    @property
    def ready_entries(self) -> int:
        """Entries that can be taken."""
        if self._in_order and self._waiting:
            return 0
        return len(self._fresh) + len(self._returned)

    def add(self, entries: Sequence[Entry[PayloadT]], size_bytes: int, now: float) -> None:
        """Add entries whose positions are behind all others.

        Args:
            size_bytes: of all of them
        """
        self.entries += len(entries)
        self.bytes += size_bytes
        added = [Queued(entry, now) for entry in entries]
        if self._order_by_key:
            added = [queued for queued in added if self._is_first_of_its_key(queued)]
            size_bytes = sum(queued.entry.size_bytes for queued in added)
        self._fresh.extend(added)
        self.ready_bytes += size_bytes

    def put_back(self, queued: Queued[PayloadT], next_attempt_at: float) -> None:
        """Return an entry that was taken. It can be taken again from `next_attempt_at` on."""
        self.entries += 1
        self.bytes += queued.entry.size_bytes
        heapq.heappush(self._waiting, (next_attempt_at, queued.entry.position, queued))

    def release(self, done: Sequence[Queued[PayloadT]]) -> None:
        """The entries were taken and are done: the next ones of their keys can be taken."""
        if not self._order_by_key:
            return
        for queued in done:
            if (key := queued.entry.key) is None:
                continue
            if behind := self._behind[key]:
                self._return(behind.popleft())
            else:
                del self._behind[key]

    def end_waits(self, now: float) -> None:
        """Entries whose next attempt is due by `now` can be taken."""
        while self._waiting and self._waiting[0][0] <= now:
            self._return(heapq.heappop(self._waiting)[2])

    def take(self, entries_max: int, bytes_max: int) -> list[Queued[PayloadT]]:
        """Remove the first entries that can be taken: at least one, and more up to the limits."""
        fresh, returned = self._fresh, self._returned
        batch: list[Queued[PayloadT]] = []
        size_bytes = 0
        while len(batch) < entries_max:
            is_fresh = bool(fresh) and (not returned or fresh[0].entry.position < returned[0][0])
            if not is_fresh and not returned:
                break
            queued = fresh[0] if is_fresh else returned[0][1]
            if not batch:
                entries_max = min(entries_max, queued.together_max or entries_max)
            elif (
                queued.together_max != batch[0].together_max
                or size_bytes + queued.entry.size_bytes > bytes_max
            ):
                break
            if is_fresh:
                fresh.popleft()
            else:
                heapq.heappop(returned)
            batch.append(queued)
            size_bytes += queued.entry.size_bytes
        self.entries -= len(batch)
        self.bytes -= size_bytes
        self.ready_bytes -= size_bytes
        return batch

    def oldest_ready(self) -> float:
        """When the first entry that can be taken was buffered; infinity if there is none."""
        oldest = self._fresh[0].buffered_at if self._fresh else math.inf
        return min(oldest, self._returned[0][1].buffered_at) if self._returned else oldest

    def next_attempt(self) -> float:
        """When the next wait ends; infinity if no entry waits."""
        return self._waiting[0][0] if self._waiting else math.inf

    def clear(self) -> None:
        self._fresh.clear()
        self._returned.clear()
        self._waiting.clear()
        self._behind.clear()
        self.entries = self.bytes = self.ready_bytes = 0

    def _return(self, queued: Queued[PayloadT]) -> None:
        heapq.heappush(self._returned, (queued.entry.position, queued))
        self.ready_bytes += queued.entry.size_bytes

    def _is_first_of_its_key(self, queued: Queued[PayloadT]) -> bool:
        """Return True if it can be sent; if not, it stays behind the others of its key."""
        key = queued.entry.key
        if key is None:
            return True
        if (behind := self._behind.get(key)) is not None:
            behind.append(queued)
            return False
        self._behind[key] = deque()
        return True
