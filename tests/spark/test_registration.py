"""How users meet Penstock: `penstock.register(spark)`, or one class at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession
from tests.spark.formats import LakeTable
from tests.tables import rows

import penstock

pytestmark = pytest.mark.spark

PROGRAM = """
import sys, penstock
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
penstock.register(spark)
spark.range(10).write.format("penstock.delta").mode("append").save(sys.argv[1])
"""


def test_a_class_is_registered_by_itself(spark: SparkSession, table: LakeTable) -> None:
    of_table = {one.name(): one for one in (penstock.DeltaDataSource, penstock.IcebergDataSource)}
    spark.dataSource.register(of_table[table.source])
    spark.range(3).write.format(table.source).mode("append").options(**table.options).save()

    assert rows(table.on_disk) == [(0,), (1,), (2,)]


def test_local_workers_use_the_python_that_registers(tmp_path: Path) -> None:
    """Spark's default is the `python3` on the PATH, where Penstock need not be installed."""
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "t")], env=environment, check=True, timeout=120
    )

    assert pl.scan_delta(str(tmp_path / "t")).collect().height == 10
