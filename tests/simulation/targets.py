"""The targets of a query in a simulation, and the stream that each of them has in the store."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.simulation.changed_delta import ChangedDeltaSimLake
from tests.simulation.changed_iceberg import ChangedIcebergSimLake
from tests.simulation.delta_lake import DeltaSimLake
from tests.simulation.iceberg_lake import IcebergSimLake
from tests.simulation.lakes import LAKES, SimulatedLake
from tests.simulation.manifest_store import SimulatedStore
from tests.simulation.plan import Plan
from tests.simulation.refusals import Refusals
from tests.simulation.request_lake import RequestSimLake
from tests.simulation.scheduler import Scheduler
from tests.simulation.spark import SimulatedSink
from tests.simulation.store_connection import StoreConnection
from tests.spark_logs import Checkpoint

from penstock.committers.contract import StreamKey
from penstock.datasource.fanout.parts import SharedRowLogs
from penstock.datasource.lake.pair import TablePair
from penstock.datasource.lake.query import SharedFiles
from penstock.datasource.options.delivery import DeliveryOptions
from penstock.datasource.options.file_tables import FileTableOptions
from penstock.datasource.query import Query as ProductQuery

if TYPE_CHECKING:
    from tests.simulation.external_events import ExternalEvents
    from tests.simulation.query import Query

NAMES = ("a", "b", "c")

OTHERS = {
    "delta": ("iceberg", "requests"),
    "iceberg": ("delta", "requests"),
    "requests": ("requests", "delta"),
    "database": ("delta", "requests"),
}
"""By the kind of the first target: those of the others. Two services share one row log."""


@dataclass(eq=False)
class SimulatedTarget:
    """One destination, and what happens to it."""

    name: str
    """Empty if it is the only one."""
    lake: SimulatedLake
    options: FileTableOptions
    """Of a coupled start."""
    decoupled_options: FileTableOptions
    first_batch: int | None = 0
    """None: the query does not have it yet."""
    takes: Callable[[int], bool] = lambda _: True
    """Is a row for it? All are, unless the query has routes."""
    end_batch: int | None = None
    """The first batch that was not prepared, or not for sure, when the query was started without it."""
    events: ExternalEvents = field(init=False)

    @property
    def is_in_query(self) -> bool:
        """Is the query started with it now?"""
        return self.first_batch is not None and self.end_batch is None

    def gets(self, batch_id: int) -> bool:
        """Do the rows of the batch have to be there?"""
        is_started = self.first_batch is not None and self.first_batch <= batch_id
        return is_started and (self.end_batch is None or batch_id < self.end_batch)

    @property
    def is_decoupled_always(self) -> bool:
        """A service that is one of several targets gets its rows from the row log."""
        return bool(self.name) and isinstance(self.lake, RequestSimLake)

    def sink(self, is_decoupled: bool) -> SimulatedSink:
        """Of a query that starts so."""
        options = self.decoupled_options if is_decoupled or self.is_decoupled_always else self.options
        return SimulatedSink(self.lake, options)

    def is_in(self, error: object) -> bool:
        """Does an error of the query name this target?"""
        text = str(error)
        return not self.name or f"Target {self.name}" in text or self.lake.table_uri in text


class Stream:
    """One target of one query."""

    def __init__(self, query: Query, target: SimulatedTarget) -> None:
        self.query, self.target, self.lake = query, target, target.lake
        self.is_reported = False
        """The last `penstock recover` has ended in the error that asks for an operator."""
        self.taken_from_table: set[int] = set()
        """Batches that an operator's `penstock recover` has found in the table, which may be a copy's."""
        self.is_accepted = False
        """An operator has accepted the table as it is, after it went back."""
        self.is_stuck = False
        """It is parked for good: its checkpoint is a fork that has diverged."""

    @property
    def key(self) -> StreamKey:
        return StreamKey(self.query.checkpoint.query_id, self.lake.table_uri)

    @property
    def store(self) -> SimulatedStore:
        return self.query.store

    @property
    def checkpoint(self) -> Checkpoint:
        return self.query.checkpoint

    @property
    def events(self) -> ExternalEvents:
        return self.target.events

    @property
    def is_diverged(self) -> bool:
        return self.query.is_diverged

    @property
    def is_retired(self) -> bool:
        return self.query.is_retired

    @property
    def problems(self) -> list[str]:
        return self.query.problems

    def connect(self) -> StoreConnection:
        return self.query.connect()


def targets_in(seed: int) -> int:
    """How many targets the query of a history has: a third of them has several."""
    rng = random.Random(f"targets of {seed}")
    return rng.choice((2, 2, 3)) if rng.random() < 1 / 3 else 1


def with_upserts(make_lake: type[SimulatedLake]) -> type[SimulatedLake]:
    """The same, changed by key."""
    of_changes: dict[type[SimulatedLake], type[SimulatedLake]] = {
        DeltaSimLake: ChangedDeltaSimLake,
        IcebergSimLake: ChangedIcebergSimLake,
    }
    return of_changes.get(make_lake, make_lake)


def kinds_of(first: str, count: int) -> tuple[str, ...]:
    """Of so many targets."""
    return (first, *OTHERS[first][: count - 1])


def lakes_of(
    make_lake: type[SimulatedLake], plan: Plan, scheduler: Scheduler, count: int, features: Collection[str]
) -> list[SimulatedLake]:
    """Each has storage of its own, but for two services, which share their row log."""
    first = make_lake(scheduler, is_remote=plan.is_remote)
    lakes: list[SimulatedLake] = [first]
    if "shared_files" in features:
        assert isinstance(first, DeltaSimLake), "the files are in its location"
        return [IcebergSimLake(scheduler, is_remote=plan.is_remote, beside=first), first]
    for kind in kinds_of(first.kind, count)[1:]:
        other = LAKES[kind](scheduler, is_remote=plan.is_remote)
        if isinstance(other, RequestSimLake) and isinstance(first, RequestSimLake):
            other.share_row_log(first, "https://mirror/rows")
        lakes.append(other)
    for lake in lakes:
        if isinstance(lake, RequestSimLake):
            lake.is_keyed = "keys" in features
    for number, lake in enumerate(lakes if "letters" in features else ()):
        lake.refusals = Refusals(number, in_commit=lake.kind in ("requests", "database"))
    return lakes


def targets_of(
    lakes: list[SimulatedLake], options: FileTableOptions, decoupled: FileTableOptions
) -> list[SimulatedTarget]:
    """With the options of a coupled and of a decoupled start."""
    if len(lakes) == 1:
        return [SimulatedTarget("", lakes[0], options, decoupled)]
    return [
        SimulatedTarget(name, lake, _of_lake(options, lake), _of_lake(decoupled, lake))
        for name, lake in zip(_names_of(lakes), lakes, strict=False)
    ]


def _names_of(lakes: list[SimulatedLake]) -> Sequence[str]:
    """Tables with the same files are named by their formats."""
    return NAMES if pair_in(lakes) is None else [lake.kind for lake in lakes]


def pair_in(lakes: Iterable[SimulatedLake]) -> TablePair | None:
    """Two tables with the same files, if there are any."""
    return next((lake.pair for lake in lakes if isinstance(lake, DeltaSimLake)), None)


def _of_lake(options: FileTableOptions, lake: SimulatedLake) -> FileTableOptions:
    if isinstance(lake, RequestSimLake):
        return replace(options, given={"rowLog": lake.data_location}, compact_with="none")
    return options


def query_of(targets: list[SimulatedTarget], *, is_decoupled: bool) -> ProductQuery:
    """As the data source makes it from the options of one start."""
    sinks = {target.name: target.sink(is_decoupled) for target in targets}
    if "" in sinks:
        return ProductQuery.of(sinks[""])
    first = targets[0]
    options: DeliveryOptions = first.decoupled_options if is_decoupled else first.options
    address, pair = f"fanout:{','.join(sinks)}", pair_in([target.lake for target in targets])
    parts = SharedRowLogs() if pair is None else SharedFiles(pair)
    return ProductQuery(options, address, sinks, sinks[first.name].open_filesystem, parts)


def can(lake: SimulatedLake, event: str) -> bool:
    """Does this happen to such a destination?"""
    return event not in lake.cannot
