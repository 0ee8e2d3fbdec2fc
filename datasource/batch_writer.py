"""The writer of `df.write.format("penstock.delta")`: one batch, by the same writers and committer.

Spark makes it on the driver, sends it to the executors, and unpickles it on the driver to commit. There is
no checkpoint and nothing to replay: a failed write leaves the table as it was, and is simply run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from .batch_plan import CommittableMessage
from .options import DeltaOptions
from .planning import plan_batch_write
from .task import current_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class DeltaBatchWriter(DataSourceArrowWriter):
    """Append to a Delta table, or replace its rows."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = DeltaOptions.parse(options)
        self._plan = plan_batch_write(self._options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Executor, once per task attempt: write the data files of one partition."""
        return self._plan.write(iterator, current_task())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Driver, once, when all tasks have succeeded."""
        from .committing import commit_batch_write

        commit_batch_write(self._options, [m for m in messages if isinstance(m, CommittableMessage)])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Driver, when a task or `commit` has failed. Messages of failed tasks are None.

        Without a failed task it was `commit` that failed: it may have landed, so nothing is deleted. What
        did not land is invisible, and the table's own VACUUM removes it.
        """
        from .committing import delete_unprepared

        if None in messages:
            delete_unprepared(self._options, [m for m in messages if isinstance(m, CommittableMessage)])
