"""A query with a new checkpoint on a table that an earlier query has written is noticed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType
from tests.support.cli import Ended
from tests.support.lakes import LAKES, LakeTable
from tests.support.query import Batches, Query

from penstock import CheckpointMismatchError
from penstock.committers.contract import Batch, StreamKey
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.committers.store.status import OtherQuery
from penstock.datasource.committing import commit_batch_write
from penstock.datasource.delta import sink as delta
from penstock.datasource.file_table import FileTableSink
from penstock.datasource.iceberg import sink as iceberg
from penstock.datasource.planning.plan import plan_batch, plan_batch_write, store_url
from penstock.datasource.query import Query as Written
from penstock.datasource.spark.checkpoint import STORE_FILE
from penstock.datasource.spark.task import TaskAttempt

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
SAME_CHECKPOINT = "of an earlier query with the same checkpoint directory"
SAME_NAME = "of an earlier query with the same name 'ids'"


@dataclass
class Queries:
    """Queries that write one table, each with its store in its checkpoint unless one is given."""

    lake: LakeTable
    folder: Path
    caplog: pytest.LogCaptureFixture

    def sink(self, checkpoint: str = "cp", **options: str) -> FileTableSink:
        (self.folder / checkpoint).mkdir(exist_ok=True)
        return self.lake.sink(checkpointLocation=str(self.folder / checkpoint), **options)

    def batches(self, query_id: str, checkpoint: str = "cp", **options: str) -> Batches:
        (self.folder / checkpoint).mkdir(exist_ok=True)
        given = {"checkpointLocation": str(self.folder / checkpoint), **options}
        return Batches(Query(self.lake, query_id, given))

    def run(self, query_id: str, **options: str) -> Batches:
        """The first batch of a query. Earlier warnings are cleared."""
        self.caplog.clear()
        batches = self.batches(query_id, **options)
        batches.run(ROWS)
        return batches

    @property
    def warned(self) -> str:
        return "\n".join(
            record.getMessage() for record in self.caplog.records if record.name.endswith("new_query")
        )


@pytest.fixture(params=["delta", "iceberg"])
def queries(request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Queries:
    caplog.set_level(logging.WARNING)
    return Queries(LAKES[request.param](tmp_path), tmp_path, caplog)


# What is noticed --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"checkpoint": "cp"}, SAME_CHECKPOINT),
        ({"checkpoint": "other", "queryName": "ids"}, SAME_NAME),
        ({"checkpoint": "cp", "queryName": "ids"}, SAME_CHECKPOINT),
    ],
)
def test_the_table_alone_notices_a_new_query(queries: Queries, second: dict[str, str], says: str) -> None:
    """The store was deleted with the checkpoint. By default the query is warned, once, and goes on."""
    queries.run("q1", queryName="ids").run(ROWS)
    assert not queries.warned
    shutil.rmtree(queries.folder / "cp")

    stream = queries.run("q2", **second)
    assert says in queries.warned
    assert "The query q2 is new" in queries.warned
    assert queries.lake.count() == 9

    queries.caplog.clear()
    stream.run(ROWS)
    assert not queries.warned


def test_it_is_refused_on_request_before_anything_is_written(queries: Queries) -> None:
    queries.run("q1")
    shutil.rmtree(queries.folder / "cp")
    files, version = queries.lake.data_files(), queries.lake.version()

    with pytest.raises(CheckpointMismatchError, match=f"{SAME_CHECKPOINT}.* Nothing was written.*newQuery"):
        queries.run("q2", newQuery="refuse")
    assert queries.lake.data_files() == files
    assert queries.lake.version() == version

    queries.run("q2", newQuery="allow")
    assert not queries.warned
    assert queries.lake.count() == 6


def test_refuse_needs_a_name_since_the_next_checkpoint_may_be_another_directory(queries: Queries) -> None:
    with pytest.raises(
        CheckpointMismatchError, match=r"newQuery=refuse needs the name.* Nothing was written"
    ):
        queries.run("q1", newQuery="refuse")
    queries.run("q1", newQuery="refuse", queryName="ids")
    with pytest.raises(CheckpointMismatchError, match=SAME_NAME):
        queries.run("q2", checkpoint="other", newQuery="refuse", queryName="ids")
    assert queries.lake.count() == 3


def test_a_query_that_has_begun_is_not_refused(queries: Queries) -> None:
    queries.run("q1")
    shutil.rmtree(queries.folder / "cp")
    stream = queries.run("q2")
    stream.query = stream.query.with_options(newQuery="refuse")
    stream.run(ROWS)
    assert queries.lake.count() == 9

    query = stream.query
    with open_store(store_url(query.sink().options)) as store:  # a replay
        assert query.plan(store, query.batch(0)).writers is None


@pytest.mark.parametrize(
    ("second", "says"),
    [({"checkpoint": "cp"}, SAME_CHECKPOINT), ({"checkpoint": "other", "queryName": "ids"}, SAME_NAME)],
)
def test_a_shared_store_notices_a_new_query(
    queries: Queries, store_url: str, monkeypatch: pytest.MonkeyPatch, second: dict[str, str], says: str
) -> None:
    """Also if an earlier release without origins has written the table. The store has the id."""
    with monkeypatch.context() as patched:
        for module in (delta, iceberg):
            patched.setattr(module, "origins_of", lambda _: ())
        queries.run("q1", queryName="ids", store=store_url)

    queries.run("q2", store=store_url, **second)
    assert f"{says}" in queries.warned
    assert "(query id 'q1')" in queries.warned


def test_batches_that_wait_for_their_delivery_count(queries: Queries, store_url: str) -> None:
    queries.run("q1", store=store_url, delivery="decoupled")
    queries.run("q2", store=store_url, delivery="decoupled")
    assert SAME_CHECKPOINT in queries.warned

    with pytest.raises(CheckpointMismatchError):
        queries.run("q3", store=store_url, delivery="decoupled", newQuery="refuse")


def test_a_delivery_notes_where_its_query_comes_from(queries: Queries) -> None:
    stream = queries.run("q1", delivery="decoupled")
    stream.run(ROWS)
    assert Ended("deliver", "--once", "--checkpoint", str(queries.folder / "cp")).code == 0
    shutil.rmtree(queries.folder / "cp")

    queries.run("q2")
    assert SAME_CHECKPOINT in queries.warned


@pytest.mark.parametrize("location", ["file://{}/cp/", "file:{}/cp", "{}/x/../cp"])
def test_a_checkpoint_is_known_in_every_notation(queries: Queries, location: str) -> None:
    queries.run("q1")
    shutil.rmtree(queries.folder / "cp")
    queries.run("q2", checkpointLocation=location.format(queries.folder))

    assert SAME_CHECKPOINT in queries.warned


# No warning -------------------------------------------------------------------------------------------


def empty(lake: LakeTable) -> None:
    lake.load().delete()


@pytest.mark.parametrize(
    "change",
    [lambda lake: lake.drop(), lambda lake: lake.replace(), empty],
    ids=["dropped", "replaced", "emptied"],
)
def test_no_warning_without_the_earlier_rows(
    queries: Queries, store_url: str, change: Callable[[LakeTable], None]
) -> None:
    queries.run("q1", store=store_url, queryName="ids")
    change(queries.lake)
    queries.run("q2", store=store_url, queryName="ids", newQuery="refuse")

    assert not queries.warned


def test_no_warning_for_several_queries_that_write_one_table(queries: Queries, store_url: str) -> None:
    queries.run("q1", checkpoint="a", store=store_url)
    queries.run("q2", checkpoint="b", store=store_url)
    assert not queries.warned
    queries.run("q3", checkpoint="c", store=store_url, queryName="c")
    assert not queries.warned
    queries.run("q4", checkpoint="d", store=store_url, queryName="d")
    assert not queries.warned


def test_no_warning_after_a_batch_write_with_the_same_name_and_checkpoint(queries: Queries) -> None:
    sink = queries.sink(queryName="ids")
    plan = plan_batch_write(sink, StructType([StructField("id", LongType())]), overwrite=False)
    task = TaskAttempt(partition=0, attempt=0, run_id="", query_id="", batch_id=None)
    commit_batch_write(sink, [plan.write(ROWS.to_batches(), task)])

    queries.run("q1", queryName="ids", newQuery="refuse")
    assert not queries.warned
    assert queries.lake.count() == 6


@pytest.mark.parametrize("is_store_lost", [False, True])
def test_no_warning_for_a_checkpoint_that_was_given_a_new_query_id(
    queries: Queries, is_store_lost: bool
) -> None:
    """`penstock reset-query-id`: the query goes on, in the same table, at the batch where it was."""
    queries.run("q1")
    if is_store_lost:
        (queries.folder / "cp" / STORE_FILE).unlink()
    renewed = queries.batches("q2", newQuery="refuse")
    renewed.next_batch = 1
    renewed.run(ROWS)
    assert not queries.warned


def test_no_warning_where_each_batch_replaces_the_table(queries: Queries) -> None:
    queries.run("q1")
    shutil.rmtree(queries.folder / "cp")
    query = Written.of(queries.sink(newQuery="refuse", queryName="ids"))
    with open_store(store_url(query.options)) as store:
        batch = Batch(StreamKey("q2", query.address), 0, "0" * 64)
        assert plan_batch(query, store, batch, ROWS.schema, overwrite=True).writers is not None


def test_no_warning_after_an_iceberg_rollback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queries = Queries(LAKES["iceberg"](tmp_path), tmp_path, caplog)
    queries.run("other", checkpoint="other")
    version = queries.lake.version()
    queries.run("q1")
    shutil.rmtree(tmp_path / "cp")
    queries.lake.go_back(version)

    queries.run("q2", newQuery="refuse", queryName="ids")
    assert not queries.warned


# Costs ------------------------------------------------------------------------------------------------


def test_only_the_first_batch_is_checked(queries: Queries, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = queries.run("q1")
    committer = type(stream.query.target())
    asked: list[str] = []

    def other_queries(*_: object) -> list[OtherQuery]:
        asked.append("store")
        return []

    monkeypatch.setattr(committer, "recorded_origin", lambda *_: asked.append("table"))
    monkeypatch.setattr(SqlManifestStore, "other_queries", other_queries)
    stream.run(ROWS)
    assert not asked
    queries.run("q2", checkpoint="other")
    assert asked == ["store", "table"]
