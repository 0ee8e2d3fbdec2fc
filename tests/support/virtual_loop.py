"""An event loop whose clock is virtual: a sleep takes no time, and a test always takes the same course."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

STUCK_S = 5.0
"""Real time without any event after which a test fails."""


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """When there is nothing to do, the clock moves to the next timer. Without a timer, the loop waits for
    other threads.
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(STUCK_S if timeout is None else 0)
        if not events and timeout is None:
            raise AssertionError("nothing can happen any more: the test would wait for ever")
        if not events and timeout:
            self._loop.advance(timeout)
        return events


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run it to its end in a loop of its own."""
    loop = VirtualClockLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorator of a test that is a coroutine."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtually(test(*args, **kwargs))

    return run
