"""Let a process die, somebody else act, or a request get lost, inside one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias
from unittest import mock

from ..committers import crash_points

Lost: TypeAlias = Literal["request", "response"]


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


@contextmanager
def lossy(owner: type, method: str, lost: Lost, error: Exception) -> Iterator[None]:
    """The next call of the method raises `error`: it is not made, or its answer gets lost.

    Args:
        owner: the class that has the method, at the lowest boundary there is
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
