"""compactWith=spark: a job on the cluster finds the rows that a delivery of changes replaces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.committers import test_delta_changes as of_delta
from tests.support import iceberg_changes as of_iceberg
from tests.support.backlogs import context_of

from penstock.committers.store.sql import open_store_in_memory
from penstock.delivery import key_search
from penstock.delivery.drain import drain

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("of_kind", [of_delta, of_iceberg], ids=["delta", "iceberg"])
def test_a_delivery_finds_rows_with_spark(
    of_kind: Any, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more keys than Spark sends with each task: it broadcasts them."""
    monkeypatch.setattr(key_search, "HERE_FILES_MAX", 1)
    monkeypatch.setattr(key_search, "TASK_FILES_MAX", 2)
    jobs: list[int] = []

    def open_spark() -> SparkSession:
        jobs.append(1)
        return spark

    with open_store_in_memory() as store:
        options = {"delivery": "decoupled", "compactWith": "spark"}
        changed, row = of_kind.Changed(tmp_path, store, options=options), of_kind.row
        for number in range(5):
            changed.change([row(k, 1) for k in range(number, 1000, 5)])
            drain(store, context_of())
        assert not jobs
        changed.change(
            [row(k, 2) for k in range(0, 200_000, 2)], [row(k, 3, op="d") for k in range(0, 900, 6)]
        )
        changed.change([row(k, 4) for k in range(0, 500, 7)])
        drain(store, replace(context_of(), spark=open_spark))
        assert jobs == [1], "both batches have one commit"
        changed.check()
