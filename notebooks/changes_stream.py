"""Streams a change feed of Debezium into five destinations at once. `make demo-changes` kills it.

    spark-submit notebooks/changes_stream.py <folder> <columns> <OpenSearch URL> <Redis URL> <Postgres URL>

Each destination has the rows of the source table. It ends when every file is prepared; `penstock deliver`
delivers each destination on its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import penstock

MESSAGES = "key STRING, value STRING, offset BIGINT"
"""As Spark's Kafka source has them, after `CAST(value AS STRING)`."""


def main(folder: str, columns: str, search: str, redis: str, postgres: str) -> None:
    root = Path(folder).resolve()
    spark = SparkSession.builder.appName("customers").getOrCreate()
    penstock.register(spark)

    targets: dict[str, dict[str, object]] = {
        "delta": {
            "": "penstock.delta",
            "path": root / "delta",
            "schemaEvolution": "evolve",
            "typeWidening": "true",
        },
        "iceberg": {
            "": "penstock.iceberg",
            "warehouse": root / "iceberg",
            "table": "shop.customers",
            "schemaEvolution": "evolve",
        },
        "postgres": {
            "": "penstock.postgres",
            "url": postgres,
            "dbtable": "customers",
            "schemaEvolution": "evolve",
        },
        "search": {"": "penstock.opensearch", "url": search, "index": "customers", "createIndex": "true"},
        "cache": {
            "": "penstock.redis",
            "url": redis,
            "structure": "row",
            "key": "customer:{id}",
        },
    }
    writer = spark.readStream.schema(MESSAGES).option("maxFilesPerTrigger", 1).parquet(str(root / "source"))
    query = writer.writeStream.format("penstock.fanout").queryName("customers")
    for name, options in targets.items():
        changes = {"writeMode": "upsert", "keys": "id", "changes": "debezium", "valueColumns": columns}
        for option, value in {**options, **changes}.items():
            query = query.option(f"target.{name}.{option}".rstrip("."), str(value))
    query = query.option("deliverAfterSeconds", 1).option("checkpointLocation", str(root / "checkpoint"))
    started = query.trigger(availableNow=True).start()
    started.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
