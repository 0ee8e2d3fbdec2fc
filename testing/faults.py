"""Let a process die, or somebody else act, at a crash point, inside one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..committers import crash_points


class Crash(BaseException):
    """The process dies here: no `except Exception` sees it, and no abort follows."""


@contextmanager
def crash_at(point: str) -> Iterator[None]:
    """Die when `point` is reached; a test that never gets there fails."""

    def die(reached: str, _batch_id: int) -> None:
        if reached == point:
            crash_points.install(None)
            raise Crash(point)

    crash_points.install(die)
    try:
        yield
    except Crash:
        return
    finally:
        crash_points.install(None)
    raise AssertionError(f"{point} was not reached")


@contextmanager
def at_point(point: str, action: Callable[[], object], times: int = 1) -> Iterator[None]:
    """Let somebody else act when `point` is first reached: a concurrent driver, or another writer.

    What they do themselves reaches no point. With more `times` they act again when it is reached again.
    """
    left = [action] * times

    def act(reached: str, _batch_id: int) -> None:
        if reached == point and left:
            crash_points.install(None)
            left.pop()()
            crash_points.install(act if left else None)

    crash_points.install(act)
    try:
        yield
    finally:
        crash_points.install(None)
    assert not left, f"{point} was not reached"
