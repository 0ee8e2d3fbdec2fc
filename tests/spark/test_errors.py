"""A driver shows the message of an error of Penstock in the first line, without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.support.id_stream import IdStream

pytestmark = pytest.mark.spark


def assert_message_first(text: str, name: str, message: str) -> None:
    first = text.splitlines()[0]
    assert f"{name}: {message}" in first, text
    assert "Traceback" not in text
    assert "base_source.py" not in text


def test_a_wrong_option_is_reported_in_the_first_line(delta_ids: IdStream) -> None:
    delta_ids.add_files(1)
    failure = delta_ids.fails_with(targetFileSize="big")
    assert_message_first(failure, "ConfigurationError", "Options of penstock.delta:")
    assert "targetFileSize='big': must be a size" in failure


def test_a_refused_type_is_reported_in_the_first_line(delta_ids: IdStream) -> None:
    delta_ids.add_files(1)
    failure = delta_ids.fails_with(delta_ids.rows().withColumn("wait", f.expr("make_dt_interval(1)")))
    assert_message_first(failure, "SchemaMismatchError", "These columns cannot be written")


def test_a_value_that_a_task_refuses_is_reported_in_the_first_line(delta_ids: IdStream) -> None:
    delta_ids.add_files(1)
    columns = [Field("id", PrimitiveType("long"), nullable=False), Field("day", PrimitiveType("string"))]
    DeltaTable.create(delta_ids.table.options["path"], Schema(columns))
    failure = delta_ids.fails_with(delta_ids.rows().withColumn("id", f.expr("nullif(id, 7)")))
    assert_message_first(failure, "SchemaMismatchError", "NULL in id, which the table declares NOT NULL")


def test_the_user_function_that_fails_next_keeps_its_traceback(spark: SparkSession, tmp_path: Path) -> None:
    """The worker that hid the traceback has ended: other workers show tracebacks."""
    writer = spark.range(3).write.format("penstock.delta").mode("append").option("colour", "red")
    with pytest.raises(Exception, match="colour is not an option") as refused:
        writer.save(f"{tmp_path}/t")
    assert_message_first(str(refused.value), "ConfigurationError", "Options of penstock.delta:")
    with pytest.raises(Exception, match="Traceback"):
        spark.range(3).select(f.udf(lambda number: 1 / 0)("id")).collect()


def test_reading_is_refused_in_the_first_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="does not read") as refused:
        spark.read.format("penstock.mysql").load(f"{tmp_path}/t").collect()
    assert_message_first(str(refused.value), "ConfigurationError", "penstock.mysql writes tables")


def test_a_store_that_is_down_fails_the_next_batch_and_no_run_without_one(delta_ids: IdStream) -> None:
    """Spark asks a Python sink for batches only: a run that finds no new rows ends well."""
    down = "postgresql+psycopg://me@127.0.0.1:1/none"
    delta_ids.add_files(1)
    delta_ids.run()
    delta_ids.run(store=down)
    delta_ids.add_files(1)
    told = delta_ids.fails_with(store=down, storeWaitSeconds="2")
    assert_message_first(told, "StoreUnreachableError", "The manifest store")
