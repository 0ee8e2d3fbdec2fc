"""From Kafka to the lake, exactly once: the program of docs/kafka-to-lake.md. `make demo-kafka` kills it.

    spark-submit --master spark://... --packages $KAFKA,$AVRO kafka_to_lake.py pipeline.json

with the packages of Spark's version, such as

    KAFKA=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0
    AVRO=org.apache.spark:spark-avro_2.13:4.2.0

It reads events of orders in Avro from a topic once, appends all of them to an Iceberg table, and keeps the
newest state of each order in a Delta table. `penstock deliver` commits the batches that it has prepared.
It is always safe to start it again.

`pipeline.json` has the options. Only its owner should be able to read it, as it may have secrets:

    {"schemas": "https://registry.example",     or a folder with <id>.avsc for each schema of the values
     "kafka": {"subscribe": "orders", "kafka.bootstrap.servers": "...", "maxOffsetsPerTrigger": "50000"},
     "events": {"catalog": "prod", "catalog.type": "rest", "catalog.uri": "...", "table": "shop.events"},
     "orders": {"path": "s3://lake/orders", "storage.AWS_REGION": "..."},
     "query": {"checkpointLocation": "...", "store": "postgresql+psycopg://..."}}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import from_avro

import penstock

EVENTS = {"": "penstock.iceberg", "partitionSpec": "day(sent_at)", "schemaEvolution": "addColumns"}
ORDERS = {
    "": "penstock.delta",
    "schemaEvolution": "addColumns",
    "writeMode": "upsert",
    "keys": "order_id",
    "orderBy": "event_id",
    "deleteWhen": "status = 'cancelled'",
}


def main(pipeline: str) -> None:
    given = json.loads(Path(pipeline).read_text())
    spark = SparkSession.builder.appName("orders").getOrCreate()
    penstock.register(spark)

    messages = spark.readStream.format("kafka").options(startingOffsets="earliest", **given["kafka"]).load()
    schemas = known_schemas(given["schemas"], f"{given['kafka']['subscribe']}-value")
    query = decoded(messages, schemas).writeStream.format("penstock.fanout").queryName("orders")
    for name, own in {"events": EVENTS, "orders": ORDERS}.items():
        for option, value in {**own, **given[name]}.items():
            query = query.option(f"target.{name}.{option}".rstrip("."), value)
    query.options(**given["query"]).start().awaitTermination()


def known_schemas(place: str, subject: str) -> dict[int, str]:
    """Return the schemas by their ids: of a folder, or all versions of a subject in a schema registry."""
    if not place.startswith(("http://", "https://")):
        return {int(file.stem): file.read_text() for file in Path(place).glob("*.avsc")}

    def get(path: str) -> Any:
        with urlopen(f"{place}/subjects/{quote(subject, safe='')}/versions{path}", timeout=30) as answer:
            return json.load(answer)

    versions = [get(f"/{version}") for version in get("")]
    return {version["id"]: version["schema"] for version in versions}


def decoded(messages: DataFrame, schemas: Mapping[int, str]) -> DataFrame:
    """Return the records, with the columns of the newest schema: the one with the greatest id.

    A value is a zero byte, the id of the schema that it was written with (4 bytes), and the record in Avro.
    A schema that is not there fails the query before the batch is prepared: add it, and start again.
    """
    newest = {"avroSchema": schemas[max(schemas)], "mode": "FAILFAST"}
    schema_id = sf.conv(sf.hex(sf.expr("substring(value, 2, 4)")), 16, 10).cast("int")
    record: Column = sf.expr("substring(value, 6)")
    event = sf.raise_error(sf.concat(sf.lit("no schema with the id "), schema_id.cast("string")))
    for known, text in schemas.items():
        event = sf.when(schema_id == known, from_avro(record, text, newest)).otherwise(event)
    return messages.select(event.alias("event")).select("event.*")


if __name__ == "__main__":
    main(*sys.argv[1:])
