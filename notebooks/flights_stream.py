"""Streams the flights into a Delta and an Iceberg table, exactly once. `make demo` kills and restarts it.


    spark-submit notebooks/flights_stream.py <folder of Parquet files> <lake>

It ends when every file is in both tables. Start it again after new files or after a crash: each query
continues after the last batch in its table.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import penstock


def main(source: str, lake: str) -> None:
    root = Path(lake).resolve()
    spark = SparkSession.builder.appName("flights").getOrCreate()
    penstock.register(spark)

    flights = (
        spark.readStream.schema(spark.read.parquet(source).schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(source)
    )
    delta = (
        flights.writeStream.format("penstock.delta")
        .queryName("flights-delta")
        .option("path", str(root / "delta"))
        .option("checkpointLocation", str(root / "checkpoints" / "delta"))
        .option("partitionBy", "origin, month")
        .trigger(availableNow=True)
        .start()
    )
    iceberg = (
        flights.writeStream.format("penstock.iceberg")
        .queryName("flights-iceberg")
        .option("warehouse", str(root / "iceberg"))
        .option("table", "nyc.flights")
        .option("checkpointLocation", str(root / "checkpoints" / "iceberg"))
        .option("partitionSpec", "month(time_hour), origin")
        .trigger(availableNow=True)
        .start()
    )
    delta.awaitTermination()
    iceberg.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
