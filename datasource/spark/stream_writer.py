"""The stream writer, which Spark calls on the executors for every task and on the driver for every batch.

    planner process     streamWriter()     options, checkpoint, recovery, table -> BatchPlan
    executors           write(rows)        data files -> CommittableMessage
    commit process      commit(messages)   manifest -> prepare -> table commit -> mark
                        abort(messages)    delete files of a batch that did not reach its commit

There is no state on `self` between batches: each call is made on another object, mostly in another process.
See `pickling`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from ...committers.errors import PenstockError
from ..planning.batch_plan import BatchPlan, CommittableMessage, committables_in
from .pickling import NotPickled
from .spark_workers import freeze_loaded, loading_libraries, release_caches
from .task import current_task
from .worker_errors import message_first

if TYPE_CHECKING:
    import pyarrow as pa

    from ..query import Query


class StreamWriter:
    """Base of the stream writers for Arrow batches and for rows, which add only `write`.

    Args:
        plan: the plan of the batch; None in the commit process, which writes nothing
    """

    def __init__(self, query: Query, plan: BatchPlan | None) -> None:
        self._query = NotPickled(query)
        self._plan = plan

    @message_first()
    def write_batches(self, batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
        """Executor, once per task attempt: write the data files of one partition.

        Raises:
            SchemaMismatchError: a value does not fit its column. The task's files are deleted.
        """
        freeze_loaded()  # what the unpickled plan has loaded
        task = current_task()
        if self._plan is None:
            raise PenstockError(
                "This stream writer has no plan: Spark has shipped a writer meant for commits."
            )
        self._plan.check_task(task)
        message = self._plan.write(batches, task)
        release_caches()
        return message

    @message_first()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Driver, once per batch, when all tasks have succeeded."""
        with loading_libraries():
            from ..committing import commit_stream_batch

        commit_stream_batch(self._query.get(), _checked(messages, batchId))
        release_caches()

    @message_first()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Driver, when a task or `commit` has failed. Messages of failed tasks are None."""
        from ..committing import abort_batch
        from ..observing import tell_aborted
        from ..planning.plan import running_batch

        query, written = self._query.get(), committables_in(messages)
        tell_aborted(written, query.options, query.targets, lambda: running_batch(query))
        abort_batch(query, written)


def _checked(messages: Sequence[WriterCommitMessage | None], batch_id: int) -> list[CommittableMessage]:
    """Return the messages of the batch, one per task, after checking them.

    Spark accepts continuous mode for Python sinks but never calls `write`: its commits have no messages or
    None, and every row would silently be lost.
    """
    checked = [message for message in messages if isinstance(message, CommittableMessage)]
    if not checked or len(checked) < len(messages):
        raise PenstockError(
            f"Batch {batch_id} reached its commit although no task has written: Spark does not call Python "
            "sinks in continuous mode (Trigger.Continuous). Use trigger(processingTime=...) or "
            "trigger(availableNow=True)."
        )
    if any(message.committable.batch.batch_id != batch_id for message in checked):
        raise PenstockError(f"Spark commits batch {batch_id}, but its tasks wrote another batch.")
    return checked
