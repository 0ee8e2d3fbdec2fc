"""A factory for task writers whose constructor takes the attempt and a few values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from ..committers.contract import AttemptId, PayloadT, TaskWriter


class TaskWriters(Generic[PayloadT]):
    """See `TaskWriterFactory`: opens `writer(attempt, *values)`. Pickled with these values."""

    def __init__(self, writer: Callable[..., TaskWriter[PayloadT]], *values: Any) -> None:
        self._writer = writer
        self._values = values

    def open(self, attempt: AttemptId) -> TaskWriter[PayloadT]:
        return self._writer(attempt, *self._values)
