"""The writer of `df.write.format("penstock.…")`: one batch, with the writers and committers of streams.

Spark creates it on the driver, sends it to the executors, and unpickles it in another driver process to
commit. See `pickling`. There is no checkpoint and no replay: a failed write leaves the table unchanged and
can be run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ..planning.batch_plan import CommittableMessage, committables_in
from ..sink import Sink
from .coalescing import coalesced
from .pickling import DriverOnly
from .task import current_task
from .worker_errors import message_first

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class BatchWriter(DataSourceArrowWriter):
    """Append to a table, or replace its rows."""

    def __init__(self, sink: Sink[Any, Any], schema: StructType, overwrite: bool) -> None:
        # not at the top: executors import this module, and must not load a database driver
        from ..planning.plan import plan_batch_write

        self._plan = plan_batch_write(sink, schema, overwrite)
        self._sink = DriverOnly(sink)

    @message_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Executor, once per task attempt: write the data files of one partition."""
        return self._plan.write(coalesced(iterator), current_task())

    @message_first()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Driver, once, when all tasks have succeeded."""
        from ..committing import commit_batch_write

        commit_batch_write(self._sink.get(), [m for m in messages if isinstance(m, CommittableMessage)])
        self._sink.forget()

    @message_first()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Driver, when a task or `commit` has failed. Messages of failed tasks are None."""
        from ..committing import abort_batch
        from ..observing import tell_aborted
        from ..query import Query

        try:
            query, written = Query.of(self._sink.get()), committables_in(messages)
            tell_aborted(written, query.options, query.targets, lambda: self._plan.batch)
            abort_batch(query, written)
        finally:
            self._sink.forget()
