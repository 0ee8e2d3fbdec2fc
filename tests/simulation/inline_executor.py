"""Threads of the product, in the simulation: each actor has one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class InlineExecutor(Executor):
    """Works where it is asked to. The death of a process ends the work at once, as it is no `Exception`."""

    def __init__(self, *_: object) -> None: ...

    @classmethod
    def get_or_create(cls) -> InlineExecutor:
        return cls()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  whoever asks for the result gets it
            done.set_exception(error)
        return done

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...
