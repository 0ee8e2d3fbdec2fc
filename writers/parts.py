"""Writes the rows of one task attempt for all targets of a query: each part once. Executors only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ..committers.contract import AttemptId, TaskWriter, TaskWriterFactory
from ..committers.errors import of_target
from .bad_rows import BadRowWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from ..committers.contract import DeadLetter


@dataclass(frozen=True, slots=True)
class PartPayload:
    """What a task has written for one part."""

    payload: Any
    dead_letters: tuple[DeadLetter, ...] = ()
    """Rows that do not fit the target of the part."""
    rows: int = 0
    """See `Committable.rows`."""


PartPayloads: TypeAlias = "tuple[PartPayload, ...]"
"""One for each part."""


@dataclass(frozen=True, slots=True)
class PartWriters:
    """The writers of one part: what a task writes for one target, or for several that share it."""

    targets: str
    """Names of the targets, for messages."""
    writers: TaskWriterFactory[Any]


@dataclass(frozen=True, slots=True)
class PartsWriters:
    """Opens task writers. Pickled to the executors, with what the targets' own writers need."""

    parts: tuple[PartWriters, ...]

    def open(self, attempt: AttemptId) -> PartsWriter:
        return PartsWriter(self.parts, attempt)


class PartsWriter:
    """See `TaskWriter`. Passes each Arrow batch to the writers of all parts, one after the other."""

    def __init__(self, parts: Sequence[PartWriters], attempt: AttemptId) -> None:
        self._writers: list[tuple[str, TaskWriter[Any]]] = []
        try:
            for part in parts:
                with of_target(part.targets):
                    self._writers.append((part.targets, part.writers.open(attempt)))
        except BaseException:
            self.abort()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaMismatchError: a value does not fit one of the targets, and its option is badRows=fail.
        """
        for name, writer in self._writers:
            with of_target(name):
                writer.write(batch)

    def finish(self) -> PartPayloads:
        payloads = []
        for name, writer in self._writers:
            with of_target(name):
                payload = writer.finish()
            if isinstance(writer, BadRowWriter):
                payloads.append(PartPayload(payload, writer.dead_letters, writer.rows))
            else:
                payloads.append(PartPayload(payload))
        return tuple(payloads)

    def abort(self) -> None:
        """Discard what was written for all targets, also if some parts are finished. Never raises."""
        for _, writer in self._writers:
            with suppress(Exception):
                writer.abort()


@dataclass(frozen=True, slots=True)
class Checks:
    """Checks values for all targets that share a row log. Pickled to the executors."""

    of_targets: tuple[tuple[str, Callable[[pa.RecordBatch], object]], ...]

    def __call__(self, rows: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaMismatchError: the target of that name would not accept a value.
        """
        for name, check in self.of_targets:
            with of_target(name):
                check(rows)
