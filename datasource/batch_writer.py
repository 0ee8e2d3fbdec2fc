"""The writer of `df.write.format("penstock.…")`: one batch, by the same writers and committer.

Spark makes it on the driver, sends it to the executors, and unpickles it on the driver to commit. There is
no checkpoint and nothing to replay: a failed write leaves the table as it was, and is simply run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ..committers.errors import PenstockError
from .batch_plan import CommittableMessage, committables_in
from .gathering import gathered
from .sinks.sink import Sink
from .task import current_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class BatchWriter(DataSourceArrowWriter):
    """Append to a table, or replace its rows."""

    def __init__(self, sink: Sink[Any], schema: StructType, overwrite: bool) -> None:
        from .planning import plan_batch_write  # executors load this module, and must not load a database

        self._sink: Sink[Any] | None = sink
        self._plan = plan_batch_write(sink, schema, overwrite)
        self._is_shipped = False

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles a batch writer twice: inside the function for the executors, then by itself for the
        commit on the driver. Only the second has the sink, which may hold the catalog's credentials.
        """
        if self._is_shipped:
            return self.__dict__
        self._is_shipped = True
        return {**self.__dict__, "_sink": None}

    def _driver_side(self) -> Sink[Any]:
        if self._sink is None:
            raise PenstockError(
                "Spark commits with the batch writer that was meant for executors. Nothing was committed. "
                "This version of Spark pickles writers in another order than Penstock knows: please report "
                "it."
            )
        return self._sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Executor, once per task attempt: write the data files of one partition."""
        return self._plan.write(gathered(iterator), current_task())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Driver, once, when all tasks have succeeded."""
        from .committing import commit_batch_write

        commit_batch_write(self._driver_side(), [m for m in messages if isinstance(m, CommittableMessage)])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Driver, when a task or `commit` has failed. Messages of failed tasks are None."""
        from .committing import abort_batch

        abort_batch(self._driver_side(), committables_in(messages))
