"""A driver program for the kill tests: streams Parquet files of ids into a lake table, then ends.

Started as a process of its own, so that it can be killed. Everything is given on the command line; crash
points are chosen with the environment (see `penstock.committers.crash_points`).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from pyspark.sql import SparkSession

import penstock


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("format", help="name of the data source")
    parser.add_argument("source")
    parser.add_argument("checkpoint")
    parser.add_argument("--option", action="append", default=[], help="key=value for the sink")
    parser.add_argument("--conf", action="append", default=[], help="key=value for Spark")
    parser.add_argument("--column", action="append", default=[], help="another column, as a SQL expression")
    parser.add_argument("--partitions", type=int, default=1, help="tasks in a batch")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--after", type=Path, help="start the query only once this file is there")
    arguments = parser.parse_args()

    builder = SparkSession.builder.master(arguments.master)
    for pair in arguments.conf:
        builder = builder.config(*pair.split("=", 1))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    penstock.register(spark)

    rows = (
        spark.readStream.schema("id LONG, day STRING")
        .option("maxFilesPerTrigger", 1)
        .parquet(arguments.source)
    )
    writer = (
        rows.selectExpr("*", *arguments.column)
        .repartition(arguments.partitions)
        .writeStream.format(arguments.format)
        .queryName("ids")
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(availableNow=True)
    )
    for pair in arguments.option:
        writer = writer.option(*pair.split("=", 1))
    while arguments.after and not arguments.after.exists():
        time.sleep(0.02)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
