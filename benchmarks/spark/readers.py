"""Readers of tables for comparison. Runs in the driver program of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.spark.python_sources import ArrowDataSource
from benchmarks.spark.sinks import DeltaSpark
from pyspark.sql import DataFrame, SparkSession

Read = Callable[[SparkSession, Mapping[str, str], Sequence[str]], DataFrame]
"""Returns the rows of a table, with these columns; none: all."""


def _selected(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    return rows.select(*columns) if columns else rows


def _files(spark: SparkSession, table: Mapping[str, str], columns: Sequence[str]) -> DataFrame:
    return _selected(spark.read.parquet(table["data"]), columns)


def _delta_spark(spark: SparkSession, table: Mapping[str, str], columns: Sequence[str]) -> DataFrame:
    for name, value in DeltaSpark.settings.items():
        spark.conf.set(name, value)
    return _selected(spark.read.format("delta").load(table["path"]), columns)


def _iceberg_spark(spark: SparkSession, table: Mapping[str, str], columns: Sequence[str]) -> DataFrame:
    return _selected(spark.read.format("iceberg").load(table["metadata"]), columns)


def _arrow(spark: SparkSession, table: Mapping[str, str], columns: Sequence[str]) -> DataFrame:
    spark.dataSource.register(ArrowDataSource)
    schema = _files(spark, table, columns).schema
    return spark.read.format("arrow").schema(schema).option("path", table["data"]).load()


def _penstock(spark: SparkSession, table: Mapping[str, str], columns: Sequence[str]) -> DataFrame:
    reader = spark.read.format(table["format"])
    for name in ("path", "warehouse", "table"):
        if name in table:
            reader = reader.option(name, table[name])
    return (reader.option("columns", ", ".join(columns)) if columns else reader).load()


READERS: Mapping[str, Read] = {
    "Spark's Parquet reader": _files,
    "delta-spark": _delta_spark,
    "iceberg-spark": _iceberg_spark,
    "pyarrow": _arrow,
    "Penstock": _penstock,
}
