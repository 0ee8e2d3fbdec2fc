"""Work beside the caller, one piece at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec

P = ParamSpec("P")


class Background:
    """A thread that does what it is given, in order, while the caller gets on with the next.

    One piece may be under way: who gives another waits until it is done, so that what both hold in memory
    stays bounded. The thread begins with the first piece.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._under_way: Future[None] | None = None

    def start(self, work: Callable[P, None], *arguments: P.args, **more: P.kwargs) -> None:
        """Begin with `work` once the piece before it is done, whose error is raised here."""
        self.wait()
        self._under_way = self._thread.submit(work, *arguments, **more)

    def wait(self) -> None:
        """Until nothing is under way; raises what went wrong."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def stop(self) -> None:
        """End the thread, after what is under way. What went wrong there is nobody's concern any more."""
        self._thread.shutdown()
        self._under_way = None
