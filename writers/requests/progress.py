"""The contiguous prefix of entries that are done."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class Progress:
    """Knows up to which position all entries are done. It holds only entries that are not."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, tuple[int | None, int]] = OrderedDict()
        """Positions that are not done, each with the position and the number of entries before it."""
        self._last: int | None = None
        self._added = 0
        self.done_up_to: int | None = None
        """All entries up to this position are done. None: not even the first one. Can be read in any
        thread.
        """

    def add(self, positions: Iterable[int]) -> None:
        """Add positions that follow all others.

        Raises:
            ValueError: a position does not follow the previous one. No position is added.
        """
        added: dict[int, tuple[int | None, int]] = {}
        last, count = self._last, self._added
        for position in positions:
            if last is not None and position <= last:
                raise ValueError(f"Position {position} follows position {last}. Positions must ascend.")
            added[position] = last, count
            last, count = position, count + 1
        self._open.update(added)
        self._last, self._added = last, count

    @property
    def unrecorded(self) -> int:
        """Number of entries from the first one that is not done. A crash repeats what was sent of them."""
        return self._added - self._open[next(iter(self._open))][1] if self._open else 0

    def finish(self, positions: Iterable[int]) -> None:
        for position in positions:
            del self._open[position]
        self.done_up_to = self._open[next(iter(self._open))][0] if self._open else self._last
