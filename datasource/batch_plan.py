"""What crosses from the driver to the tasks and back: the plan of a batch, and each task's committable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from pyspark.sql.datasource import WriterCommitMessage

from ..committers.contract import AttemptId, Batch, Committable, ContentT, PayloadT, TaskWriterFactory
from ..committers.errors import PenstockError
from .event_time import OldestEvent
from .task import TaskAttempt

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class CommittableMessage(WriterCommitMessage, Generic[PayloadT, ContentT]):
    """One task's committable on its way to the driver."""

    committable: Committable[PayloadT]
    content: ContentT | None
    """From the plan, which the committing process cannot see; None if the task wrote nothing."""
    digest_before: str | None = None
    """From the plan, too."""


def committables_in(
    messages: Sequence[WriterCommitMessage | None],
) -> list[CommittableMessage[Any, Any] | None]:
    """What the tasks have handed back; None for those that failed."""
    return [message if isinstance(message, CommittableMessage) else None for message in messages]


@dataclass(frozen=True, slots=True)
class BatchPlan(Generic[PayloadT, ContentT]):
    """All that the tasks of one batch need to know. Made on the driver, before any data moves."""

    batch: Batch
    writers: TaskWriterFactory[PayloadT] | None = None
    """None if the batch is in the table already: then the tasks write nothing."""
    content: ContentT | None = None
    """What the batch does to the table, payloads left out; None with `writers`."""
    run_id: str = ""
    """Set for a batch write; a stream's run is known only to its tasks."""
    event_time: str | None = None
    """The column that holds the event time of the rows, if the query names one."""
    digest_before: str | None = None
    """Of the batch before, as the checkpoint has it; None if that is not known, or does not matter."""

    def check_task(self, task: TaskAttempt) -> None:
        """A task of another batch than the planned one would put its rows under the wrong token."""
        planned = (self.batch.stream.query_id, self.batch.batch_id)
        if (task.query_id, task.batch_id) != planned:
            raise PenstockError(
                f"Spark runs batch {task.batch_id} of query {task.query_id}, but the directory given as "
                f"checkpointLocation is at batch {planned[1]} of query {planned[0]}. Either another driver "
                "runs the query on the same checkpoint: let one of them end; or the option does not name the "
                "very directory that Spark uses for this query."
            )

    def write(
        self, batches: Iterable[pa.RecordBatch], task: TaskAttempt
    ) -> CommittableMessage[PayloadT, ContentT]:
        """Write one partition; on any error what this attempt wrote is discarded."""
        attempt = AttemptId(
            query_id=self.batch.stream.query_id,
            run_id=self.run_id or task.run_id,
            batch_id=self.batch.batch_id,
            partition=task.partition,
            attempt=task.attempt,
        )
        events = OldestEvent(self.event_time)
        payload = None if self.writers is None else _write(self.writers, attempt, events.observe(batches))
        committable = Committable(
            batch=self.batch,
            run_id=attempt.run_id,
            partition=task.partition,
            attempt=task.attempt,
            payload=payload,
            oldest_event_at=events.at,
        )
        return CommittableMessage(committable, self.content, self.digest_before)


def _write(
    writers: TaskWriterFactory[PayloadT], attempt: AttemptId, batches: Iterable[pa.RecordBatch]
) -> PayloadT:
    writer = writers.open(attempt)
    try:
        for batch in batches:
            writer.write(batch)
        return writer.finish()
    except BaseException:
        writer.abort()
        raise
