"""The running task attempt, from Spark's TaskContext. Executors only."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import TaskContext

from ...committers.errors import PenstockError


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """One attempt of one task; `attempt` is unique within the Spark application."""

    partition: int
    attempt: int
    run_id: str
    """The run of the streaming query, new at every start. Empty in a batch write."""
    query_id: str
    batch_id: int | None


def current_task() -> TaskAttempt:
    """Return the running task attempt."""
    context = TaskContext.get()
    if context is None:
        raise PenstockError("write() was called outside a Spark task.")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    return TaskAttempt(
        partition=context.partitionId(),
        attempt=context.taskAttemptId(),
        run_id=context.getLocalProperty("spark.jobGroup.id") or "",
        query_id=context.getLocalProperty("sql.streaming.queryId") or "",
        batch_id=int(batch_id) if batch_id is not None else None,
    )
