"""What the tasks of a fan-out write: the files of each target, and one row log for those that share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...committers.contract import PlannedBatch, TaskWriterFactory
from ...committers.dead_letters import BadRows
from ...writers.bad_rows import BadRowWriters, with_bad_rows
from ...writers.parts import Checks, PartWriters
from ...writers.requests.decoding import DecodingWriters
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
        logs = {name: log for name, one in planned.items() if (log := _row_log(one.writers)) is not None}
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


def _row_log(writers: TaskWriterFactory[Any]) -> RowLogWriters | None:
    if isinstance(writers, BadRowWriters):
        writers = writers.writers
    if isinstance(writers, DecodingWriters):
        return writers.writers
    return writers if isinstance(writers, RowLogWriters) else None


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
    logs = [(name, log) for name, one in writers if (log := _row_log(one)) is not None]
    if len(logs) < 2:
        return PartWriters(names, first)
    checked = replace(logs[0][1], check=Checks(tuple([(name, log.check) for name, log in logs])))
    return PartWriters(names, _over(first, checked))


def _over(writers: TaskWriterFactory[Any], log: RowLogWriters) -> TaskWriterFactory[Any]:
    """Return writers that do what these do, over another row log. Targets that share a row log decode the
    rows alike, and do the same with those that cannot be decoded.
    """
    if isinstance(writers, BadRowWriters):
        return replace(writers, writers=_over(writers.writers, log))
    return replace(writers, writers=log) if isinstance(writers, DecodingWriters) else log
