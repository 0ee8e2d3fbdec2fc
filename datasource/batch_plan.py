"""Objects between driver and tasks: the plan of a batch, and each task's committable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from pyspark.sql.datasource import WriterCommitMessage

from ..committers.contract import (
    AttemptId,
    Batch,
    Committable,
    ContentT,
    DeadLetter,
    PayloadT,
    TaskWriterFactory,
)
from ..committers.errors import PenstockError
from ..writers.bad_rows import BadRowWriter
from ..writers.partition import write_partition
from .event_time import OldestEvent
from .task import TaskAttempt
from .utc import in_utc

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class CommittableMessage(WriterCommitMessage, Generic[PayloadT, ContentT]):
    """One task's committable on its way to the driver."""

    committable: Committable[PayloadT]
    content: ContentT | None
    """Copied from the plan, which the commit process does not have; None if the task wrote nothing."""
    digest_before: str | None = None
    """Also copied from the plan."""


def committables_in(
    messages: Sequence[WriterCommitMessage | None],
) -> list[CommittableMessage[Any, Any] | None]:
    """Return the messages of the tasks; None for those that failed."""
    return [message if isinstance(message, CommittableMessage) else None for message in messages]


@dataclass(frozen=True, slots=True)
class BatchPlan(Generic[PayloadT, ContentT]):
    """Everything that the tasks of one batch need. Made on the driver, before any data moves."""

    batch: Batch
    writers: TaskWriterFactory[PayloadT] | None = None
    """None if the batch is already in the table: then the tasks write nothing."""
    content: ContentT | None = None
    """Content of the manifest without the payloads; None if `writers` is None."""
    run_id: str = ""
    """Only set for a batch write; the tasks of a stream know their run."""
    event_time: str | None = None
    """The column with the event time of the rows, if the query has the option `eventTime`."""
    digest_before: str | None = None
    """Digest of the batch before, from the checkpoint; None if it is unknown or not needed."""

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

    def write(
        self, batches: Iterable[pa.RecordBatch], task: TaskAttempt
    ) -> CommittableMessage[PayloadT, ContentT]:
        """Write one partition. See `write_partition`."""
        attempt = AttemptId(
            query_id=self.batch.stream.query_id,
            run_id=self.run_id or task.run_id,
            batch_id=self.batch.batch_id,
            partition=task.partition,
            attempt=task.attempt,
        )
        events = OldestEvent(self.event_time)
        payload: PayloadT | None = None
        letters: tuple[DeadLetter, ...] = ()
        rows = 0  # counted only if there may be dead letters
        if self.writers is not None:
            observed = events.observe(in_utc(batches))
            writer, payload = write_partition(self.writers, attempt, observed, self.batch.stream)
            if isinstance(writer, BadRowWriter):
                letters, rows = writer.dead_letters, writer.rows
        committable = Committable(
            batch=self.batch,
            run_id=attempt.run_id,
            partition=task.partition,
            attempt=task.attempt,
            payload=payload,
            oldest_event_at=events.at,
            dead_letters=letters,
            rows=rows,
        )
        return CommittableMessage(committable, self.content, self.digest_before)
