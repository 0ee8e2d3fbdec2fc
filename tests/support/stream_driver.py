"""A driver program for the kill tests: streams Parquet files into a destination, then ends.

Started as a process of its own, so that it can be killed. Everything is given on the command line; crash
points are chosen with the environment (see `penstock.committers.crash_points`). After `--and`, the same
arguments describe another stream of the same driver.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

import penstock
from penstock.datasource.spark.registration import data_sources


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("format", help="name of the data source")
    parser.add_argument("source")
    parser.add_argument("checkpoint")
    parser.add_argument("--schema", default="id LONG, day STRING", help="of the files")
    parser.add_argument("--option", action="append", default=[], help="key=value for the sink")
    parser.add_argument("--conf", action="append", default=[], help="key=value for Spark")
    parser.add_argument("--column", action="append", default=[], help="another column, as a SQL expression")
    parser.add_argument("--partitions", type=int, default=1, help="tasks in a batch")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--after", type=Path, help="start the queries only once this file is there")
    parser.add_argument("--worker", action="append", default=[], help="key=value, environment of its workers")
    streams = [parser.parse_args(arguments) for arguments in _split(sys.argv[1:])]
    first = streams[0]

    settings = dict(pair.split("=", 1) for pair in first.conf)
    spark = SparkSession.builder.master(first.master).config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    penstock.register(spark)
    while first.after and not first.after.exists():
        time.sleep(0.02)
    for number, stream in enumerate(streams):
        _start(spark, stream, f"ids{number or ''}")
    while spark.streams.active:
        spark.streams.awaitAnyTermination()
        spark.streams.resetTerminated()


def _split(arguments: Sequence[str]) -> Iterator[list[str]]:
    """The arguments of each stream."""
    ends = [i for i, argument in enumerate(arguments) if argument == "--and"]
    for begin, end in zip([-1, *ends], [*ends, len(arguments)], strict=True):
        yield [*arguments[begin + 1 : end]]


def _start(spark: SparkSession, stream: argparse.Namespace, name: str) -> None:
    if stream.worker:  # a data source keeps the environment that its workers get
        spark.sparkContext.environment.update(pair.split("=", 1) for pair in stream.worker)
        for data_source in data_sources():
            if data_source.name() == stream.format:
                spark.dataSource.register(data_source)
    rows = spark.readStream.schema(stream.schema).option("maxFilesPerTrigger", 1)
    writer = (
        rows.parquet(stream.source)
        .selectExpr("*", *stream.column)
        .repartition(stream.partitions)
        .writeStream.format(stream.format)
        .queryName(name)
        .option("checkpointLocation", stream.checkpoint)
        .trigger(availableNow=True)
    )
    writer.options(**dict(pair.split("=", 1) for pair in stream.option)).start()


if __name__ == "__main__":
    main()
