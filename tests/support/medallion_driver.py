"""A driver of three streams, table to table to table. Killed by `tests/spark/test_medallion_kills.py`.

    python medallion_driver.py <root> <bronze format> <its options, as JSON> [--to-the-end]

Bronze has all events, silver the newest row of each key, gold a sum for each kind. With `--to-the-end` each
stream takes all that there is, and the driver ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import penstock

EVENTS = "seq LONG, key LONG, kind STRING, amount LONG, op STRING"
NAMES = ("bronze", "silver", "gold")


def signed_sums(changes: DataFrame) -> DataFrame:
    """Rows that are gone count negatively."""
    sign = f.when(f.col("_change_type") == "insert", 1).otherwise(-1)
    return changes.groupBy("kind").agg(
        f.sum(sign).alias("keys"), f.sum(sign * f.col("amount")).alias("amount")
    )


class Medallion:
    def __init__(
        self, spark: SparkSession, root: Path, source: str, options: Mapping[str, str], *, to_the_end: bool
    ) -> None:
        self._spark, self._root, self._to_the_end = spark, root, to_the_end
        self._source, self._options = source, options

    def start(self, name: str) -> StreamingQuery:
        return {"bronze": self._bronze, "silver": self._silver, "gold": self._gold}[name]()

    def _bronze(self) -> StreamingQuery:
        events = self._spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
        return self._write(events.parquet(str(self._root / "source")), self._source, "bronze", self._options)

    def _silver(self) -> StreamingQuery:
        bronze = self._spark.readStream.format(self._source)
        rows = bronze.options(**self._options, maxFilesPerTrigger="2").load()
        upserts = {"writeMode": "upsert", "keys": "key", "orderBy": "seq", "deleteWhen": "op = 'd'"}
        into = {"path": str(self._root / "silver"), "dropColumns": "op", **upserts}
        return self._write(rows, "penstock.delta", "silver", into)

    def _gold(self) -> StreamingQuery:
        silver = self._spark.readStream.format("penstock.delta")
        changes = silver.options(
            path=str(self._root / "silver"), changes="true", maxFilesPerTrigger="5"
        ).load()
        into = {"path": str(self._root / "gold")}
        return self._write(signed_sums(changes), "penstock.delta", "gold", into, mode="complete")

    def _write(
        self, rows: DataFrame, sink: str, name: str, options: Mapping[str, str], mode: str = "append"
    ) -> StreamingQuery:
        writer = rows.writeStream.format(sink).queryName(name).outputMode(mode).options(**options)
        writer = writer.option("checkpointLocation", str(self._root / "checkpoints" / name))
        if self._to_the_end:
            return writer.trigger(availableNow=True).start()
        return writer.start()


def main(root: Path, source: str, options: Mapping[str, str], *, to_the_end: bool) -> None:
    builder = SparkSession.builder.master("local[3]").config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    penstock.register(spark)
    medallion = Medallion(spark, root, source, options, to_the_end=to_the_end)
    if to_the_end:
        for name in NAMES:
            medallion.start(name).awaitTermination()
        spark.stop()
        return
    for name, read in zip(NAMES, (None, *NAMES), strict=False):
        while read and not _has_batches(root, read):
            spark.streams.active[0].awaitTermination(1)
        medallion.start(name)
    spark.streams.awaitAnyTermination()


def _has_batches(root: Path, name: str) -> bool:
    """Return whether the table of a stream is there."""
    return any((root / "checkpoints" / name / "commits").glob("[0-9]*"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), to_the_end="--to-the-end" in sys.argv)
