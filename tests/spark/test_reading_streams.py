"""`spark.readStream.format("penstock.…")` into Penstock's own sinks: each row once, also after a replay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.ducklake_table import DuckLakeTable
from tests.support.ducklakes import sqlite_lake
from tests.support.hudi import after
from tests.support.hudi_table import HudiTable
from tests.support.lakes import DeltaLake, LakeTable, delta_lake, ids
from tests.support.lance_lake import LanceLake
from tests.support.table_streams import Streamable

from penstock.committers.lance.maintenance import compact

pytestmark = pytest.mark.spark

KNOWS_LIMITS = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
"""Before, Spark plans one batch for `availableNow`, also if it repeats one."""


@pytest.fixture
def target(tmp_path: Path) -> DeltaLake:
    return delta_lake(tmp_path / "target")


def stream(spark: SparkSession, table: Streamable, **options: str) -> DataFrame:
    return spark.readStream.format(table.source).options(**table.options, **options).load()


def run(rows: DataFrame, target: LakeTable | HudiTable, **options: str) -> StreamingQuery:
    """Write all rows that there are into the target; its checkpoint is beside it."""
    starts = 2 if repeats_a_batch(target) and not KNOWS_LIMITS else 1
    for _ in range(starts):
        query = (
            rows.writeStream.format(target.source)
            .options(**target.options, **options)
            .option("checkpointLocation", str(checkpoint(target)))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return query


def repeats_a_batch(target: LakeTable | HudiTable) -> bool:
    begun, done = (
        {path.name for path in checkpoint(target).glob(f"{one}/*")} for one in ("offsets", "commits")
    )
    return not begun <= done


def checkpoint(target: LakeTable | HudiTable) -> Path:
    return target.folder.parent / "checkpoint"


def batches(target: LakeTable) -> list[int]:
    return sorted(
        int(path.name) for path in (checkpoint(target) / "commits").iterdir() if path.name.isdecimal()
    )


def forget_last_batch(target: LakeTable) -> None:
    """As if the driver had died before Spark logged that the batch is done."""
    last = checkpoint(target) / "commits" / str(batches(target)[-1])
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def test_each_row_is_written_once_into_another_table(
    spark: SparkSession, table: LakeTable, target: DeltaLake
) -> None:
    table.create(ids().schema)
    for number in range(3):
        table.append(number)
    run(stream(spark, table), target)
    assert target.ids() == [0, 1, 2]
    forget_last_batch(target)
    table.append(3)
    run(stream(spark, table), target)
    assert target.ids() == [0, 1, 2, 3]
    assert batches(target) == [0, 1]
    run(stream(spark, table), target)
    assert batches(target) == [0, 1]


def test_rows_of_a_ducklake_are_written_once_whatever_is_merged(
    spark: SparkSession, target: DeltaLake, tmp_path: Path
) -> None:
    """Rows in files and in the catalog."""
    lake = DuckLakeTable(sqlite_lake(tmp_path / "lake"), inlines=True)
    lake.sql("CREATE TABLE events (id BIGINT)", "INSERT INTO events SELECT range FROM range(2000)")
    lake.append(2000)
    run(stream(spark, lake), target)
    lake.append(2001)
    lake.sql("INSERT INTO events SELECT range FROM range(2002, 4000)", "INSERT INTO events VALUES (4000)")
    run(stream(spark, lake), target)
    forget_last_batch(target)
    lake.compact()
    lake.append(4001)
    run(stream(spark, lake), target)
    assert target.ids() == list(range(4002))


def test_rows_of_a_lance_table_are_written_once_whatever_is_compacted(
    spark: SparkSession, target: DeltaLake, tmp_path: Path
) -> None:
    """Rows of Penstock and of others."""
    lake = LanceLake(tmp_path / "lake")
    lake.create(ids().schema)

    def write(first: int, last: int) -> None:
        rows = spark.range(first, last).repartition(2)
        rows.write.format(lake.source).mode("append").options(**lake.options).save()

    write(0, 2000)
    lake.append(2000)
    run(stream(spark, lake), target)
    lake.append(2001)
    write(2002, 4000)
    run(stream(spark, lake), target)
    forget_last_batch(target)
    assert compact(str(lake.folder), {}, 1 << 20).startswith("compacted")
    lake.append(4000)
    run(stream(spark, lake), target)
    assert target.ids() == list(range(4001))


def test_rows_of_a_hudi_table_are_written_once_whatever_file_they_are_in(
    spark: SparkSession, target: DeltaLake, tmp_path: Path
) -> None:
    """Also those of a commit that is completed after a later one."""
    table = HudiTable(tmp_path, 9)
    table.create(ids().schema)
    table.append(0)
    early = table.later()
    table.append(*range(1, 100), instant=after(early, 1000))
    run(stream(spark, table, columns="id"), target)
    table.append(100, 101, before=table.file_of(0))
    run(stream(spark, table, columns="id"), target)
    forget_last_batch(target)
    table.compact()
    table.append(102, instant=early)
    run(stream(spark, table, columns="id"), target)
    assert target.ids() == list(range(103))


def test_limits_make_several_batches(spark: SparkSession, delta_table: DeltaLake, target: DeltaLake) -> None:
    delta_table.create(ids().schema)
    for number in range(3):
        delta_table.append(number)
    rows = stream(spark, delta_table, maxFilesPerTrigger="2")
    run(rows, target)
    if not KNOWS_LIMITS:
        assert target.count() == 2
        run(rows, target)
    assert target.ids() == [0, 1, 2]
    assert batches(target) == [0, 1]


@pytest.mark.parametrize(
    "made", [delta_lake, lambda folder: LanceLake(folder / "lake")], ids=["delta", "lance"]
)
def test_changes_keep_a_copy_of_a_table_up_to_date(
    spark: SparkSession, made: Callable[[Path], DeltaLake | LanceLake], target: DeltaLake, tmp_path: Path
) -> None:
    table = made(tmp_path)
    table.create(ids().schema)
    table.append(1, 2, 3)
    upserts = {"writeMode": "upsert", "keys": "id", "changes": "delta-cdf"}
    run(stream(spark, table, changes="true"), target, **upserts)
    table.load().delete("id = 2")
    if isinstance(table, LanceLake):
        table.update("id = id + 10", "id = 3")
    else:
        table.load().update({"id": "id + 10"}, predicate="id = 3")
    table.append(5)
    run(stream(spark, table, changes="true"), target, **upserts)
    assert target.ids() == [1, 5, 13]


@pytest.mark.campaign
def test_changes_keep_a_copy_of_a_ducklake_table_up_to_date(
    spark: SparkSession, target: DeltaLake, tmp_path: Path
) -> None:
    """Rows in files and in the catalog, also if they move to other files before a batch is repeated."""
    table = DuckLakeTable(sqlite_lake(tmp_path / "lake"), inlines=True)
    table.sql("CREATE TABLE events (id BIGINT, n INT)", "INSERT INTO events SELECT range, 0 FROM range(100)")
    upserts = {"writeMode": "upsert", "keys": "id", "changes": "delta-cdf"}

    def copy() -> None:
        run(stream(spark, table, changes="true"), target, **upserts)
        assert target.rows("id, n") == table.sql("FROM events ORDER BY ALL")

    copy()
    table.sql(
        "UPDATE events SET n = n + 1 WHERE id < 5",
        "DELETE FROM events WHERE id IN (3, 50)",
        "INSERT INTO events VALUES (3, 7), (200, 7)",
        "UPDATE events SET n = n + 1 WHERE id % 2 = 0",
        "CALL ducklake_flush_inlined_data('lake')",
        "UPDATE events SET n = n + 1 WHERE id IN (3, 4, 200)",
        "DELETE FROM events WHERE id = 99",
    )
    copy()
    forget_last_batch(target)
    table.sql(
        "CALL ducklake_flush_inlined_data('lake')",
        "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.01)",
        "CALL ducklake_merge_adjacent_files('lake')",
        "DELETE FROM events WHERE id BETWEEN 10 AND 60",
    )
    copy()
    table.sql("BEGIN", "TRUNCATE events", "INSERT INTO events VALUES (1, 1), (300, 3)", "COMMIT")
    copy()


@pytest.mark.campaign
@pytest.mark.parametrize("version", [6, 9])
def test_changes_go_through_a_hudi_table(
    version: int, spark: SparkSession, delta_table: DeltaLake, target: DeltaLake, tmp_path: Path
) -> None:
    """Delta, Hudi and Delta again: upserts and deletes of Penstock, and in between of another writer, who
    writes the file groups again.
    """
    (tmp_path / "hudi").mkdir()
    middle = HudiTable(tmp_path / "hudi", version)
    upserts = {"writeMode": "upsert", "keys": "id", "changes": "delta-cdf"}
    columns = "id, _change_type, _commit_version, _commit_timestamp"

    def copy() -> None:
        run(stream(spark, delta_table, changes="true"), middle, **upserts, tableVersion=str(version))
        run(stream(spark, middle, changes="true", columns=columns), target, **upserts)
        assert target.ids() == sorted(middle.ids())

    delta_table.create(ids().schema)
    delta_table.append(*range(1000))
    copy()
    delta_table.load().delete("id % 7 = 2")
    delta_table.load().update({"id": "id + 5000"}, predicate="id % 7 = 3")
    delta_table.append(2000)
    copy()
    assert target.ids() == sorted(delta_table.ids())
    middle.delete(middle.ids()[0])
    middle.update(middle.ids()[0], 9000)
    copy()
    forget_last_batch(target)
    delta_table.load().delete("id > 5000")
    copy()
    copy()
    assert target.ids()[-1] == 9000
    assert len(batches(target)) == 4


def test_what_is_wrong_is_said_without_a_traceback(
    spark: SparkSession, delta_table: DeltaLake, target: DeltaLake
) -> None:
    delta_table.create(ids().schema)
    delta_table.append(1)
    with pytest.raises(Exception, match="Did you mean startingVersion"):
        stream(spark, delta_table, startingVersio="1")
    with pytest.raises(Exception, match=r"(?i)versionAsOf is not an option") as refused:
        run(stream(spark, delta_table, versionAsOf="1"), target)
    assert "Traceback" not in str(refused.value)
    run(stream(spark, delta_table), target)
    delta_table.load().delete("id = 1")
    with pytest.raises(Exception, match=r"Version 2 of the Delta table .* deletes rows") as refused:
        run(stream(spark, delta_table), target)
    assert "Traceback" not in str(refused.value)


def test_offsets_say_the_version(spark: SparkSession, delta_table: DeltaLake, target: DeltaLake) -> None:
    delta_table.create(ids().schema)
    delta_table.append(1)
    progress = run(stream(spark, delta_table), target).lastProgress
    assert progress is not None
    assert json.loads(progress["sources"][0]["endOffset"])["version"] == 1 or progress["numInputRows"] == 0
