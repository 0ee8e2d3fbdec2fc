"""One real Spark session for all Spark tests, and streams of ids into a table of each format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.driver_process import SHORT_LIVED
from tests.support.id_stream import FILES, ROWS, IdStream, write_source
from tests.support.lakes import LAKES, DeltaLake, IcebergLake, LakeTable, delta_lake, iceberg_lake

import penstock


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    given = penstock.START_SETTINGS.items()
    start = {key: f"{value} {SHORT_LIVED.get(key, '')}".strip() for key, value in given}
    own = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    builder = SparkSession.builder.master("local[2]").config(map={**SHORT_LIVED, **start, **own})
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    penstock.register(session)
    yield session
    session.stop()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Files of ids for a stream, a batch each."""
    write_source(tmp_path / "source", FILES, ROWS)
    return tmp_path / "source"


@pytest.fixture(params=LAKES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    """The place of a table, in each format."""
    return LAKES[request.param](tmp_path)


@pytest.fixture
def ids(spark: SparkSession, tmp_path: Path, table: LakeTable) -> IdStream:
    """A stream into each format."""
    return IdStream(spark, tmp_path, table)


@pytest.fixture
def delta_table(tmp_path: Path) -> DeltaLake:
    return delta_lake(tmp_path)


@pytest.fixture
def delta_ids(spark: SparkSession, tmp_path: Path, delta_table: DeltaLake) -> IdStream:
    return IdStream(spark, tmp_path, delta_table)


@pytest.fixture
def iceberg_table(tmp_path: Path) -> IcebergLake:
    return iceberg_lake(tmp_path)


@pytest.fixture
def iceberg_ids(spark: SparkSession, tmp_path: Path, iceberg_table: IcebergLake) -> IdStream:
    return IdStream(spark, tmp_path, iceberg_table)


@pytest.fixture(params=["UTC", "America/New_York"])
def session_zone(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """New York sets its clocks back on 2024-11-03 at 06:00 UTC: two hours have the same local time."""
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", "UTC")
