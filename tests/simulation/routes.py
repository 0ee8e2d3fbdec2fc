"""A query with routes: each row names the service that it goes to. All services read one row log.

The product opens the services, and prepares their batches with that of the query itself. The data source that
makes their sinks, the writers of the tasks and the services are fake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from tests.simulation.plan import Plan
from tests.simulation.request_lake import RequestSimLake, SimulatedRowLog
from tests.simulation.routed_rows import COLUMN, PLACES, SourceRows
from tests.simulation.scheduler import Scheduler
from tests.simulation.spark import SimulatedSink, batch_of
from tests.simulation.targets import SimulatedTarget, Stream

from penstock.committers.contract import StreamKey
from penstock.committers.row_log.cleanup import CleanableRowLogs
from penstock.datasource.options.file_tables import FileTableOptions
from penstock.datasource.query import Query
from penstock.datasource.routing import opening
from penstock.datasource.routing import sink as routes_sink
from penstock.datasource.routing.query import routed_query

ADDRESS = "https://{place}/rows"
"""Of the query's own stream, and the template of those of the services."""

HISTORY_MAX = 100
"""Batches: more than any history has."""


def places_of(count: int) -> tuple[str, ...]:
    """Of a history in which the query would have so many targets."""
    return ("often", "later") if count == 2 else PLACES


def plan_with_routes(plan: Plan, scheduler: Scheduler) -> Plan:
    """No service loses a batch alone, but the store may be lost: then the query stops."""
    events = [name for name in plan.events if name != "lose_record"]
    may_begin_again = {"rewind_checkpoint", "copy_checkpoint"}.intersection(events)
    if scheduler.rng.random() < 0.2 and not may_begin_again:  # at a batch that a lost store has forgotten
        events.append("lose_store")
    return replace(plan, events=tuple(events), event_count=(plan.event_count or 1) if events else 0)


def routed_lakes(plan: Plan, scheduler: Scheduler, places: Sequence[str]) -> list[RequestSimLake]:
    """One service for each place."""
    lakes = [RequestSimLake(scheduler, is_remote=plan.is_remote) for _ in places]
    for place, lake in zip(places, lakes, strict=True):
        lake.share_row_log(lakes[0], ADDRESS.format(place=place))
        lake.is_routed = True
    return lakes


def routed_targets(
    lakes: Sequence[RequestSimLake], rows: SourceRows, options: FileTableOptions
) -> list[SimulatedTarget]:
    """All that the rows may name. The query does not know them."""
    location = lakes[0].data_location
    of_all = replace(options, given={"rowLog": location}, row_log=location, compact_with="none")
    return [
        SimulatedTarget(place, lake, of_all, of_all, takes=partial(_is_of, rows, place))
        for place, lake in zip(rows.places, lakes, strict=True)
    ]


def _is_of(rows: SourceRows, place: str, row_id: int) -> bool:
    return row_id < 0 or rows.place_of(row_id) == place


@dataclass(frozen=True)
class SimulatedSource:
    """The data source of the services, with the options of one of them, or of the sample."""

    targets: Sequence[SimulatedTarget]
    given: Mapping[str, str]

    def sink(self) -> SimulatedSink:
        address = self.given["url"]
        target = next((one for one in self.targets if one.lake.table_uri == address), self.targets[0])
        sink = target.sink(is_decoupled=True)
        sink.table_uri = address
        return sink


def query_with_routes(targets: Sequence[SimulatedTarget]) -> Query:
    """As the data source makes it from the options of one start."""
    source: Any = partial(SimulatedSource, targets)
    return routed_query("simulated", source, {"routeBy": COLUMN, "url": ADDRESS})


@contextmanager
def routes_installed(lake: RequestSimLake) -> Iterator[None]:
    """The product's code for routes runs over the row log of the simulation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes_sink, "RowLog", lambda *_: SimulatedRowLog(lake))
        patch.setattr(opening, "destination_type", lambda *_: SimpleNamespace(ignores_case=False))
        yield


def anchor_of(query_id: str) -> StreamKey:
    """The query's own stream, which has all batches."""
    return StreamKey(query_id, ADDRESS)


def routes_cleanable(store: Any, lake: RequestSimLake) -> CleanableRowLogs:
    """The row log, as the clean-up of the query's own stream sees it."""
    logs = {key.query_id: SimulatedRowLog(lake) for key in store.stream_keys() if key.table_uri == ADDRESS}
    return CleanableRowLogs(ADDRESS, logs, store.progress)


def torn_batches(streams: Sequence[Stream]) -> Iterator[str]:
    """Batches that are prepared in some streams of one query, and not in all that have rows of them.

    Args:
        streams: of the services
    """
    store, checkpoint = streams[0].store, streams[0].checkpoint
    anchor = anchor_of(checkpoint.query_id)
    known = {record.batch.batch_id: record.batch.digest for record in store.history(anchor, HISTORY_MAX)}
    for stream in streams:
        place = stream.target.name
        records = {one.batch.batch_id: one.batch for one in store.history(stream.key, HISTORY_MAX)}
        for batch_id, batch in records.items():
            if known.get(batch_id) != batch.digest:
                yield f"batch {batch_id} is prepared for {place}, and not for the query"
        for batch_id in set(known) & set(checkpoint.offsets):
            ids = list(filter(stream.target.takes, checkpoint.ids(batch_id)))
            is_ours = known[batch_id] == batch_of(checkpoint, batch_id, anchor.table_uri).digest
            if is_ours and ids and batch_id not in records:
                yield f"batch {batch_id} is prepared for the query, and not for {place}: rows {ids}"
