"""Faults of single calls. See also `penstock.testing.faults`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def in_next_call(owner: object, name: str, action: Callable[..., Any]) -> Iterator[None]:
    """Run the action instead of the next call of `owner.name`. It gets the function, then the arguments."""
    real, left = getattr(owner, name), [action]

    def call(*args: Any, **kwargs: Any) -> Any:
        return left.pop()(real, *args, **kwargs) if left else real(*args, **kwargs)

    with mock.patch.object(owner, name, call):
        yield
    assert not left, f"{name} was not called"
