"""Spark reads a folder of files through a table of a Hive metastore, created as the error proposes it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from servers.hive_metastore import HiveMetastore
from tests.support.driver_process import SHORT_LIVED

pytestmark = pytest.mark.spark

PROGRAM = r"""
import re, sys
import penstock
from pyspark.sql import SparkSession

folder, uri = sys.argv[1:3]
builder = SparkSession.builder.master("local[2]").enableHiveSupport()
builder = builder.config("spark.hadoop.hive.metastore.uris", uri)
builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
for setting in sys.argv[3:]:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
penstock.register(spark)
spark.range(100).coalesce(1).write.mode("ignore").parquet(f"{folder}/source")
rows = spark.readStream.schema("id LONG").parquet(f"{folder}/source").selectExpr(
    "id", "array(id) AS ids", "named_struct('Low', id) AS s", "timestamp_seconds(id) AS at",
    "date_from_unix_date(id % 3) AS day", "if(id % 2 = 0, 'a b/%', null) AS kind"
)

def run(name="events", file_format="parquet"):
    writer = rows.writeStream.format("penstock.files").trigger(availableNow=True)
    writer = writer.options(checkpointLocation=f"{folder}/checkpoint-{name}", partitionBy="day, kind")
    writer = writer.options(catalogTable=f"shop.{name}", fileFormat=file_format)
    writer = writer.options(**{"catalog.type": "hive", "catalog.uri": uri})
    writer.start(f"{folder}/{name}").awaitTermination()

try:
    run()
except Exception as error:
    statement = re.search(r"CREATE EXTERNAL TABLE .* LOCATION '[^']*'", str(error))[0]
spark.sql("CREATE DATABASE shop")
spark.sql(statement)
run()
print(spark.sql("SHOW PARTITIONS shop.events").count())
where = "day = DATE '1970-01-02' AND kind = 'a b/%'"
print(spark.sql(f"SELECT sum(id), sum(ids[0]), sum(s.low) FROM shop.events WHERE {where}").first())
print(spark.sql("SELECT count(*), sum(unix_timestamp(at)), count(kind), max(day) FROM shop.events").first())
columns = "id BIGINT, ids ARRAY<BIGINT>, s STRUCT<low: BIGINT>, at TIMESTAMP, day DATE, kind STRING"
location = f"PARTITIONED BY (day, kind) LOCATION '{folder}/lines'"
spark.sql(f"CREATE TABLE shop.lines ({columns}) USING json {location}")
run("lines", "json")
print(spark.sql("SELECT count(*), sum(id), count(kind), max(day) FROM shop.lines").first())
spark.stop()
"""


def test_spark_finds_the_rows_of_each_partition_in_the_metastore(hive: HiveMetastore, tmp_path: Path) -> None:
    settings = {**SHORT_LIVED, "spark.sql.session.timeZone": "UTC"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), hive.uri]
    ended = subprocess.run(
        [*command, *(f"{name}={value}" for name, value in settings.items())],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    partitions, one, whole, of_spark = ended.stdout.splitlines()[-4:]
    in_one = sum(number for number in range(0, 100, 2) if number % 3 == 1)
    assert partitions == "6"
    assert re.findall(r"=(\d+)", one) == [str(in_one)] * 3
    assert re.findall(r"=(\d+)", whole) == ["100", str(sum(range(100))), "50"]
    assert re.findall(r"=(\d+)", of_spark) == ["100", str(sum(range(100))), "50"]  # a table `USING json`
    assert "datetime.date(1970, 1, 3)" in whole
    assert "datetime.date(1970, 1, 3)" in of_spark
