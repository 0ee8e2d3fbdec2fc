"""Streams into tables of both formats through a real Spark: modes, empty batches, failures, other writers."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.support.debezium_messages import from_kafka, postgres, row, texts
from tests.support.id_stream import IdStream
from tests.support.lakes import DeltaLake

from penstock.committers.contract import ManifestState
from penstock.committers.store.sql import open_store

pytestmark = pytest.mark.spark


def test_append_delivers_each_row_once(ids: IdStream) -> None:
    ids.add_files(4)
    ids.run(None, **{ids.table.partitioning: "day", "queryName": "append"})

    findings = ids.findings()
    assert (findings.rows, findings.problems, findings.orphans) == (400, [], 0)
    assert ids.commits() == 4
    assert {Path(path).parent.name for path in ids.data_files()} == {"day=d0", "day=d1"}


def test_a_restart_continues_at_its_offsets(delta_ids: IdStream) -> None:
    delta_ids.add_files(2)
    delta_ids.run()
    delta_ids.add_files(2)
    delta_ids.run()

    assert delta_ids.findings().rows == 400
    assert delta_ids.findings().problems == []


def test_complete_mode_replaces_all_rows_with_every_batch(ids: IdStream) -> None:
    ids.add_files(3)
    counts = ids.rows().groupBy("day").count()
    ids.writer(counts).outputMode("complete").start().awaitTermination()

    assert ids.read() == [("d0", 150), ("d1", 150)]
    assert ids.commits() == 3


def test_complete_mode_with_an_empty_result_empties_the_table(ids: IdStream) -> None:
    ids.add_files(1)
    counts = ids.rows().groupBy("day").count()
    ids.writer(counts).outputMode("complete").start().awaitTermination()
    ids.add_files(1)
    ids.writer(counts.where("count > 1000")).outputMode("complete").start().awaitTermination()

    assert ids.read() == []


def test_update_mode_is_refused(delta_ids: IdStream) -> None:
    delta_ids.add_files(1)
    query = delta_ids.writer(delta_ids.rows().groupBy("day").count()).outputMode("update").start()
    with pytest.raises(Exception, match="does not support Update mode"):
        query.awaitTermination()
    assert not delta_ids.table.folder.exists()


def test_continuous_trigger_fails_loudly(spark: SparkSession, delta_ids: IdStream) -> None:
    """Spark accepts it and never calls `write`: without the check every row would be lost silently."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    query = delta_ids.writer(rows).trigger(continuous="1 second").start()
    with pytest.raises(Exception, match="continuous mode"):
        query.awaitTermination(60)


def test_empty_batches_add_no_commit(ids: IdStream) -> None:
    ids.add_files(3)
    ids.run(ids.rows().where("id >= 200"))

    assert ids.commits() == 1
    with open_store(ids.store_url) as store:
        history = store.history(store.streams()[0].key, 10)
    assert [(record.batch.batch_id, record.rows) for record in history] == [(2, 100), (1, 0), (0, 0)]
    assert {record.state for record in history} == {ManifestState.COMMITTED}


def test_a_failing_task_leaves_no_files_and_no_rows(spark: SparkSession, ids: IdStream) -> None:
    ids.add_files(1)
    fail_late = f.udf(_fail_at_90, "long")
    message = ids.fails_with(ids.rows().coalesce(1).withColumn("id", fail_late("id")))

    assert "ninety" in message
    assert ids.data_files() == set()
    ids.run()
    assert ids.findings().rows == 100
    assert ids.findings().problems == []


def _fail_at_90(number: int) -> int:
    if number == 90:
        raise ValueError("ninety")
    return number


def test_null_in_a_not_null_column_stops_the_query(spark: SparkSession, ids: IdStream) -> None:
    day = pa.field("day", pa.string(), nullable=False)
    ids.table.create(pa.schema([("id", pa.int64()), day]))
    ids.add_files(1)
    message = ids.fails_with(ids.rows().withColumn("day", f.expr("if(id = 7, null, day)")))

    assert "SchemaMismatchError" in message
    assert "day" in message
    assert ids.data_files() == set()


def test_stop_during_commit_loses_and_doubles_nothing(delta_ids: IdStream) -> None:
    """`stop` waits for a commit that is under way, and Spark replays the batch at the next start."""
    delta_ids.add_files(2)
    delta_ids.run()
    delta_ids.add_files(2)
    with open_store(delta_ids.store_url) as store, store.engine.connect() as connection:
        lock = connection.connection.cursor()
        lock.execute("BEGIN IMMEDIATE")
        query = delta_ids.start()
        wait_until(lambda: len(delta_ids.data_files()) > 2)
        time.sleep(0.5)
        stopping = threading.Thread(target=query.stop)
        stopping.start()
        time.sleep(0.5)
        lock.execute("ROLLBACK")
        stopping.join(60)
    delta_ids.run()

    assert delta_ids.findings().rows == 400
    assert delta_ids.findings().problems == []


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_two_queries_write_one_table(ids: IdStream) -> None:
    """Each has its own query id, so that their batch ids are independent."""
    ids.add_files(3)
    first = ids.start(ids.rows().where("id % 2 = 0"))
    second = ids.start(ids.rows().where("id % 2 = 1"), checkpointLocation=str(ids.root / "second"))
    first.awaitTermination()
    second.awaitTermination()

    assert ids.findings().rows == 300
    assert ids.findings().problems == []


def test_foreign_appends_during_the_stream_are_kept(ids: IdStream) -> None:
    ids.add_files(6)
    foreign = "SELECT (1000000 + i)::BIGINT AS id, 'd9' AS day FROM range(20) t(i)"
    rows = duckdb.sql(foreign).arrow().read_all()
    query = ids.start()
    appended = 0
    while query.isActive:
        if ids.data_files():
            ids.table.append_rows(rows.slice(appended % 20, 1))
            appended += 1
        time.sleep(0.1)
    query.awaitTermination()

    written = [number for (number,) in ids.read("id")]
    assert appended > 0
    assert written[600:] == sorted(1_000_000 + number % 20 for number in range(appended))
    assert written[:600] == list(range(600))


def test_schema_evolution_adds_columns_that_older_rows_have_as_null(ids: IdStream) -> None:
    ids.add_files(1)
    ids.run()
    ids.add_files(1)
    more = ids.rows().withColumn("half", f.col("id") / 2)
    assert "schemaEvolution" in ids.fails_with(more)
    ids.run(more, schemaEvolution="addColumns")

    halves = [half for _, half in ids.read("id, half")]
    assert halves == [None] * 100 + [i / 2 for i in range(100, 200)]
    assert ids.findings().problems == []


@pytest.mark.slow
def test_a_column_that_becomes_wider_in_spark_is_widened_or_quarantined(
    ids: IdStream, tmp_path: Path
) -> None:
    """A stream goes on from its checkpoint with a wider column and a new one."""
    ids.add_files(1)
    ids.run(ids.rows().selectExpr("id", "cast(id AS INT) AS n"))
    ids.add_files(1)
    wider = ids.rows().selectExpr(
        "id", "id + if(id = 150, 1L << 40, 0) AS n", "if(id = 160, 'x', NULL) AS new"
    )
    assert "'n' is int" in ids.fails_with(wider, schemaEvolution="addColumns")
    letters = {"badRows": "deadLetter", "deadLetter": str(tmp_path / "refused")}
    ids.run(wider, schemaEvolution="quarantine", **letters)
    assert [row[0] for row in ids.read("id")] == [n for n in range(200) if n not in (150, 160)]
    found = DeltaLake(tmp_path / "refused").rows("row, code")
    assert sorted((json.loads(str(row))["id"], code) for row, code in found) == [
        (150, "does_not_fit"),
        (160, "new_shape"),
    ]

    ids.add_files(1)
    widening = {"typeWidening": "true"} if isinstance(ids.table, DeltaLake) else {}
    ids.run(wider.selectExpr("id", "n + (1L << 40) AS n", "new"), schemaEvolution="evolve", **widening)
    assert ids.read("max(n), count(*), count(new)") == [(2**40 + 299, 298, 0)]


def test_options_are_refused_together_before_any_file_is_written(delta_ids: IdStream) -> None:
    delta_ids.add_files(1)
    message = delta_ids.fails_with(targetFileSize="big", partitionsBy="day")

    assert "targetFileSize='big'" in message
    assert "Did you mean partitionBy?" in message
    assert not delta_ids.table.folder.exists()


def test_a_checkpoint_that_spark_keeps_to_itself_is_refused(spark: SparkSession, delta_ids: IdStream) -> None:
    delta_ids.add_files(1)
    writer = delta_ids.rows().writeStream.format("penstock.delta").options(**delta_ids.table.options)
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(delta_ids.checkpoint))
    try:
        with pytest.raises(Exception, match="checkpointLocation is missing"):
            writer.trigger(availableNow=True).start().awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_relative_paths_are_those_of_the_driver(ids: IdStream) -> None:
    ids.add_files(1)
    ids.run(None, **{ids.table.place: os.path.relpath(ids.table.options[ids.table.place])})

    assert ids.findings().rows == 100


@pytest.mark.slow
@pytest.mark.parametrize("form", ["value", "columns"])
def test_messages_of_debezium_change_the_rows_of_a_table(
    spark: SparkSession, tmp_path: Path, delta_table: DeltaLake, form: str
) -> None:
    """The rows of a Kafka source, and those of a query that parses them itself."""
    batches = [
        [postgres("c", 10, after=row(1, "a")), postgres("c", 11, after=row(2, "b")), None],
        [postgres("u", 20, row(1, None), row(3, "A")), postgres("d", 21, row(2, None)), None],
    ]
    (source := tmp_path / "messages").mkdir()
    for number, messages in enumerate(batches):
        path = source / f"{number}.parquet"
        pq.write_table(from_kafka(texts(messages)).drop_columns(["key"]), path)
        os.utime(path, (1_700_000_000 + number,) * 2)  # Spark reads files in the order of their age
    schema = (
        "value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
    )
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    options = {"valueColumns": "id BIGINT, name STRING"}
    if form == "columns":
        message = (
            "before STRUCT<id: BIGINT, name: STRING>, after STRUCT<id: BIGINT, name: STRING>, op STRING, "
            "source STRUCT<lsn: BIGINT, snapshot: STRING, ts_ms: BIGINT>"
        )
        parsed = f.from_json(f.col("value").cast("string"), message)
        rows = rows.select("value", "offset", parsed.alias("message")).select("value", "offset", "message.*")
        options = {}
    stream = rows.writeStream.format("penstock.delta").options(**options, **delta_table.options)
    stream = stream.options(writeMode="upsert", keys="id", changes="debezium")
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream.trigger(availableNow=True).start().awaitTermination()
    assert delta_table.rows("*") == [(3, "A")]
