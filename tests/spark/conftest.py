"""One real Spark session for all Spark tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.id_stream import IdStream

import penstock


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    penstock.register(session)
    yield session
    session.stop()


@pytest.fixture
def ids(spark: SparkSession, tmp_path: Path) -> IdStream:
    return IdStream(spark, tmp_path)
