"""Writes in a function of `foreachBatch`, without a running Spark: the data source, and what is refused."""

from __future__ import annotations

import json
import pickle
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType
from tests.support.lakes import DeltaLake

import penstock
from penstock import CheckpointMismatchError, ConfigurationError, PenstockError
from penstock.committers.store.sql import open_store
from penstock.datasource.planning.plan_cache import PLANS
from penstock.datasource.spark import foreach_batch
from penstock.datasource.spark.calling_batch import OPTION, CallingBatch
from penstock.datasource.spark.foreach_batch import Target, Written
from penstock.datasource.spark.foreach_writer import ForeachWriter
from penstock.datasource.spark.task import TaskAttempt

QUERY = "11111111-1111-1111-1111-111111111111"
SCHEMA = StructType([StructField("id", LongType())])


@dataclass
class Function:
    """A function of `foreachBatch`, with the processes of Spark that its writes take."""

    root: Path
    name: str = "t"
    run: int = 1

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def table(self) -> DeltaLake:
        return DeltaLake(self.root / self.name)

    def into(self, name: str) -> Function:
        return replace(self, name=name)

    def starts(self, batch_id: int, offset: int | None = None) -> None:
        """Spark logs the offsets of the batch."""
        for number in range(batch_id + 1):
            log = self.checkpoint / "offsets" / str(number)
            log.parent.mkdir(parents=True, exist_ok=True)
            if number == batch_id or not log.exists():
                log.write_text(f"v1\n{{}}\n{number if offset is None else offset}")
        (self.checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))

    def plan(self, batch_id: int, *, overwrite: bool = False, **options: str) -> ForeachWriter:
        called = CallingBatch(QUERY, f"run-{self.run}", batch_id)
        given = {"path": str(self.root / self.name), "checkpointlocation": str(self.checkpoint), **options}
        source = penstock.DeltaDataSource({**given, OPTION: called.encoded()})
        writer = source.writer(SCHEMA, overwrite)
        assert isinstance(writer, ForeachWriter)
        return writer

    def write(self, batch_id: int, *ids: int, overwrite: bool = False, **options: str) -> None:
        planned = pickle.dumps(self.plan(batch_id, overwrite=overwrite, **options))
        plan = pickle.loads(planned)._writer._plan
        task = TaskAttempt(0, 0, "job group of the user", QUERY, batch_id)
        plan.check_task(task)
        rows = pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], names=["id"])
        message = pickle.loads(pickle.dumps(plan.write([rows], task)))
        pickle.loads(planned).commit([message])


@pytest.fixture
def function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Function:
    PLANS._entries.clear()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Function(tmp_path)


def test_a_repeated_write_adds_nothing(function: Function, tmp_path: Path) -> None:
    """It leaves no file with the options either."""
    function.starts(0)
    function.write(0, 1, 2)
    files = function.table.data_files()
    function.run = 2
    function.write(0, 1, 2)

    assert function.table.ids() == [1, 2]
    assert function.table.data_files() == files
    assert not list(tmp_path.glob("penstock-write-*"))


def test_the_run_of_the_query_is_recorded_whatever_job_group_the_function_sets(function: Function) -> None:
    """The names of files contain it: they must differ after a restart."""
    function.starts(0)
    function.write(0, 1)
    with open_store(f"sqlite:///{function.checkpoint}/penstock.sqlite") as store:
        (stream,) = store.streams()
        (record,) = store.history(stream.key, 1)

    assert (record.run_id, record.batch.batch_id) == ("run-1", 0)


def test_other_offsets_under_the_same_batch_id_are_refused(function: Function) -> None:
    function.starts(0)
    function.write(0, 1, 2)
    function.starts(0, offset=7)
    with pytest.raises(CheckpointMismatchError, match="committed from other source offsets"):
        function.write(0, 3)

    assert function.table.ids() == [1, 2]


@pytest.mark.parametrize(("query_id", "batch_id"), [(QUERY, 1), ("other", 0)])
def test_a_checkpoint_of_another_query_or_batch_is_refused(
    function: Function, query_id: str, batch_id: int
) -> None:
    """Before anything is recovered under the wrong name."""
    function.starts(0)
    (function.checkpoint / "metadata").write_text(json.dumps({"id": query_id}))
    with pytest.raises(CheckpointMismatchError, match="is not the directory that Spark uses"):
        function.plan(batch_id)

    assert not (function.checkpoint / "penstock.sqlite").exists()


def test_overwrite_replaces_all_rows_once(function: Function) -> None:
    """It needs no batch before."""
    for batch_id in (0, 2):
        function.starts(batch_id)
        function.write(batch_id, batch_id, overwrite=True)
        function.write(batch_id, 99, overwrite=True)

    assert function.table.ids() == [2]


@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
def test_a_batch_that_the_function_has_not_written_is_refused(function: Function, delivery: str) -> None:
    """A write may have failed in a function that went on. Another target has the batch."""
    other = function.into("other")
    function.starts(0)
    function.write(0, 0, delivery=delivery)
    for batch_id in (0, 1, 2):
        function.starts(batch_id)
        other.write(batch_id, batch_id, delivery=delivery)
    with pytest.raises(CheckpointMismatchError, match=r"batches up to 0 of the query .* not written"):
        function.write(2, 2, delivery=delivery)
    function.write(2, 2, delivery=delivery, newtarget="allow")
    with open_store(f"sqlite:///{function.checkpoint}/penstock.sqlite") as store:
        (stream,) = (one for one in store.streams() if one.key.table_uri.endswith("/t"))
        assert [record.batch.batch_id for record in store.history(stream.key, 9)] == [2, 0]


@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
def test_the_only_target_gets_each_batch_too(function: Function, delivery: str) -> None:
    function.starts(0)
    function.write(0, 0, delivery=delivery)
    function.starts(2)
    with pytest.raises(CheckpointMismatchError, match="function of foreachBatch has not written"):
        function.write(2, 2, delivery=delivery)
    function.write(2, 2, newtarget="allow")
    function.starts(3)
    function.write(3, 3, delivery=delivery)

    assert function.table.ids() == ([0, 2, 3] if delivery == "coupled" else [0, 2])


def test_other_targets_of_the_function_are_not_reported_as_left(
    function: Function, caplog: pytest.LogCaptureFixture
) -> None:
    for batch_id in (0, 1):
        function.starts(batch_id)
        for one in (function, function.into("other")):
            one.write(batch_id, batch_id)

    assert "no longer writes" not in caplog.text
    assert function.into("other").table.ids() == [0, 1]


def test_executors_get_no_options(function: Function) -> None:
    """They may be secrets. Tasks need those for files, which their plan has."""
    function.starts(0)
    writer = pickle.dumps(function.plan(0, store=f"sqlite:///{function.root}/secret.sqlite"))

    assert b"secret" not in writer


def test_the_batch_is_no_option_of_a_sink(function: Function) -> None:
    """It cannot be given by accident: then the rows would get the token of another batch."""
    function.starts(0)
    source = penstock.DeltaDataSource({"path": "/t", "checkpointlocation": "/c", OPTION: "{}"})
    with pytest.raises(ConfigurationError, match=r"penstock\.foreachbatch is not an option"):
        source.streamWriter(SCHEMA, overwrite=False)


# A target has one write in a batch ------------------------------------------------------------------------


CALLED = CallingBatch(QUERY, "run-1", 7)


def test_a_second_write_to_a_target_is_refused_in_each_run() -> None:
    """After a crash between the two, the first one is skipped: the second would be lost with it."""
    written = Written()
    for called in (CALLED, replace(CALLED, run_id="run-2")):
        written.add(called, [Target("/t"), Target("/u")])
        written.add(called, [Target("/v")])
        with pytest.raises(ConfigurationError, match="batch 7 twice to /t"):
            written.add(called, [Target("/w"), Target("/t")])
        written.add(called, [Target("/w")])


@pytest.mark.parametrize("other", [replace(CALLED, batch_id=8), replace(CALLED, query_id="other")])
def test_each_batch_writes_its_targets(other: CallingBatch) -> None:
    written = Written()
    written.add(CALLED, [Target("/t")])
    written.add(other, [Target("/t")])


@pytest.mark.parametrize(
    ("one", "other", "may_be"),
    [
        (Target("/lake/a"), Target("/lake/{t}", is_template=True), True),
        (Target("/lake/{t}", is_template=True), Target("/LAKE/a"), True),
        (Target("/lake/{t}", is_template=True), Target("/lake/x/{t}", is_template=True), True),
        (Target("/lake/x/{t}", is_template=True), Target("/lake/{t}", is_template=True), True),
        (Target("/lake/x/{t}", is_template=True), Target("/lake/y/{t}", is_template=True), False),
        (Target("/lake/{t}", is_template=True), Target("/other"), False),
        (Target("/lake"), Target("/lake/a"), False),
        (Target("/lake/{t}"), Target("/lake/a"), False),
    ],
)
def test_a_table_that_rows_may_name_is_no_other_target(one: Target, other: Target, may_be: bool) -> None:
    assert one.may_be(other) is may_be


# Where it is called ---------------------------------------------------------------------------------------


def rows(properties: dict[str, str], *, is_streaming: bool = False, is_connect: bool = False) -> Any:
    context = SimpleNamespace(getLocalProperty=properties.get)
    session = SimpleNamespace(sparkContext=context, _sc=None if is_connect else context)
    return SimpleNamespace(sparkSession=session, isStreaming=is_streaming)


IN_BATCH_7 = {"sql.streaming.queryId": QUERY, "streaming.sql.batchId": "7"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (rows({}), "outside of a function of foreachBatch, or there in a thread"),
        (rows({"sql.streaming.queryId": QUERY}), "outside of a function of foreachBatch"),
        (rows({**IN_BATCH_7, "streaming.sql.batchId": "8"}), "with batch id 7, but Spark runs batch 8"),
        (rows(IN_BATCH_7, is_streaming=True), "with a streaming DataFrame"),
        (rows(IN_BATCH_7, is_connect=True), "does not work with Spark Connect"),
    ],
)
def test_a_wrong_call_is_refused(given: Any, says: str) -> None:
    write = penstock.foreach_batch("penstock.delta", path="/t", checkpointLocation="/c")
    with pytest.raises(ConfigurationError, match=says):
        write(given, 7)


def test_the_checkpoint_is_asked_for_if_spark_does_not_tell_it() -> None:
    with pytest.raises(ConfigurationError, match="Give it as an option of penstock"):
        penstock.foreach_batch("penstock.delta", path="/t")(rows(IN_BATCH_7), 7)


def test_a_temporary_checkpoint_is_refused() -> None:
    query = foreach_batch.RunningQuery("run", "", "/tmp/temporary-5f0f93bc-a18c-45ed-ba0c-fbbe1ca2ffc7")
    with pytest.raises(ConfigurationError, match="checkpointLocation is missing: Spark keeps a temporary"):
        query.options()
    assert replace(query, checkpoint="/c").options() == {"checkpointLocation": "/c"}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: penstock.foreach_batch("delta"), "no data source 'delta'. Known: penstock.delta"),
        (lambda: penstock.foreach_batch("penstock.delta", mode="error"), "must be append or overwrite"),
    ],
)
def test_an_unknown_format_or_mode_is_refused_at_once(call: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        call()


def test_options_are_texts_and_may_be_named_as_the_parameters() -> None:
    """`penstock.http` has an option `format`."""
    write = penstock.foreach_batch("penstock.http", {"mode": 1}, format="row", a=True, b=None)
    assert cast("Any", write).options == {"mode": "1", "format": "row", "a": "true"}


def test_a_task_of_another_batch_is_refused(function: Function) -> None:
    function.starts(0)
    plan = function.plan(0)._writer._plan
    assert plan is not None
    with pytest.raises(PenstockError, match="directory that Spark uses"):
        plan.check_task(TaskAttempt(0, 0, "", QUERY, 1))
