"""Runs SQL in Iceberg's own connector for Spark: `python spark_iceberg.py request.json answer.json`.

The catalog `h` has the tables of a folder, which it finds by their files alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.h": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.h.type": "hadoop",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}


def main(request: Path, answer: Path) -> None:
    wanted = json.loads(request.read_text())
    settings = {
        **SETTINGS,
        "spark.jars": wanted["jars"],
        "spark.sql.catalog.h.warehouse": wanted["warehouse"],
    }
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    answers = [[list(row) for row in spark.sql(statement).collect()] for statement in wanted["statements"]]
    answer.write_text(json.dumps(answers))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
