"""The writer of a batch that a function of `foreachBatch` writes: planned and committed as in a stream.

Spark handles it as a batch write: it creates the writer on the driver, sends it to the executors, and
unpickles it in another driver process to commit. See `pickling`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from .coalescing import coalesced
from .pickling import DriverOnly
from .stream_writer import StreamWriter
from .worker_errors import message_first

if TYPE_CHECKING:
    import pyarrow as pa

    from ..planning.batch_plan import BatchPlan
    from ..query import Query


class MakesQuery(Protocol):
    """A data source with options."""

    def query(self) -> Query: ...


class ForeachWriter(DataSourceArrowWriter):
    """Writes one batch into all targets of a data source, exactly once per (query, batch).

    Args:
        source: the class of the data source
        options: those that the user gave, which may be secrets
        query: made of both
    """

    def __init__(
        self,
        source: Callable[[dict[str, str]], MakesQuery],
        options: Mapping[str, str],
        query: Query,
        plan: BatchPlan,
    ) -> None:
        self._source = DriverOnly((source, dict(options)))
        self._writer = StreamWriter(query, plan)
        self._batch_id = plan.batch.batch_id

    @message_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Executor, once per task attempt. See `StreamWriter`."""
        return self._writer.write_batches(coalesced(iterator))

    @message_first()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Driver, once, when all tasks have succeeded. See `StreamWriter`."""
        self._committing().commit(messages, self._batch_id)
        self._source.forget()

    @message_first()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Driver, when a task or `commit` has failed. Messages of failed tasks are None."""
        try:
            self._committing().abort(messages, self._batch_id)
        finally:
            self._source.forget()

    def _committing(self) -> StreamWriter:
        source, options = self._source.get()
        return StreamWriter(source(options).query(), plan=None)
