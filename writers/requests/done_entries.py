"""Records entries that are done: with the observer, in the progress, and in the counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

from ...committers.requests.contract import Counters
from .client import Observer
from .entry import Entry
from .progress import Progress
from .results import Acknowledged, DeadLetter, Delivered, Dropped

PayloadT = TypeVar("PayloadT")

Done: TypeAlias = "Sequence[tuple[Entry[PayloadT], Acknowledged]]"


class DoneEntries(Generic[PayloadT]):
    """Records entries of one writer.

    Args:
        progress: has the positions of all entries that the writer has taken
        observer: an entry counts as done when the observer has it
    """

    def __init__(self, progress: Progress, counters: Counters, observer: Observer[PayloadT] | None) -> None:
        self._progress = progress
        self._counters = counters
        self._observer = observer
        self.after_refusal: Callable[[], None] = lambda: None
        """Called after dead letters are recorded."""

    def record(self, done: Done[PayloadT]) -> None:
        """Record those that were delivered first: they count also if the observer stops at another one.

        Raises:
            Exception: raised by the observer, which does not have the rest.
        """
        delivered = [one for one in done if isinstance(one[1], Delivered)]
        others = [one for one in done if not isinstance(one[1], Delivered)]
        for some in filter(None, (delivered, others)):
            if self._observer is not None:
                self._observer(some)
            self._finish(some)
            if any(isinstance(result, DeadLetter) for _, result in some):
                self.after_refusal()

    def record_unobserved(self, done: Done[PayloadT]) -> None:
        """After an error: count what is delivered without the observer, which may have raised the error."""
        self._finish([one for one in done if isinstance(one[1], Delivered)])

    def _finish(self, done: Done[PayloadT]) -> None:
        self._progress.finish([entry.position for entry, _ in done])
        counters = self._counters
        for _, result in done:
            if isinstance(result, Delivered):
                counters.delivered += 1
            elif isinstance(result, Dropped):
                counters.dropped += 1
            else:
                counters.dead_letters += 1
