"""The contiguous prefix of entries that are done."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class Progress:
    """Knows up to which position all entries are done. It holds only entries that are not."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, int | None] = OrderedDict()
        """Positions that are not done, each with the position before it."""
        self._last: int | None = None
        self.done_up_to: int | None = None
        """All entries up to this position are done. None: not even the first one. Can be read in any
        thread.
        """

    def add(self, positions: Iterable[int]) -> None:
        """Add positions that follow all others.

        Raises:
            ValueError: a position does not follow the previous one. No position is added.
        """
        added: dict[int, int | None] = {}
        last = self._last
        for position in positions:
            if last is not None and position <= last:
                raise ValueError(f"Position {position} follows position {last}. Positions must ascend.")
            added[position] = last
            last = position
        self._open.update(added)
        self._last = last

    def finish(self, positions: Iterable[int]) -> None:
        for position in positions:
            del self._open[position]
        self.done_up_to = self._open[next(iter(self._open))] if self._open else self._last
