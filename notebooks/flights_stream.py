"""Stream the flights into a Delta table, exactly once: the program that `make demo` runs, kills and restarts.

    spark-submit notebooks/flights_stream.py <folder of Parquet files> <table> <checkpoint>

Ends when every file is in the table. Start it again at any time, after new files or after a crash: it goes on
where the table ends.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import penstock


def main(source: str, table: str, checkpoint: str) -> None:
    spark = SparkSession.builder.appName("flights").getOrCreate()
    penstock.register(spark)

    flights = (
        spark.readStream.schema(spark.read.parquet(source).schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(source)
    )
    query = (
        flights.writeStream.format("penstock.delta")
        .queryName("flights")
        .option("path", table)
        .option("checkpointLocation", checkpoint)
        .option("partitionBy", "origin, month")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
