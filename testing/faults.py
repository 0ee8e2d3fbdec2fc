"""Simulate crashes, concurrent actions and lost requests within one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias
from unittest import mock

from ..committers import crash_points

Lost: TypeAlias = Literal["request", "response"]
"""What of a call is lost: the request, and nothing has happened, or the response, and all has."""


class Crash(BaseException):
    """A simulated death of the process: no `except Exception` catches it, and no abort follows."""


@contextmanager
def crash_at(point: str, time: int = 1) -> Iterator[None]:
    """Crash when `point` is reached for the `time`-th time. The test fails if it is never reached."""
    left = time

    def die(reached: str, _batch_id: int) -> None:
        nonlocal left
        left -= reached == point
        if not left:
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
    """Run `action` when `point` is first reached, as a concurrent driver or another writer.

    The action itself triggers no points. With more `times`, it runs again when the point is reached again.
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


@contextmanager
def lossy(owner: type, method: str, lost: Lost, error: Exception) -> Iterator[None]:
    """Let the next call of the method raise `error`: without making the call, or after it.

    Args:
        owner: the class of the method, at the lowest boundary possible
    """
    real, left = getattr(owner, method), [lost]

    def call(*args: Any, **kwargs: Any) -> Any:
        if not left:
            return real(*args, **kwargs)
        if left.pop() == "response":
            real(*args, **kwargs)
        raise error

    with mock.patch.object(owner, method, call):
        yield
    assert not left, f"{method} was not called"
