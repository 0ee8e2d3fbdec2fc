"""Opens the tables of a batch for which its tasks have rows. Runs on the driver, in the commit process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from ...committers.contract import Batch, DataFile, DataFiles, DeadLetter, StreamKey
from ...committers.dead_letters import WRITING, BadRows, LetterBox, dead_letter
from ...committers.errors import ConfigurationError, SchemaMismatchError, shown
from ...committers.requests.contract import Sent
from ...committers.row_log.log import LoggedBatch, RowLog
from ...committers.texts.safe_text import get_logger
from ...writers.parts import PartPayload
from ...writers.row_log.route_names import Route
from ..destinations import destination_type
from ..planning.batch_plan import CommittableMessage, PlannedTarget
from ..settings import registrations
from ..sink import Sink
from .sink import RoutesSink
from .templates import Templates

if TYPE_CHECKING:
    from ...committers.store.sql import SqlManifestStore
    from ..query import Query

logger = get_logger(__name__)

NO_TABLE = "no_table"
"""Code of a row whose route cannot be the name of a table."""


class MakesSink(Protocol):
    """A data source with options."""

    def sink(self) -> Sink[Any, Any]: ...


@dataclass(frozen=True, slots=True)
class Routes:
    """The tables of a query, which its rows name."""

    source: Callable[[dict[str, str]], MakesSink] = field(repr=False)
    """Spark's data source of the destination."""
    templates: Templates
    sink: RoutesSink

    def sink_of(self, route: Route) -> Sink[Any, Any]:
        """Return the sink of one table.

        Raises:
            ConfigurationError: the texts cannot be in its name.
        """
        given = {**self.templates.filled(route), "delivery": "decoupled", "rowlog": self.sink.location}
        return self.source(given).sink()

    def opened(
        self, query: Query, store: SqlManifestStore, messages: Sequence[CommittableMessage]
    ) -> tuple[Query, list[CommittableMessage]]:
        """Return the query with the tables for which its tasks have rows, and their messages with a part for
        each table.

        Raises:
            SchemaMismatchError: the texts of a row cannot be in the name of a table, and the option is
                badRows=fail. Nothing was prepared.
        """
        batch = messages[0].committable.batch
        sinks, tables, problems = self._named_by(messages)
        for address, other in self._spelled_otherwise(store, batch, sinks).items():
            del sinks[address]
            problems |= {
                route: f"{shown(address)} and {shown(other)} are one table: their names differ only in case."
                for route, uri in tables.items()
                if uri == address
            }
        refused = self._refused(batch, messages, problems)
        store.register_streams(
            [
                one
                for sink in sinks.values()
                for one in registrations(
                    sink, StreamKey(batch.stream.query_id, sink.table_uri), routes_of=self.sink.table_uri
                )
            ]
        )
        parts = {address: number for number, address in enumerate(sinks, 1)}
        written = tuple(PlannedTarget(address, part, "log") for address, part in parts.items())
        split = [
            _split(message, letters, tables, parts, (*message.targets, *written))
            for message, letters in zip(messages, refused, strict=True)
        ]
        return replace(query, targets={**query.targets, **sinks}, later=frozenset(sinks)), split

    def _named_by(
        self, messages: Sequence[CommittableMessage]
    ) -> tuple[dict[str, Sink[Any, Any]], dict[Route, str], dict[Route, str]]:
        """Return the sinks by address, the address of each route, and what is wrong with other routes."""
        sinks: dict[str, Sink[Any, Any]] = {}
        tables: dict[Route, str] = {}
        problems: dict[Route, str] = {}
        for route in sorted({route_of(file) for message in messages for file in _files(message)}):
            try:
                sink = self.sink_of(route)
            except ConfigurationError as error:
                problems[route] = str(error)
                continue
            tables[route] = sink.table_uri
            sinks.setdefault(sink.table_uri, sink)
        return sinks, tables, problems

    def _spelled_otherwise(
        self, store: SqlManifestStore, batch: Batch, sinks: Mapping[str, Sink[Any, Any]]
    ) -> dict[str, str]:
        """Return tables whose names differ from those of others only in case, with the other. Some catalogs
        take them for one table, in which the token of one would hide batches of the other.
        """
        if not sinks or not destination_type(batch.stream, next(iter(sinks.values())).kind).ignores_case:
            return {}
        first = {address.lower(): address for address in store.spelled(batch.stream.query_id, list(sinks))}
        return {
            address: other
            for address in sinks
            if (other := first.setdefault(address.lower(), address)) != address
        }

    def _refused(
        self, batch: Batch, messages: Sequence[CommittableMessage], problems: Mapping[Route, str]
    ) -> list[tuple[DeadLetter, ...]]:
        """Return the rows without a table as dead letters, for each message.

        Raises:
            SchemaMismatchError: see `opened`.
        """
        if not problems:
            return [()] * len(messages)
        route, why = next(iter(problems.items()))
        named = ", ".join(map(shown, route))
        rows = sum(file.rows for one in messages for file in _files(one) if route_of(file) in problems)
        choice = self.sink.options.bad_rows
        if choice is BadRows.FAIL:
            raise SchemaMismatchError(
                f"{rows:,} rows of batch {batch.batch_id} of {batch.stream} have no table. Those with "
                f"{', '.join(self.templates.columns)} = {named}: {why} Nothing was prepared. Give these rows "
                "another value in the query, or keep them apart with badRows=deadLetter."
            )
        if choice is BadRows.DROP:
            logger.warning(
                "%s rows of batch %s of %s have no table and were dropped (badRows=drop). Those of %s: %s",
                rows,
                batch.batch_id,
                batch.stream,
                named,
                why,
            )
            return [()] * len(messages)
        return [self._letters(batch, message, problems) for message in messages]

    def _letters(
        self, batch: Batch, message: CommittableMessage, problems: Mapping[Route, str]
    ) -> tuple[DeadLetter, ...]:
        log = RowLog(self.sink.location, dict(self.sink.storage_options))
        box = LetterBox()
        for file in _files(message):
            why = problems.get(route_of(file))
            if why is None:
                continue
            for some in log.read(LoggedBatch.of(batch, [file])):
                for number in range(some.rows.num_rows):
                    row = some.rows.slice(number, 1).replace_schema_metadata(None)
                    box.add(dead_letter(row, WRITING, some.partition, some.row + number, NO_TABLE, why))
        return tuple(box.letters)


def route_of(file: DataFile) -> Route:
    return tuple(text or "" for _, text in file.partition_values)


def _files(message: CommittableMessage) -> DataFiles:
    """Return the files of all routes that a task has written."""
    (part,) = message.committable.payload or (PartPayload(()),)
    files: DataFiles = part.payload
    return files


def _split(
    message: CommittableMessage,
    letters: tuple[DeadLetter, ...],
    tables: Mapping[Route, str],
    parts: Mapping[str, int],
    targets: tuple[PlannedTarget, ...],
) -> CommittableMessage:
    """Return the message with a part for each table.

    Args:
        letters: rows without a table
        tables: address of the table of each route that has one
    """
    (whole,) = message.committable.payload or ()
    of_tables: dict[str, list[DataFile]] = {address: [] for address in parts}
    for file in _files(message):
        address = tables.get(route_of(file))
        if address in of_tables:
            of_tables[address].append(replace(file, partition_values=()))
    own = replace(whole, payload=Sent(), dead_letters=(*whole.dead_letters, *letters))  # rows are of tables
    payload = (own, *(PartPayload(tuple(some)) for some in of_tables.values()))
    return replace(message, committable=replace(message.committable, payload=payload), targets=targets)
