"""`penstock.foreach_batch` through a real Spark: several writes of a batch, each exactly once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from servers.http_rows import HttpRows, http_rows
from tests.support.cli import Ended
from tests.support.driver_process import SUBMIT_ARGS
from tests.support.id_stream import forget_commit, read_ids, write_ids, write_source
from tests.support.lakes import DeltaLake, IcebergLake, LakeTable, delta_lake, iceberg_lake, rows

import penstock
from penstock import testing
from penstock.committers.store.sql import open_store
from penstock.committers.store.status import StreamStatus

pytestmark = pytest.mark.spark

NOT_NULL = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string())])

Process: TypeAlias = Callable[[DataFrame, int], None]


@dataclass
class Stream:
    """A query of ids, a file a batch, with a function."""

    spark: SparkSession
    root: Path
    source: Path
    options: dict[str, str] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    def run(
        self, process: Process, mode: str = "append", of: Callable[[DataFrame], DataFrame] = lambda ids: ids
    ) -> None:
        ids = of(read_ids(self.spark, self.source))
        writer = ids.writeStream.queryName("ids").outputMode(mode).foreachBatch(process)
        writer = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()

    def fails_with(self, process: Process, **options: Any) -> Exception:
        with pytest.raises(Exception) as failure:
            self.run(process, **options)
        return failure.value

    def into(self, table: LakeTable, **options: Any) -> Any:
        return penstock.foreach_batch(table.source, {**table.options, **self.options}, **options)

    def streams(self) -> list[StreamStatus]:
        with open_store(f"sqlite:///{self.checkpoint}/penstock.sqlite") as store:
            return list(store.streams())


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path, source: Path) -> Stream:
    return Stream(spark, tmp_path, source)


@pytest.fixture
def ice(tmp_path: Path) -> IcebergLake:
    return iceberg_lake(tmp_path / "ice")


def test_a_write_given_to_foreach_batch_itself_is_a_sink(stream: Stream, delta_table: DeltaLake) -> None:
    """Also for `penstock status`, and a repeated batch writes no file."""
    write = stream.into(delta_table)
    stream.run(write)
    files = delta_table.data_files()
    forget_commit(stream.checkpoint, 2)
    stream.run(write)

    assert delta_table.data_files() == files
    source = f"read_parquet('{stream.source}/*.parquet')"
    found = testing.check(delta_table, source, store=stream.checkpoint)
    assert (found.problems, found.rows) == ([], 300)
    (status,) = stream.streams()
    assert (status.query_name, status.key.table_uri) == ("ids", delta_table.options["path"])
    assert str(stream.checkpoint) in status.settings


def test_a_failure_between_two_writes_neither_loses_nor_doubles_rows(
    stream: Stream, delta_table: DeltaLake, ice: IcebergLake
) -> None:
    write, audit = stream.into(delta_table), stream.into(ice, partitionSpec="day")
    failed: list[int] = []

    def process(ids: DataFrame, batch_id: int) -> None:
        write(ids.withColumn("twice", f.col("id") * 2).repartition(3), batch_id)
        if batch_id == 1 and not failed:
            failed.append(batch_id)
            raise RuntimeError("between two writes")
        audit(ids.where("id % 10 = 0"), batch_id)

    assert "between two writes" in str(stream.fails_with(process))
    assert (delta_table.count(), ice.count()) == (200, 10)
    stream.run(process)

    assert rows(delta_table, "id, twice") == [(number, number * 2) for number in range(300)]
    assert ice.ids() == list(range(0, 300, 10))
    assert {status.query_name for status in stream.streams()} == {"ids"}
    assert [len(status.key.query_id) for status in stream.streams()] == [36, 36]


def test_two_writes_to_one_target_are_an_error_and_lose_nothing_in_silence(
    stream: Stream, delta_table: DeltaLake
) -> None:
    """The first one is committed before: its repetition is not taken for the second one's."""
    write, again = stream.into(delta_table), stream.into(delta_table)

    def process(ids: DataFrame, batch_id: int) -> None:
        write(ids.where("id % 2 = 0"), batch_id)
        again(ids.where("id % 2 = 1"), batch_id)

    for _ in range(2):
        failure = stream.fails_with(process)
        error = penstock.error_of(failure)
        assert isinstance(error, penstock.ConfigurationError)
        assert "batch 0 twice to" in str(error)
        assert delta_table.ids() == list(range(0, 100, 2))

    def joined(ids: DataFrame, batch_id: int) -> None:
        write(ids.where("id % 2 = 0").unionByName(ids.where("id % 2 = 1")), batch_id)

    stream.run(joined)
    assert delta_table.ids() == [*range(0, 100, 2), *range(100, 300)]


def test_an_error_of_the_table_has_its_own_class(stream: Stream, delta_table: DeltaLake) -> None:
    stream.run(stream.into(delta_table))
    write_ids(stream.source / "9.parquet", range(1000, 1001), 9)
    write = stream.into(delta_table)
    failure = stream.fails_with(lambda ids, batch_id: write(ids.select(f.col("id").cast("string")), batch_id))

    assert isinstance(penstock.error_of(failure), penstock.SchemaMismatchError)


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
def test_an_aggregation_in_update_mode_writes_each_change_once(
    stream: Stream, delta_table: DeltaLake, write_mode: str
) -> None:
    """Appended, or in the place of the row of its group."""
    if write_mode == "upsert":
        stream.options = {"writeMode": "upsert", "keys": "day"}
    write = stream.into(delta_table)

    def counts(ids: DataFrame) -> DataFrame:
        return ids.groupBy("day").count().selectExpr("count AS id", "day")

    stream.run(write, "update", counts)
    forget_commit(stream.checkpoint, 2)
    write_ids(stream.source / "9.parquet", range(1000, 1010), 9)
    stream.run(write, "update", counts)

    changes = [(number, day) for number in (50, 100, 150, 155) for day in ("d0", "d1")]
    assert rows(delta_table, "id, day") == (changes if write_mode == "append" else changes[-2:])


def test_overwrite_has_the_rows_of_the_last_batch(stream: Stream, ice: IcebergLake) -> None:
    write = stream.into(ice, mode="overwrite")
    stream.run(write, "complete", lambda ids: ids.groupBy("day").count())

    assert rows(ice, "day, count") == [("d0", 150), ("d1", 150)]


def test_decoupled_writes_are_delivered(stream: Stream, delta_table: DeltaLake, ice: IcebergLake) -> None:
    stream.options["delivery"] = "decoupled"
    write, audit = stream.into(delta_table), stream.into(ice)

    def process(ids: DataFrame, batch_id: int) -> None:
        write(ids, batch_id)
        audit(ids.where("id >= 100"), batch_id)

    stream.run(process)
    forget_commit(stream.checkpoint, 2)
    stream.run(process)
    assert (delta_table.count(), ice.count()) == (0, 0)
    assert Ended("deliver", "--once", "--checkpoint", str(stream.checkpoint)).code == 0

    assert (delta_table.ids(), ice.ids()) == (list(range(300)), list(range(100, 300)))


@pytest.fixture
def service() -> Iterator[HttpRows]:
    with http_rows() as rows:
        yield rows


def test_all_kinds_of_queries_in_one_function(stream: Stream, tmp_path: Path, service: HttpRows) -> None:
    """A fan-out, a pair of tables, a service and a query with routes, repeated before they are delivered. Two
    of them have the same row log.
    """
    one, other = delta_lake(tmp_path / "one"), delta_lake(tmp_path / "other")
    pair = {"path": f"{tmp_path}/pair", "warehouse": f"{tmp_path}/warehouse", "table": "db.ids"}
    writes = [
        penstock.foreach_batch("penstock.fanout", targets(one=one, other=other)),
        penstock.foreach_batch("penstock.lake", pair),
        penstock.foreach_batch("penstock.delta", path=f"{tmp_path}/days/{{day}}", routeBy="day"),
        penstock.foreach_batch(
            "penstock.http", url=service.url, delivery="decoupled", idColumn="id", format="row"
        ),
    ]

    def process(ids: DataFrame, batch_id: int) -> None:
        for write in writes:
            write(ids, batch_id)

    stream.run(process)
    forget_commit(stream.checkpoint, 2)
    stream.run(process)
    assert Ended("deliver", "--once", "--checkpoint", str(stream.checkpoint)).code == 0

    days = [DeltaLake(tmp_path / "days" / day) for day in ("d0", "d1")]
    assert sorted(service.ids()) == list(range(300))
    for table in (one, other, DeltaLake(tmp_path / "pair")):
        assert table.ids() == list(range(300))
    assert sorted(number for day in days for number in day.ids()) == list(range(300))


def targets(**tables: LakeTable) -> dict[str, str]:
    return {
        f"target.{name}{key and '.'}{key}": value
        for name, table in tables.items()
        for key, value in {"": table.source, **table.options}.items()
    }


def test_bad_rows_become_dead_letters_once(stream: Stream, delta_table: DeltaLake, tmp_path: Path) -> None:
    letters = {"badRows": "deadLetter", "deadLetter.path": str(tmp_path / "letters")}
    write = stream.into(delta_table, **letters)
    delta_table.create(NOT_NULL)

    def process(ids: DataFrame, batch_id: int) -> None:
        write(ids.withColumn("id", f.expr("nullif(id, 107)")), batch_id)

    stream.run(process)
    forget_commit(stream.checkpoint, 2)
    stream.run(process)

    assert delta_table.ids() == [number for number in range(300) if number != 107]
    assert len(rows(DeltaLake(tmp_path / "letters"), "code")) == 1


def test_a_thread_must_inherit_the_batch(stream: Stream, delta_table: DeltaLake, ice: IcebergLake) -> None:
    write, audit = stream.into(delta_table), stream.into(ice)
    refused: list[Exception] = []

    def process(ids: DataFrame, batch_id: int) -> None:
        def lost() -> None:
            with pytest.raises(penstock.ConfigurationError, match="in a thread of your own") as caught:
                write(ids, batch_id)
            refused.append(caught.value)

        threads = [
            threading.Thread(target=lost),
            *(InheritableThread(target=one, args=(ids, batch_id)) for one in (write, audit)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    stream.run(process)
    assert len(refused) == 3
    assert (delta_table.count(), ice.count()) == (300, 300)


def test_what_is_no_batch_of_the_query_is_refused(
    stream: Stream, delta_table: DeltaLake, tmp_path: Path
) -> None:
    write = stream.into(delta_table)
    elsewhere = stream.into(delta_table, checkpointLocation=str(tmp_path / "source"))
    with pytest.raises(penstock.ConfigurationError, match="outside of a function of foreachBatch"):
        write(stream.spark.range(3), 0)

    def wrongly(ids: DataFrame, batch_id: int) -> None:
        with pytest.raises(penstock.ConfigurationError, match="with batch id 1, but Spark runs batch 0"):
            write(ids, 1)
        with pytest.raises(penstock.ConfigurationError, match="with a streaming DataFrame"):
            write(read_ids(stream.spark, stream.source), batch_id)
        elsewhere(ids, batch_id)

    assert "tmp_path" not in str(stream.fails_with(wrongly))
    assert not delta_table.exists
    query = read_ids(stream.spark, stream.source).writeStream.foreachBatch(write).start()
    with pytest.raises(Exception, match="checkpointLocation is missing: Spark keeps a temporary checkpoint"):
        query.processAllAvailable()


# Killed drivers -------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
import penstock
source, folder, between, delivery = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
penstock.register(spark)
writes = [
    penstock.foreach_batch("penstock.delta", path=f"{folder}/delta", delivery=delivery),
    penstock.foreach_batch(
        "penstock.iceberg", warehouse=f"{folder}/iceberg", table="db.ids", delivery=delivery
    ),
    penstock.foreach_batch("penstock.delta", path=f"{folder}/last", delivery=delivery),
]

def process(ids, batch_id):
    for number, write in enumerate(writes):
        write(ids.repartition(1 + len(between)), batch_id)
        if between == f"{batch_id}.{number}":
            Path(folder, f"between-{between}").touch()
            time.sleep(600)

ids = spark.readStream.schema("id LONG, day STRING").option("maxFilesPerTrigger", 1).parquet(source)
writer = ids.writeStream.foreachBatch(process).trigger(availableNow=True)
writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
"""


@pytest.mark.kills
@pytest.mark.campaign
@pytest.mark.parametrize(("delivery", "point"), [("coupled", "commit.landed"), ("decoupled", "prepare.done")])
def test_a_driver_that_is_killed_between_its_writes_writes_each_row_once(
    tmp_path: Path, delivery: str, point: str
) -> None:
    """Between two writes of a batch, and within one. Replays have other partitions."""
    write_source(tmp_path / "source", files=3, rows_per_file=100)
    environment = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": SUBMIT_ARGS}

    def job(between: str = "") -> testing.Job:
        program: list[str | Path] = [
            sys.executable,
            "-c",
            PROGRAM,
            tmp_path / "source",
            tmp_path,
            between,
            delivery,
        ]
        return testing.Job(program, tmp_path / "log", environment)

    tables = [
        DeltaLake(tmp_path / "delta"),
        IcebergLake(tmp_path / "iceberg", "db.ids"),
        DeltaLake(tmp_path / "last"),
    ]
    with job("0.0").start() as running:
        running.wait_for(tmp_path / "between-0.0")
        running.kill()
    if delivery == "coupled":
        assert [table.count() for table in tables] == [100, 0, 0]
    job().kill_at(point, batch_id=2)
    job().run()
    if delivery == "decoupled":
        assert [table.count() for table in tables] == [0, 0, 0]
        assert Ended("deliver", "--once", "--checkpoint", str(tmp_path / "checkpoint")).code == 0

    assert [table.ids() for table in tables] == [list(range(300))] * 3
