"""Streams the flights into a Delta table, OpenSearch and Kinesis at once. `make demo-fanout` kills it.

    spark-submit notebooks/fanout_stream.py <folder of Parquet files> <folder> <OpenSearch URL> <AWS URL>

It ends when every file is prepared. `penstock deliver` delivers each destination on its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import penstock

FLIGHT_ID = "concat_ws('-', unix_timestamp(time_hour), carrier, flight)"
"""No two flights have the same."""


def main(source: str, folder: str, search: str, aws: str) -> None:
    root = Path(folder).resolve()
    spark = SparkSession.builder.appName("flights").getOrCreate()
    penstock.register(spark)

    flights = (
        spark.readStream.schema(spark.read.parquet(source).schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(source)
        .selectExpr(f"{FLIGHT_ID} AS id", "*")
    )
    query = (
        flights.writeStream.format("penstock.fanout")
        .queryName("flights")
        .option("target.lake", "penstock.delta")
        .option("target.lake.path", str(root / "delta"))
        .option("target.search", "penstock.opensearch")
        .option("target.search.url", search)
        .option("target.search.index", "flights")
        .option("target.search.createIndex", "true")
        .option("target.search.retryFor", "5s")
        .option("target.events", "penstock.kinesis")
        .option("target.events.stream", "flights")
        .option("target.events.region", "us-east-1")
        .option("target.events.endpointUrl", aws)
        .option("target.events.maxBatchSize", 250)
        .option("target.events.maxInFlightRequests", 4)
        .option("target.events.maxBufferedRequests", 500)
        .option("target.events.progressEverySeconds", 0)
        .option("target.search.idColumn", "id")
        .option("target.events.idColumn", "id")
        .option("deliverAfterSeconds", 1)
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(processingTime="2 seconds")
        .start()
    )
    query.processAllAvailable()
    query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
