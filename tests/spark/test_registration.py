"""How users meet Penstock: `penstock.register(spark)`, or one class at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyspark.sql.datasource
import pytest
from pyspark.sql import SparkSession
from tests.support.driver_process import SUBMIT_ARGS
from tests.support.lakes import LakeTable, rows

import penstock
from penstock.datasource.spark.arrow_batches import BYTES_MAX, ROWS_MAX, cut_by_rows, rows_per_batch
from penstock.datasource.spark.registration import DATA_SOURCES

pytestmark = pytest.mark.spark

PROGRAM = """
import sys, penstock
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
penstock.register(spark)
spark.range(10).write.format("penstock.delta").mode("append").save(sys.argv[1])
"""


def test_a_class_is_registered_by_itself(spark: SparkSession, table: LakeTable) -> None:
    of_table = {one.name(): one for one in (penstock.DeltaDataSource, penstock.IcebergDataSource)}
    spark.dataSource.register(of_table[table.source])
    spark.range(3).write.format(table.source).mode("append").options(**table.options).save()

    assert rows(table) == [(0,), (1,), (2,)]


def test_local_workers_use_the_python_that_registers(tmp_path: Path) -> None:
    """Spark's default is the `python3` on the PATH, where Penstock need not be installed."""
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYSPARK_SUBMIT_ARGS": SUBMIT_ARGS,
    }
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "t")], env=environment, check=True, timeout=120
    )

    assert pl.scan_delta(str(tmp_path / "t")).collect().height == 10


def test_registering_again_replaces_nothing(
    spark: SparkSession, other_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would log a warning for each data source."""
    penstock.register(spark)
    registered: list[Any] = []
    monkeypatch.setattr(type(spark.dataSource), "register", lambda self, one: registered.append(one))
    penstock.register(spark)
    assert registered == []
    penstock.register(other_session)
    assert len(registered) == len(DATA_SOURCES)


# How rows come to Python ----------------------------------------------------------------------------


@pytest.fixture
def other_session(spark: SparkSession) -> SparkSession:
    """A session without settings and data sources."""
    return spark.newSession()


def batch_rows(session: SparkSession, rows: int) -> list[int]:
    """Return the rows of each batch if one task hands over `rows` of them."""

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"rows": pa.array([batch.num_rows], pa.int64())})

    counts = session.range(0, rows, 1, 1).mapInArrow(counted, "rows long").collect()
    return [count.rows for count in counts]


def test_spark_cuts_by_the_rows_that_registering_sets(spark: SparkSession) -> None:
    """The session of all tests was registered with the defaults."""
    assert spark.conf.get(BYTES_MAX) == "2147483647"
    most = rows_per_batch(spark)
    assert batch_rows(spark, 2 * most + 1) == [most, most, 1]


def test_defaults_of_spark_do_not_count_as_set(other_session: SparkSession) -> None:
    most = rows_per_batch(other_session)
    assert batch_rows(other_session, 2 * most) == [2 * most]
    cut_by_rows(other_session)

    assert batch_rows(other_session, 2 * most) == [most, most]


def test_a_bound_that_the_session_has_set_holds(other_session: SparkSession) -> None:
    """Also if it is the default of Spark."""
    other_session.conf.set(BYTES_MAX, "64m")
    cut_by_rows(other_session)

    assert other_session.conf.get(BYTES_MAX) == "64m"
    assert other_session.conf.get(ROWS_MAX, None) is None


@pytest.mark.slow
def test_wide_rows_are_written(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of 300 KiB, more than fit into one batch."""
    count, width = rows_per_batch(spark) + 100, 300 * 1024
    wide = spark.range(0, count, 1, 1).selectExpr("id", f"lpad(id, {width}, 'x') AS text")
    wide.write.format("penstock.delta").mode("append").save(str(tmp_path / "t"))

    text = pl.col("text")
    found = pl.scan_delta(str(tmp_path / "t")).select("id", width=text.str.len_bytes(), end=text.str.tail(4))
    written = found.sort("id").collect()
    assert written["id"].to_list() == list(range(count))
    assert set(written["width"]) == {width}
    assert [end.lstrip("x") for end in written["end"]] == [str(number) for number in range(count)]


# What is set when Spark starts ----------------------------------------------------------------------


def test_the_page_on_tuning_has_the_start_settings_for_spark_submit() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()
    assert "".join(f"--conf {key}={value}\n" for key, value in penstock.START_SETTINGS.items()) in page


def test_arrow_in_the_jvm_does_not_check_bounds(spark: SparkSession) -> None:
    """The tests' Spark is started with the settings."""
    jvm: Any = spark._jvm
    assert jvm.org.apache.arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED is False


@pytest.mark.skipif(
    not hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter"), reason="needs Spark 4.1 to have them"
)
def test_rows_come_by_unix_domain_sockets(spark: SparkSession) -> None:
    (by_socket,) = (
        spark.sparkContext.range(1).map(lambda _: os.environ["PYTHON_UNIX_DOMAIN_ENABLED"]).collect()
    )
    assert by_socket.lower() == "true"
