"""A stream that a Spark Connect client starts: registered, killed, restarted, and every row is there once.

Databricks notebooks and remote clients have no other session. The server is the one that Spark starts for
`remote("local[2]")`, with a Python worker for the query's driver side.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.id_stream import write_source

from penstock import testing

pytestmark = [pytest.mark.spark, pytest.mark.kills, pytest.mark.slow]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import penstock
source, table, checkpoint = sys.argv[1:4]
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
penstock.register(spark)
ids = spark.readStream.schema("id LONG, day STRING").option("maxFilesPerTrigger", 1).parquet(source)
options = {"checkpointLocation": checkpoint, "path": table, **dict(pair.split("=") for pair in sys.argv[4:])}
writer = ids.writeStream.format("penstock.delta").options(**options)
writer.trigger(availableNow=True).start().awaitTermination()
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str | Path]:
    write_source(tmp_path / "source", files=3, rows_per_file=100)
    return [sys.executable, "-c", PROGRAM, *(tmp_path / name for name in ("source", "table", "checkpoint"))]


def test_a_stream_of_a_spark_connect_client_survives_a_kill(
    tmp_path: Path, program: list[str | Path]
) -> None:
    job = testing.Job(program, tmp_path / "log", {"PYSPARK_PYTHON": sys.executable})
    job.kill_at("commit.landed")
    job.run()

    source = f"read_parquet('{tmp_path}/source/*.parquet')"
    found = testing.check(testing.DeltaTable(tmp_path / "table"), source, store=tmp_path / "checkpoint")
    assert found.problems == []
    assert found.rows == 300


def test_a_spark_connect_client_reads_what_is_wrong_with_an_option(program: list[str | Path]) -> None:
    ended = subprocess.run([*program, "pfad=/lake"], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "ConfigurationError: Options of penstock.delta:\n  - pfad is not an option" in ended.stderr
