"""Streams that a Spark Connect client starts: registered, killed, restarted, and every row is there once.

Databricks notebooks and remote clients have no other session. The server is the one that Spark starts for
`remote("local[2]")`, with a Python worker for the query's driver side.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.driver_process import SUBMIT_ARGS
from tests.support.id_stream import write_source

from penstock import testing

pytestmark = [pytest.mark.spark, pytest.mark.kills, pytest.mark.slow]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import penstock
source, table, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
penstock.register(spark)
ids = spark.readStream.schema("id LONG, day STRING").option("maxFilesPerTrigger", 1).parquet(source)
writer = ids.writeStream.format("penstock.delta").options(checkpointLocation=checkpoint, path=table)
findings = penstock.check(writer)
print("checked", {one.severity.value for one in findings}, "rows" in {one.subject for one in findings})
writer.trigger(availableNow=True).start().awaitTermination()
written = spark.readStream.format("penstock.delta").load(table)
copy = written.writeStream.format("penstock.delta").option("path", table + "2")
copy = copy.option("checkpointLocation", checkpoint + "2")
copy.trigger(availableNow=True).start().awaitTermination()
print("read", spark.read.format("penstock.delta").option("where", "id >= 100").load(table + "2").count())
try:
    spark.range(1).write.format("penstock.delta").options(pfad=table).mode("append").save()
except Exception as error:
    print("found", repr(penstock.error_of(error)))
"""


def test_a_stream_of_a_spark_connect_client_survives_a_kill(tmp_path: Path) -> None:
    """It also checks the query before its start, reads its table as a stream, and the error of an option."""
    write_source(tmp_path / "source", files=3, rows_per_file=100)
    places = [tmp_path / name for name in ("source", "table", "checkpoint")]
    log = tmp_path / "log"
    environment = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": SUBMIT_ARGS}
    job = testing.Job([sys.executable, "-c", PROGRAM, *places], log, environment)
    job.kill_at("commit.landed")
    job.run()

    source = f"read_parquet('{tmp_path}/source/*.parquet')"
    for number in ("", "2"):
        table, store = testing.DeltaTable(tmp_path / f"table{number}"), tmp_path / f"checkpoint{number}"
        found = testing.check(table, source, store=store)
        assert found.problems == []
        assert found.rows == 300
    assert "read 200" in log.read_text()
    assert "checked {'ok'} True" in log.read_text()
    wrong = r"Options of penstock.delta:\n  - pfad is not an option"
    assert f"found ConfigurationError('{wrong}" in log.read_text()
