"""What the tasks of a fan-out write: the files of each target, and one row log for those that share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...committers.contract import PlannedBatch, TaskWriterFactory
from ...committers.dead_letters import BadRows
from ...writers.bad_rows import with_bad_rows
from ...writers.parts import Checks, PartWriters
from ...writers.row_log.writer import RowLogWriters, accept_all
from ..query import PartOf
from ..sink import Sink
from .row_logs import check_row_logs


class SharedRowLogs:
    """Targets with the same row log share a part."""

    def of(
        self,
        planned: Mapping[str, PlannedBatch[Any, Any]],
        targets: Mapping[str, Sink[Any, Any]],
        writers_of: Callable[[str], TaskWriterFactory[Any]],
    ) -> tuple[tuple[PartWriters, ...], PartOf]:
        """See `Parts`.

        Raises:
            ConfigurationError: two row logs are one place with different texts.
            RetryableError: a row log cannot be written now.
        """
        logs = {name: one.writers for name, one in planned.items() if isinstance(one.writers, RowLogWriters)}
        check_row_logs(logs)
        parts: dict[object, list[tuple[str, TaskWriterFactory[Any]]]] = {}
        place_of: dict[str, object] = {}
        for name, one in planned.items():
            log = logs.get(name)
            place: object = (
                name if log is None else (log.location, tuple(sorted(log.storage_options.items())))
            )
            writers = _with_bad_rows(one.writers, targets[name].options.bad_rows)
            parts.setdefault(place, []).append((name, writers))
            place_of[name] = place
        numbers = {place: part for part, place in enumerate(parts)}
        return tuple(map(_joined, parts.values())), {name: numbers[place_of[name]] for name in planned}


def _with_bad_rows(writers: TaskWriterFactory[Any], bad_rows: BadRows) -> TaskWriterFactory[Any]:
    """Return writers that do with bad rows what the option `badRows` of the target says.

    A row log may have several readers, so its rows are the same for all of them: with another option than
    `fail`, the delivery finds the rows that cannot be sent.
    """
    if bad_rows is not BadRows.FAIL and isinstance(writers, RowLogWriters):
        return replace(writers, check=accept_all)
    return with_bad_rows(writers, bad_rows)


def _joined(writers: Sequence[tuple[str, TaskWriterFactory[Any]]]) -> PartWriters:
    names = ", ".join(name for name, _ in writers)
    first = writers[0][1]
    if len(writers) == 1 or not isinstance(first, RowLogWriters):
        return PartWriters(names, first)
    checks = tuple((name, one.check) for name, one in writers if isinstance(one, RowLogWriters))
    return PartWriters(names, RowLogWriters(first.location, first.storage_options, Checks(checks)))
