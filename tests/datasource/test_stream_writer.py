"""What the stream writer refuses, without a running Spark."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql.datasource import WriterCommitMessage

from penstock import DeltaDataSource, LakeDataSource, PenstockError
from penstock.committers.contract import Batch, Committable, StreamKey
from penstock.datasource.committing import checked_committables
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.mysql.source import MySqlDataSource
from penstock.datasource.planning.batch_plan import BatchPlan, CommittableMessage
from penstock.datasource.query import Query
from penstock.datasource.spark.base_source import PenstockDataSource
from penstock.datasource.spark.stream_writer import StreamWriter
from penstock.datasource.spark.task import TaskAttempt

BATCH = Batch(StreamKey("q", "/t"), 7, "d1")


@pytest.mark.parametrize("messages", [[], [None, None], [WriterCommitMessage()]])
def test_no_committables_are_an_error(tmp_path: Path, messages: list[WriterCommitMessage | None]) -> None:
    """So does Spark's continuous mode commit, which never calls `write`."""
    options = DeltaOptions(path=str(tmp_path / "t"), checkpoint_location=str(tmp_path))
    writer = StreamWriter(Query.of(DeltaSink(options)), plan=None)

    with pytest.raises(PenstockError, match="continuous mode"):
        writer.commit(messages, 0)


def test_a_pickled_source_commits_and_does_not_plan() -> None:
    """Spark pickles the source only to commit: planning there would do all the work twice."""
    source = DeltaDataSource({"path": "/t"})
    copy = pickle.loads(pickle.dumps(source))

    assert (source._plans, copy._plans) == (True, False)


def test_a_stream_writer_that_was_pickled_does_not_commit(tmp_path: Path) -> None:
    """It was on its way to executors, and has no credentials of the catalog."""
    options = DeltaOptions(path=str(tmp_path / "t"), checkpoint_location=str(tmp_path))
    writer = pickle.loads(pickle.dumps(StreamWriter(Query.of(DeltaSink(options)), plan=None)))

    with pytest.raises(PenstockError, match="shipped to executors"):
        writer.commit([message(0)], 7)


@pytest.mark.parametrize(
    ("source", "readers"),
    [
        (LakeDataSource, "DuckDB, Polars"),
        (MySqlDataSource, "SQL, or from Spark with spark.read.jdbc"),
    ],
)
def test_reading_is_refused_with_what_to_read_by(source: type[PenstockDataSource], readers: str) -> None:
    """Spark asks for the schema first."""
    with pytest.raises(PenstockError, match=f"{source.name()} writes tables but .* them with .*{readers}"):
        source({}).schema()


def task(query_id: str = "q", batch_id: int = 7) -> TaskAttempt:
    return TaskAttempt(partition=0, attempt=0, run_id="r", query_id=query_id, batch_id=batch_id)


@pytest.mark.parametrize("other", [task(query_id="other"), task(batch_id=8)])
def test_a_task_of_another_batch_than_planned_is_refused(other: TaskAttempt) -> None:
    """Its rows would be committed with the wrong token."""
    plan: BatchPlan = BatchPlan(BATCH)
    plan.check_task(task())

    with pytest.raises(PenstockError, match="directory that Spark uses"):
        plan.check_task(other)


def message(partition: int, run_id: str = "r", digest: str = "d1") -> CommittableMessage:
    batch = Batch(BATCH.stream, BATCH.batch_id, digest)
    return CommittableMessage(Committable(batch, run_id, partition, attempt=0, payload=()))


@pytest.mark.parametrize("other", [message(0), message(1, run_id="r2"), message(1, digest="d2")])
def test_tasks_that_do_not_agree_are_refused(other: CommittableMessage) -> None:
    assert len(checked_committables([message(0), message(1)])) == 2

    with pytest.raises(PenstockError, match="do not agree"):
        checked_committables([message(0), other])
