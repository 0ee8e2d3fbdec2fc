"""Spark's vectorised reader, which knows fewer encodings than other readers, reads all data files."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.support.plans import delta_plan, iceberg_plan
from tests.writers.task import write_as_task

from penstock.writers.parquet.write_config import WriteConfig

pytestmark = pytest.mark.spark

ROWS = 30_000
NUMBERS = pa.array([None if i % 13 == 5 else i * 7919 % 32_749 for i in range(ROWS)])
"""Few of them twice, some NULL, and all of them SMALLINTs."""


def decimals(precision: int, scale: int) -> pa.Array:
    kind = pa.decimal128(precision, scale)
    return pa.array([None if n is None else Decimal(n).scaleb(-scale) for n in NUMBERS.to_pylist()], kind)


def rows() -> pa.Table:
    integers = {f"int{size}": NUMBERS.cast(f"int{size}") for size in (16, 32, 64)}
    times = {
        "date": NUMBERS.cast(pa.int32()).cast(pa.date32()),
        "local": NUMBERS.cast(pa.timestamp("us")),
        "utc": NUMBERS.cast(pa.timestamp("us", "UTC")),
    }
    numbers = {"d9": decimals(9, 2), "d18": decimals(18, 4), "d38": decimals(38, 9)}
    others = {
        "f": NUMBERS.cast(pa.float32()),
        "d": NUMBERS.cast(pa.float64()),
        "s": NUMBERS.cast(pa.string()),
        "b": NUMBERS.cast(pa.string()).cast(pa.binary()),
        "few": pa.array([f"word {i % 9}" for i in range(ROWS)]),
    }
    return pa.table({"id": range(ROWS), **integers, **times, **numbers, **others})


@pytest.mark.parametrize("plan_of", [delta_plan, iceberg_plan])
def test_every_encoding_is_read_in_columns(
    plan_of: Callable[[Path, pa.Schema], WriteConfig], spark: SparkSession, tmp_path: Path
) -> None:
    """Only the vectorised reader hands over columns."""
    expected = rows()
    write_as_task(plan_of(tmp_path, expected.schema), expected, batch_rows=10_000)

    frame = spark.read.parquet(str(tmp_path))
    assert "ColumnarToRow" in frame._jdf.queryExecution().executedPlan().toString()
    found = frame.orderBy("id").toArrow()
    for name in expected.schema.names:
        assert found[name].cast(expected[name].type).equals(expected[name]), name


@pytest.mark.parametrize("plan_of", [delta_plan, iceberg_plan])
def test_rows_with_nan_are_found(
    plan_of: Callable[[Path, pa.Schema], WriteConfig], spark: SparkSession, tmp_path: Path
) -> None:
    """NaN is the greatest number in Spark, which skips row groups by the footer's bounds."""
    values = [1.0, float("nan")]
    rows = pa.table({"x": values, "s": pa.array([{"x": x} for x in values])})
    write_as_task(plan_of(tmp_path, rows.schema), rows)
    frame = spark.read.parquet(str(tmp_path))
    for place in ("x", "s.x"):
        for where in (f"{place} > 5", f"{place} = double('NaN')", f"{place} >= double('Infinity')"):
            assert frame.where(where).count() == 1, where
