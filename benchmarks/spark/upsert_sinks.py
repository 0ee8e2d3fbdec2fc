"""Sinks that change rows of a table by key. MERGE of the JVM connectors runs in `foreachBatch`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from benchmarks.spark.sinks import DeltaSpark, IcebergSpark, Penstock, Sink
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

BASE_SETTING = "spark.penstock.benchmark.base"
"""Session setting with the folder of the rows that the tables of the JVM connectors start with."""
CHANGES = {"writeMode": "upsert", "keys": "id", "orderBy": "n", "merge": "on-read"}
"""Options of Penstock."""


def table_in(folder: Path) -> Path:
    """Return where the tables of Penstock are, which the benchmark creates before."""
    return folder.with_name(f"{folder.name}_table")


class UpsertDelta(Penstock):
    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        writer = rows.writeStream.format("penstock.delta").options(**CHANGES)
        return writer.option("path", str(table_in(folder)))


class UpsertIceberg(Penstock):
    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        options = {**CHANGES, "warehouse": str(table_in(folder)), "table": "bench.rows"}
        return rows.writeStream.format("penstock.iceberg").options(**options)


class MergeDelta(DeltaSpark):
    """Masks rows with deletion vectors, as Penstock does."""

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        vectors = "USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        return _merging(rows, f"delta.`{folder}/table`", vectors)


class MergeIceberg(Sink):
    """Masks rows with position deletes, as Penstock does."""

    settings: ClassVar = IcebergSpark.settings

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        rows.sparkSession.conf.set("spark.sql.catalog.jvm.warehouse", str(folder.parent))
        masks = "USING iceberg TBLPROPERTIES ('format-version' = '2', 'write.merge.mode' = 'merge-on-read')"
        return _merging(rows, f"jvm.`{folder.name}`.rows", masks)


def _merging(rows: DataFrame, table: str, creation: str) -> DataStreamWriter:
    spark: SparkSession = rows.sparkSession
    spark.sql(f"CREATE TABLE {table} {creation} AS SELECT * FROM parquet.`{spark.conf.get(BASE_SETTING)}`")

    def merge(batch: DataFrame, _batch_id: int) -> None:
        batch.createOrReplaceTempView("changes")
        batch.sparkSession.sql(
            f"MERGE INTO {table} t USING changes s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    return rows.writeStream.foreachBatch(merge)


UPSERT_SINKS: dict[str, type[Sink]] = {
    "upsert.delta": UpsertDelta,
    "upsert.iceberg": UpsertIceberg,
    "delta-merge": MergeDelta,
    "iceberg-merge": MergeIceberg,
}
