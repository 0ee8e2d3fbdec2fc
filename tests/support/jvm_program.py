"""Runs SQL and streams in a Spark with other connectors: see `tests.support.jvm_tables`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from pyspark.sql import SparkSession

import penstock


def run_sql(spark: SparkSession, statement: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(statement).collect()]


def run_stream(
    spark: SparkSession, rows: str, sink: str, options: Mapping[str, str], table: str = ""
) -> list[tuple[Any, ...]]:
    """Write the rows of a streaming DataFrame that are there, and none that come later.

    Args:
        rows: an expression of `spark`
    """
    writer = eval(rows).writeStream.format(sink).options(**options).trigger(availableNow=True)
    (writer.toTable(table) if table else writer.start()).awaitTermination()
    return []


def main(descriptor: int) -> None:
    with Connection(descriptor) as connection:
        spark = SparkSession.builder.master("local[2]").config(map=connection.recv()).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        penstock.register(spark)
        while True:
            try:
                request = connection.recv()
            except EOFError:
                return
            try:
                is_sql = isinstance(request, str)
                connection.send((True, run_sql(spark, request) if is_sql else run_stream(spark, **request)))
            except Exception as error:  # noqa: BLE001  raised again in the test
                connection.send((False, str(error)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
