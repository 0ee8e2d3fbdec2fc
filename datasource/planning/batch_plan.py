"""Objects between driver and tasks: the plan of a batch, and what each task has written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage

from ...committers.contract import AttemptId, Batch, Committable, TaskWriterFactory
from ...committers.errors import PenstockError
from ...committers.lineage import SourceRange
from ...telemetry.observer import Observed, Observers
from ...writers.partition import write_partition
from ...writers.parts import PartPayloads, PartsWriters, PartWriters
from ..spark.task import TaskAttempt
from ..spark.utc import in_utc
from .event_time import OldestEvent

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class PlannedTarget:
    """A target for which the tasks write the batch."""

    name: str
    """Empty if it is the only one; see `Query.targets`."""
    part: int
    """Index of its payload. Targets that share files or a row log have the same."""
    content: Any
    """See `PlannedBatch.content`."""
    digest_before: str | None = None
    """Digest of the batch before, from the checkpoint; None if it is unknown or not needed."""


@dataclass(frozen=True)
class CommittableMessage(WriterCommitMessage):
    """One task's committable on its way to the driver."""

    committable: Committable[PartPayloads]
    """Of all parts."""
    targets: tuple[PlannedTarget, ...] = ()
    """Copied from the plan, which the commit process does not have. Targets that have the batch already are
    left out.
    """
    sources: tuple[SourceRange, ...] = ()
    """Copied from the plan by the first task."""
    observed: Observed | None = None
    """The same."""
    planned_at: datetime | None = None
    """The same."""

    def of_target(self, target: PlannedTarget, batch: Batch) -> Committable[Any]:
        """Return the committable as if the target were the only one.

        Args:
            batch: of the target's stream
        """
        whole = self.committable
        if whole.payload is None:
            return replace(whole, batch=batch)
        part = whole.payload[target.part]
        return replace(
            whole, batch=batch, payload=part.payload, dead_letters=part.dead_letters, rows=part.rows
        )


def committables_in(messages: Sequence[WriterCommitMessage | None]) -> list[CommittableMessage | None]:
    """Return the messages of the tasks; None for those that failed."""
    return [message if isinstance(message, CommittableMessage) else None for message in messages]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Everything that the tasks of one batch need. Made on the driver, before any data moves."""

    batch: Batch
    writers: PartsWriters | None = None
    """None if all targets have the batch already: then the tasks write nothing."""
    targets: tuple[PlannedTarget, ...] = ()
    """Those that need the batch."""
    run_id: str = ""
    """Not set for the sink of a query: its tasks know their run."""
    event_time: str | None = None
    """The column with the event time of the rows, if the query has the option `eventTime`."""
    sources: tuple[SourceRange, ...] = ()
    """What the batch reads of the sources of the query."""
    observed: Observed | None = None
    """None if the query has no observers."""
    planned_at: datetime | None = None

    @classmethod
    def of_one_target(
        cls,
        batch: Batch,
        writers: TaskWriterFactory[Any],
        content: Any,
        *,
        run_id: str = "",
        event_time: str | None = None,
    ) -> BatchPlan:
        """Return the plan for the only target of a query, with the content of its manifest."""
        parts, target = PartsWriters((PartWriters("", writers),)), PlannedTarget("", 0, content)
        return cls(batch, parts, (target,), run_id, event_time)

    def check_task(self, task: TaskAttempt) -> None:
        """Refuse a task of another batch: its rows would get the wrong token."""
        planned = (self.batch.stream.query_id, self.batch.batch_id)
        if (task.query_id, task.batch_id) != planned:
            raise PenstockError(
                f"Spark runs batch {task.batch_id} of query {task.query_id}, but the directory in "
                f"checkpointLocation is at batch {planned[1]} of query {planned[0]}. Either another driver "
                "runs the query on the same checkpoint: stop one of them. Or the option is not the directory "
                "that Spark uses for this query: correct it."
            )

    def write(self, batches: Iterable[pa.RecordBatch], task: TaskAttempt) -> CommittableMessage:
        """Write one partition. See `write_partition`."""
        attempt = AttemptId(
            query_id=self.batch.stream.query_id,
            run_id=self.run_id or task.run_id,
            batch_id=self.batch.batch_id,
            partition=task.partition,
            attempt=task.attempt,
        )
        events = OldestEvent(self.event_time)
        payload: PartPayloads | None = None
        if self.writers is not None:
            rows = events.observe(in_utc(batches))
            payload = self._observing(self.writers, attempt, rows)
        committable = Committable(
            batch=self.batch,
            run_id=attempt.run_id,
            partition=task.partition,
            attempt=task.attempt,
            payload=payload,
            oldest_event_at=events.at,
        )
        if task.partition > 0:
            return CommittableMessage(committable, self.targets)
        return CommittableMessage(committable, self.targets, self.sources, self.observed, self.planned_at)

    def _observing(
        self, writers: PartsWriters, attempt: AttemptId, rows: Iterable[pa.RecordBatch]
    ) -> PartPayloads:
        """Write, and tell the observers of it."""
        observed = None if self.observed is None else self.observed.in_tasks
        if observed is None:
            return write_partition(writers, attempt, rows, self.batch.stream)
        observers, values = Observers(observed), {"partition": attempt.partition, "attempt": attempt.attempt}
        try:
            with observers.step("write", self.batch, values):
                return write_partition(writers, attempt, _counted(rows, values), self.batch.stream)
        finally:
            observers.wait()


def _counted(rows: Iterable[pa.RecordBatch], values: dict[str, int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows, and count them in `values`."""
    values["rows"] = 0
    for batch in rows:
        values["rows"] += batch.num_rows
        yield batch
