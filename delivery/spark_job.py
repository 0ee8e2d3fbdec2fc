"""Runs work of the delivery process as a Spark job."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from .context import OpenSpark

SparkTask: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Takes and returns pickled values, see `given` and `returned`. Can be pickled."""

TASKS_MAX = 10_000
"""Maximum number of tasks in one Spark job."""


def run_job(open_spark: OpenSpark, task: SparkTask, values: Sequence[object]) -> list[Any]:
    """Return what the tasks return for the values, in any order. Works with Spark Connect too.

    The values are distributed round robin from one partition, so that no task gets several by chance.

    Raises:
        Exception: any error of Spark.
    """
    tasks = min(len(values), TASKS_MAX)
    pickled = [(pickle.dumps(value),) for value in values]
    frame = open_spark().createDataFrame(pickled, "data binary").coalesce(1).repartition(tasks)
    done = frame.mapInArrow(task, "data binary").collect()
    return [pickle.loads(row["data"]) for row in done]  # noqa: S301  from our own tasks


def in_short(error: Exception) -> str:
    """Return the first line of an error of Spark."""
    return next(iter(str(error).splitlines()), type(error).__name__)


# In the tasks -------------------------------------------------------------------------------------


def given(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    """Yield the values that a task gets."""
    for batch in batches:
        for pickled in batch.column(0).to_pylist():
            yield pickle.loads(pickled)  # noqa: S301  from our own driver


def returned(value: object) -> pa.RecordBatch:
    """Return what a task yields for a value."""
    return pa.record_batch([pa.array([pickle.dumps(value)], pa.binary())], ["data"])
