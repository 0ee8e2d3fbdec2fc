"""Runs SQL in a Spark with the connectors of Delta and Iceberg: see `tests.support.jvm_tables`."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from pyspark.sql import SparkSession


def main(descriptor: int) -> None:
    with Connection(descriptor) as connection:
        spark = SparkSession.builder.master("local[2]").config(map=connection.recv()).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        while True:
            try:
                statement = connection.recv()
            except EOFError:
                return
            try:
                connection.send((True, [tuple(row) for row in spark.sql(statement).collect()]))
            except Exception as error:  # noqa: BLE001  raised again in the test
                connection.send((False, str(error)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
