"""Spark, as far as a sink sees it: a checkpoint, drivers that run batches, tasks that write files.

The order is Spark's: offsets log, plan, tasks, `commit`, commits log; a commit that raises is followed by an
abort with all messages. Tasks are processes of their own: they die alone and are tried again, run twice, and
go on after the driver has died or the stage has long ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

from tests.simulation.lakes import SimulatedLake
from tests.simulation.refusals import over_lake
from tests.simulation.request_lake import RequestSimLake, by_key
from tests.simulation.routed_rows import RoutedWriters, SourceRows
from tests.simulation.scheduler import Actor, DiskFullError, Scheduler, UnreachableError
from tests.simulation.store_connection import StoreConnection, clock_of
from tests.spark_logs import Checkpoint, SparkError

from penstock.committers.contract import (
    AttemptId,
    Batch,
    Committable,
    ManifestRecord,
    ManifestState,
    StreamKey,
)
from penstock.committers.errors import CheckpointMismatchError
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.committing import abort_batch, commit_batch
from penstock.datasource.options.file_tables import FileTableOptions
from penstock.datasource.planning.batch_plan import BatchPlan, CommittableMessage
from penstock.datasource.planning.plan import plan_batch
from penstock.datasource.planning.plan_cache import PlanCache
from penstock.datasource.query import Query, batch_of_target
from penstock.datasource.spark.task import TaskAttempt
from penstock.writers.parts import PartPayloads, PartsWriters, PartWriters
from penstock.writers.row_log.routes import RouteWriters

TASK_ATTEMPTS_MAX = 3
KEPT = timedelta(seconds=FileTableOptions().delivered_s_max)
"""How long the store keeps committed batches."""
PLANNER_DIES = 0.2
"""How likely a batch finds another planner process than the one before had."""


def batch_of(checkpoint: Checkpoint, batch_id: int, table_uri: str) -> Batch:
    """As `datasource.spark.checkpoint` has it: the digest covers the batch's offsets, both ends."""
    ends = (checkpoint.offsets.get(batch_id - 1, 0), checkpoint.offsets[batch_id])
    digest = hashlib.sha256(f"{ends}".encode()).hexdigest()
    return Batch(StreamKey(checkpoint.query_id, table_uri), batch_id, digest)


class SimulatedSink:
    """The sink of one query, as `datasource.delta.sink` has one."""

    def __init__(self, lake: SimulatedLake, options: FileTableOptions) -> None:
        self.lake, self.options = lake, options
        self.kind, self.table_uri = lake.kind, lake.table_uri
        self.open_table: Any = lake.open_table
        self.maintain = lake.maintain

    def open_filesystem(self, location: str) -> Any:
        raise NotImplementedError("the checkpoint of a simulation is in memory")


@dataclass(frozen=True)
class Start:
    """How one start of a query goes."""

    batch_rows: int = 2
    """Rows of each new batch; the first one is empty if this is 0."""
    partitions: int = 2
    speculation: float = 0.0
    """How likely a task is run twice."""
    is_decoupled: bool = False


@dataclass(eq=False)
class Driver:
    """One run of a query.

    Args:
        query: with all its targets
        source_rows: how many rows the source has now
        is_kept: must the store know a batch that has ended well as it was left, whatever happens then?
        lakes: of the targets, by name
        rows: of the source
    """

    scheduler: Scheduler
    query: Query
    connection: StoreConnection
    checkpoint: Checkpoint
    start: Start
    run_id: str
    source_rows: Callable[[], int]
    is_kept: Callable[[Batch], bool]
    lakes: Mapping[str, SimulatedLake]
    rows: SourceRows

    def __post_init__(self) -> None:
        self._store = cast(SqlManifestStore, self.connection)
        self._task_attempts = 0
        self._plans = self._new_plans()

    def main(self) -> None:
        """Run batches until the source has no more rows."""
        checkpoint, step = self.checkpoint, self.scheduler.step
        step("start", self.run_id)
        batch_id = checkpoint.next_batch()
        is_replay = batch_id in checkpoint.offsets
        is_first = True
        while is_replay or self._construct(batch_id, is_first):
            self._run(batch_id)
            step("spark: log commit", batch_id)
            checkpoint.log_commit(batch_id)
            batch_id, is_replay, is_first = batch_id + 1, False, False

    def _construct(self, batch_id: int, is_first: bool) -> bool:
        """Log the offsets of a new batch; False if there is nothing to read."""
        start, end = self.checkpoint.offsets.get(batch_id - 1, 0), self.source_rows()
        is_empty = is_first and self.start.batch_rows == 0
        if start >= end and not is_empty:
            return False
        end = start if is_empty else min(end, start + (self.start.batch_rows or 2))
        self.scheduler.step("spark: log offsets", f"batch {batch_id} up to {end}")
        self.checkpoint.log_offsets(batch_id, end)
        return True

    def _run(self, batch_id: int) -> None:
        self.scheduler.step("spark: plan", batch_id)
        # The planner knows no batch id: it takes the newest of the log, which may be a concurrent driver's.
        newest = batch_of(self.checkpoint, self.checkpoint.newest, self.query.address)
        plan = self._plan_or_change_nothing(newest)
        planned_at = clock_of(self.scheduler)()
        named = ", ".join(target.name for target in plan.targets)
        self.scheduler.log(
            f"  planned: {'write' if plan.targets else 'skip'} batch {newest.batch_id} {named}"
        )
        self._let_late_requests_arrive()
        messages = self._run_tasks(plan, batch_id)
        self.scheduler.step("spark: commit", batch_id)
        batches = {name: batch_of_target(newest, sink) for name, sink in self.query.targets.items()}
        before = {name: self.connection.peek(batch) for name, batch in batches.items()}
        try:
            commit_batch(self.query, self._store, messages)
        except Exception as error:
            self.scheduler.log(f"  commit: {type(error).__name__}: {str(error)[:300]}")
            self._abort(messages)
            raise
        written = {target.name for target in plan.targets}
        for name, batch in batches.items():
            self._check_prepared(batch, before[name], planned_at, is_written=name in written)

    def _plan_or_change_nothing(self, batch: Batch) -> BatchPlan:
        """A copy of the checkpoint that is refused has not given up what the other one waits for.

        Unless the target that refuses had nothing against it when the others were asked: another process
        has committed its batch, or prepared another one, since.
        """
        self.connection.forget_abandoned()
        streams = [batch_of_target(batch, sink).stream for sink in self.query.targets.values()]
        before = [self.connection.peek_at_both(stream, batch.batch_id) for stream in streams]
        try:
            return self._plan(batch)
        except CheckpointMismatchError:
            abandoned = self.connection.abandoned()
            others = [
                (was, self.connection.peek_at_both(stream, batch.batch_id))
                for stream, was in zip(streams, before, strict=True)
                if abandoned is not None and stream != abandoned.stream
            ]
            is_excused = any(was != now for was, now in others)
            what = f"batch {batch.batch_id} is refused, and has given up {abandoned}"
            assert abandoned is None or is_excused, what
            raise

    def _plan(self, batch: Batch) -> BatchPlan:
        def digest_of(batch_id: int) -> str:
            return batch_of(self.checkpoint, batch_id, self.query.address).digest

        if self.start.is_decoupled and self.scheduler.rng.random() < PLANNER_DIES:
            self._plans = self._new_plans()
        return plan_batch(self.query, self._store, batch, self.rows.schema, False, digest_of, self._plans)

    def _new_plans(self) -> PlanCache:
        """Of one planner process."""
        # It only looks in the background: what becomes of it when the driver dies is no matter.
        start: Any = partial(self.scheduler.spawn, f"{self.run_id}.look", is_mortal=False)
        return PlanCache(clock=lambda: self.scheduler.now, start=start)

    def _check_prepared(
        self, batch: Batch, before: ManifestRecord | None, planned_at: datetime, *, is_written: bool
    ) -> None:
        """A commit that ends well has prepared these rows, or found them prepared. Unless someone may have
        given them up since, it has left its batch COMMITTED, or PREPARED if it is decoupled; also for a
        target that has had the batch before and that the tasks have left out.

        Args:
            before: record of the batch before the commit
        """
        prepared = self.connection.last_prepared.get(batch.stream)
        is_expected = prepared == batch or not is_written
        assert is_expected, f"batch {batch.batch_id} is a success, the store has {prepared}"
        if not self.is_kept(batch):
            return
        record = self.connection.peek(batch)
        if record is None:
            # The table has it from another store, or it was committed too long ago to be kept.
            finished_at = None if before is None else before.finished_at
            is_old = finished_at is not None and clock_of(self.scheduler)() - finished_at > KEPT
            is_marked = is_old or not is_written
        else:
            # While the driver slept, an operator may have healed the stream without these rows.
            is_marked = record.state is ManifestState.COMMITTED or record.is_skipped
            is_marked = is_marked or (self.start.is_decoupled and record.state is ManifestState.PREPARED)
            if not is_written:  # a driver was fenced too late, or replays it just now
                is_again = record.state is ManifestState.PREPARED and record.prepared_at >= planned_at
                is_marked = is_marked or record.awaits_replay or is_again
        assert is_marked, f"batch {batch.batch_id} is a success, in the store it is {record}"

    def _let_late_requests_arrive(self) -> None:
        """Now, or not: this run has looked for pending batches and has not prepared its own yet."""
        scheduler = self.scheduler
        for request in [one for one in scheduler.in_flight if one.is_to_store]:
            if scheduler.rng.random() < 0.7:
                scheduler.arrive(request)

    def _abort(self, messages: Sequence[CommittableMessage | None]) -> None:
        """Spark logs what an abort raises, and ends the query with the first error."""
        self.scheduler.step("spark: abort")
        try:
            abort_batch(self.query, messages)
        except Exception as error:  # noqa: BLE001
            self.scheduler.log(f"  abort: {type(error).__name__}: {str(error)[:300]}")

    # Tasks -------------------------------------------------------------------------------------------

    def _run_tasks(self, plan: BatchPlan, batch_id: int) -> list[CommittableMessage]:
        """The messages in the order of the partitions, one of each."""
        ids, count = self.checkpoint.ids(batch_id), self.start.partitions
        parts: list[Sequence[int]] = [ids[partition::count] for partition in range(count)]
        if any(isinstance(lake, RequestSimLake) and lake.is_keyed for lake in self.lakes.values()):
            parts = list(by_key(ids, count))
        tasks = [Task(self, plan, batch_id, partition, part) for partition, part in enumerate(parts)]
        for task in tasks:
            task.try_again()
            if self.scheduler.rng.random() < self.start.speculation:
                task.try_again()
        while any(task.message is None for task in tasks):
            self.scheduler.wait(lambda: all(task.is_over for task in tasks))
            for task in tasks:
                if task.message is None and len(task.running) >= TASK_ATTEMPTS_MAX:
                    self._abort([other.message for other in tasks])
                    raise SparkError(f"partition {task.partition} of batch {batch_id} has failed too often")
                if task.message is None:
                    task.try_again()
        return [task.message for task in tasks if task.message is not None]

    def start_attempt(self, task: Task) -> Actor:
        self._task_attempts += 1
        number = self._task_attempts
        attempt = TaskAttempt(task.partition, number, self.run_id, self.checkpoint.query_id, task.batch_id)
        name = f"{self.run_id}.task{number}"
        return self.scheduler.spawn(name, lambda: task.attempt(attempt))

    def write(self, plan: BatchPlan, task: TaskAttempt, ids: Sequence[int]) -> CommittableMessage:
        """What a task attempt does: `BatchPlan.write`, with files that are nothing but ids."""
        plan.check_task(task)
        batch = plan.batch
        attempt = AttemptId(batch.stream.query_id, task.run_id, batch.batch_id, task.partition, task.attempt)
        files: PartPayloads | None = None
        if plan.writers is not None:
            writer = PartsWriters(tuple(map(self._over_lake, plan.writers.parts))).open(attempt)
            writer.write(self.rows.of(ids))
            files = writer.finish()
        committable = Committable(plan.batch, task.run_id, task.partition, task.attempt, files)
        return CommittableMessage(committable, plan.targets)

    def _over_lake(self, part: PartWriters) -> PartWriters:
        """Targets that share a part read the same files."""
        if isinstance(part.writers, RouteWriters):
            first = cast(RequestSimLake, next(iter(self.lakes.values())))  # their row log is the same
            return replace(part, writers=RoutedWriters(first, part.writers.columns))
        lake = self.lakes[part.targets.partition(", ")[0]]
        return replace(part, writers=over_lake(part.writers, lake))


@dataclass(eq=False)
class Task:
    """One partition of one batch, with all its attempts: the first to end well has its message heard."""

    driver: Driver
    plan: BatchPlan
    batch_id: int
    partition: int
    ids: Sequence[int]
    message: CommittableMessage | None = None
    running: list[Actor] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.message is not None or all(actor.has_ended for actor in self.running)

    def try_again(self) -> None:
        self.running.append(self.driver.start_attempt(self))

    def attempt(self, attempt: TaskAttempt) -> None:
        """Body of an attempt's actor."""
        try:
            message = self.driver.write(self.plan, attempt, self.ids)
        except (UnreachableError, DiskFullError):
            return
        if self.message is None:
            self.message = message
