"""Processes that die while they write to Kafka, or are replaced by others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.committers.kafka import clients
from penstock.committers.kafka.transactions import Session


@contextmanager
def another_process() -> Iterator[None]:
    """Within the block, this process has none of the clients that it has opened before."""
    before = dict(clients._opened)
    clients._opened.clear()
    try:
        yield
    finally:
        clients._opened.clear()
        clients._opened.update(before)


@contextmanager
def before(method: str, action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run `action` before each call of a method of `Session`."""
    real = getattr(Session, method)

    def call(self: Session, *args: Any) -> Any:
        action()
        return real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Session, method, call)
        yield
