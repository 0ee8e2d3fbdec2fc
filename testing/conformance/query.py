"""A query without Spark: each step as in Spark's planner, task and commit processes.

Everything that crosses a process boundary in Spark is pickled here, too.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from ...committers.contract import (
    AttemptId,
    Batch,
    Committable,
    Manifest,
    ManifestState,
    StreamKey,
    TaskWriter,
)
from ...committers.progress import StoresProgress, with_store
from ...committers.protocol.recovery import Recovered
from ...committers.store.sql import SqlManifestStore
from ...committers.store.status import StreamStatus
from ...committers.target import Committer, Target
from ...datasource.committing import abort_batch, commit_batch, manifest_of
from ...datasource.planning.batch_plan import BatchPlan, CommittableMessage, PlannedTarget
from ...datasource.planning.plan import plan_batch
from ...datasource.plug_ins import load
from ...datasource.query import Query as QueryTargets
from ...datasource.sink import Sink, open_table
from ...datasource.spark.task import TaskAttempt
from ...datasource.stored.stored_table import StoredTable
from ...datasource.stored.table_access import TableAccess

if TYPE_CHECKING:
    from typing_extensions import Self

    from ...datasource.destinations import DestinationType
    from ...datasource.spark.base_source import QueryDataSource

T = TypeVar("T")

IDS = pa.schema([("id", pa.int64())])
TEXTS = pa.schema([("id", pa.int64()), ("text", pa.string())])
NO_ACCESS = TableAccess({}, {})

Messages = list[CommittableMessage]
Plan = BatchPlan


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())}, schema=IDS)


def shipped(value: T) -> T:
    """Return the value as another process gets it."""
    copy: T = pickle.loads(pickle.dumps(value))  # noqa: S301  made here
    return copy


class Place(Protocol):
    """Where a query writes. A `DestinationHarness` is one."""

    @property
    def options(self) -> dict[str, str]:
        """What a query sets to write here, the checkpoint left out."""
        ...

    @property
    def destination(self) -> DestinationType: ...


def source_of(place: Place) -> type[QueryDataSource]:
    """Return Spark's data source that writes here."""
    loaded: type[QueryDataSource] = load(place.destination.data_source)
    return loaded


@dataclass(frozen=True)
class Query:
    """One query that writes to the destination."""

    harness: Place
    query_id: str = "q1"
    options: Mapping[str, str] = field(default_factory=dict)
    """Options in addition to those of the destination."""
    destination_options: Mapping[str, str] | None = None
    """Options in place of `harness.options`."""
    store: SqlManifestStore | None = None
    """Has the tokens of targets that implement `StoresProgress`."""

    def sink(self) -> Sink[Any, Any]:
        """Return the sink of the only target."""
        (sink,) = self.with_targets().targets.values()
        return sink

    def with_targets(self) -> QueryTargets:
        """Return the query and its targets, made only from options, as in each process of Spark."""
        where = self.harness.options if self.destination_options is None else self.destination_options
        given = {"checkpointLocation": f"/checkpoints/{self.query_id}", **where, **self.options}
        lower = {key.lower(): value for key, value in given.items()}
        return shipped(source_of(self.harness)(lower)).query()

    def with_options(self, **options: str) -> Self:
        return replace(self, options={**self.options, **options})

    def target(self) -> Target[Any, Any]:
        target: Target[Any, Any] = self.sink().open_table()
        return target if self.store is None else with_store(target, self.store)

    @property
    def has_token_in_store(self) -> bool:
        """True if the token is lost with the store."""
        return isinstance(self.target(), StoresProgress)

    @property
    def stream(self) -> StreamKey:
        return StreamKey(self.query_id, self.with_targets().address)

    def batch(self, batch_id: int, offsets: object = "") -> Batch:
        """Return a batch. The same batch id with other `offsets` has another digest."""
        digest = hashlib.sha256(f"{batch_id} {offsets}".encode()).hexdigest()
        return Batch(self.stream, batch_id, digest)

    # The steps of a batch -------------------------------------------------------------------------

    def plan(
        self, store: SqlManifestStore, batch: Batch, schema: pa.Schema = IDS, *, overwrite: bool = False
    ) -> Plan:
        return shipped(plan_batch(self.with_targets(), store, batch, schema, overwrite))

    def write(self, plan: Plan, parts: Sequence[pa.Table], run_id: str = "r1") -> Messages:
        """Write as tasks, one for each of `parts`."""
        return [
            shipped(plan.write(part.to_batches(), task(plan.batch, number, run_id)))
            for number, part in enumerate(parts)
        ]

    def write_and_die(self, plan: Plan, rows: pa.Table, run_id: str = "r1") -> TaskWriter[Any]:
        """Write as a task that dies before its end. Its connections end with the returned object."""
        assert plan.writers is not None
        writer = plan.writers.open(attempt(plan.batch, 0, run_id))
        for batch in rows.to_batches():
            writer.write(batch)
        return writer

    def commit(self, store: SqlManifestStore, messages: Messages) -> None:
        """Commit. If that raises, abort with all messages, as Spark does."""
        try:
            commit_batch(self.with_targets(), store, messages)
        except Exception:
            self.abort(messages)
            raise

    def abort(self, messages: Sequence[CommittableMessage | None]) -> None:
        """Abort. None is the message of a failed task."""
        abort_batch(self.with_targets(), messages)

    def run(
        self,
        store: SqlManifestStore,
        batch: Batch,
        *parts: pa.Table,
        run_id: str = "r1",
        overwrite: bool = False,
    ) -> Messages:
        """Run one batch from its plan to its mark."""
        plan = self.plan(store, batch, parts[0].schema, overwrite=overwrite)
        messages = self.write(plan, parts, run_id)
        self.commit(store, messages)
        return messages

    def build(
        self,
        store: SqlManifestStore,
        batch: Batch,
        *parts: pa.Table,
        run_id: str = "r1",
        overwrite: bool = False,
    ) -> Manifest:
        """Run a batch up to its manifest, which the store does not have yet."""
        plan = self.plan(store, batch, parts[0].schema, overwrite=overwrite)
        return self.manifest(self.write(plan, parts, run_id))

    def prepare(
        self, store: SqlManifestStore, batch: Batch, *parts: pa.Table, run_id: str = "r1"
    ) -> Manifest:
        """Run a batch up to its commit, where the process dies."""
        manifest = self.build(store, batch, *parts, run_id=run_id)
        store.claim(batch.stream, run_id)
        store.prepare(manifest, run_id)
        return manifest

    def manifest(self, messages: Messages) -> Manifest:
        (target,) = messages[0].targets
        return manifest_of(self.target(), target.content, committables(messages))

    # Store and recovery --------------------------------------------------------------------------

    def state(self, store: SqlManifestStore, batch_id: int) -> ManifestState | None:
        record = store.record(self.stream, batch_id)
        return None if record is None else record.state

    def status(self, store: SqlManifestStore) -> StreamStatus:
        (found,) = [stream for stream in store.streams() if stream.key == self.stream]
        return found

    def stored_table(self) -> StoredTable:
        """Open the table as commands do, by its address in the store."""
        return self.harness.destination.stored_table(self.stream, NO_ACCESS)

    def stored_committer(self) -> Committer:
        committer = self.stored_table().committer()
        return committer if self.store is None else with_store(committer, self.store)

    def recover(self, store: SqlManifestStore) -> list[Recovered]:
        """Recover as `penstock recover` does, without a replay."""
        from ...committers.protocol.recovery import Recovery

        return Recovery(store, open_table(self.sink(), store)).recover(self.stream)


def task(batch: Batch, number: int = 0, run_id: str = "r1") -> TaskAttempt:
    return TaskAttempt(number, number, run_id, batch.stream.query_id, batch.batch_id)


def attempt(batch: Batch, number: int, run_id: str) -> AttemptId:
    return AttemptId(batch.stream.query_id, run_id, batch.batch_id, number, number)


def committables(messages: Messages) -> list[Committable[Any]]:
    """Return those of the only target; of a batch that was skipped, as they are."""
    (target,) = messages[0].targets or (PlannedTarget("", 0, None),)
    return [message.of_target(target, message.committable.batch) for message in messages]


def payloads(messages: Messages) -> list[Any]:
    return [one.payload for one in committables(messages) if one.payload is not None]


def quietly(step: Callable[[], object], *errors: type[Exception]) -> None:
    with suppress(*errors):
        step()
