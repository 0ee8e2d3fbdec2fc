"""Counts rows with Spark: `python spark_program.py request.json answer.json`."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.ui.enabled": "false",
}
"""Both connectors, and nothing that takes time for each of many small queries."""


def main(request: Path, answer: Path) -> None:
    wanted = json.loads(request.read_text())
    settings = {**SETTINGS, "spark.jars": wanted["jars"]}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    answer.write_text(json.dumps({name: counts(spark, table) for name, table in wanted["tables"].items()}))
    spark.stop()


def counts(spark: SparkSession, table: dict[str, Any]) -> tuple[list[int | str], list[int | str]]:
    spark.read.format(table["format"]).load(table["location"]).createOrReplaceTempView("t")
    columns = (f"count(*) FILTER (WHERE {where})" for where in table["where"])
    on_all = list(spark.sql(f"SELECT {', '.join(columns)} FROM t").first() or ())

    def pushed(where: str) -> int | str:
        try:
            return int(spark.sql(f"SELECT count(*) FROM t WHERE {where}").first()[0])  # type: ignore[index]
        except Exception as error:  # noqa: BLE001 - whatever it is: how the filter fails
            return f"{type(error).__name__}: {str(error)[:200]}"

    with ThreadPoolExecutor(2) as threads:  # one query is planned while another one runs
        return list(threads.map(pushed, table["where"])), on_all


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
