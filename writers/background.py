"""Runs work in the background, one piece at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec

P = ParamSpec("P")


class Background:
    """A thread that runs pieces of work in order, while the caller prepares the next one.

    At most one piece is running: a caller who adds another waits until it is done, so that memory use is
    bounded. The thread starts with the first piece.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._under_way: Future[None] | None = None

    def start(self, work: Callable[P, None], *arguments: P.args, **more: P.kwargs) -> None:
        """Start `work` once the previous piece is done. Raises the error of the previous piece."""
        self.wait()
        self._under_way = self._thread.submit(work, *arguments, **more)

    def wait(self) -> None:
        """Wait until nothing is running; raise the error if there was one."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def stop(self) -> None:
        """End the thread after the running piece. Its error is ignored."""
        self._thread.shutdown()
        self._under_way = None
