"""compactWith=spark: a delivery's small files are rewritten by a job on the cluster."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.delivery.test_compaction import Backlog, by_duckdb, files_on_disk, partitioned_sink
from tests.support.backlogs import decoupled
from tests.support.driver_process import SHORT_LIVED

from penstock.committers.errors import RetryableError
from penstock.committers.file_tables.manifest import decode
from penstock.delivery.compaction import DeliveryCompactor
from penstock.delivery.rewriting import GroupRewriter, SparkExecutor
from penstock.writers.parquet.file_names import parse_file_name

pytestmark = pytest.mark.spark


def compactor(backlog: Backlog, spark: SparkSession) -> DeliveryCompactor:
    return DeliveryCompactor(backlog.sink.open_table(), GroupRewriter(SparkExecutor(lambda: spark)))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_spark_job_writes_the_same_files_as_a_local_compaction(
    kind: str, tmp_path: Path, spark: SparkSession
) -> None:
    backlog = Backlog(partitioned_sink(kind, tmp_path))
    progress: list[tuple[int, int]] = []
    steps: list[str] = []

    @contextmanager
    def supervised() -> Iterator[None]:
        steps.append("job begins")
        yield
        steps.append(f"job ends, {len(files_on_disk(tmp_path)) - backlog.merged.files} new files")

    execute = SparkExecutor(lambda: spark, supervised)
    rewrite = GroupRewriter(execute, on_progress=lambda *done: progress.append(done))
    compacted = DeliveryCompactor(backlog.sink.open_table(), rewrite)(backlog.merged, "delivery-1")
    assert steps == ["job begins", "job ends, 3 new files"]
    assert compacted is not None
    assert progress == [(3, 3)]
    assert compacted.merged == backlog.merged.merged
    local = decode(backlog.compactor()(backlog.merged, "delivery-2") or backlog.merged).files
    anonymous = [replace(file, path="") for file in decode(compacted).files]
    assert anonymous == [replace(file, path="") for file in local]
    names = [parse_file_name(file.path) for file in decode(compacted).files]
    assert [name.partition for name in names if name] == [0, 1, 2]

    backlog.commit(compacted)
    assert len(by_duckdb(tmp_path, kind)) == 48


def test_a_missing_source_is_named_and_the_files_of_other_tasks_are_deleted(
    tmp_path: Path, spark: SparkSession
) -> None:
    backlog = Backlog(partitioned_sink("delta", tmp_path))
    missing = decode(backlog.merged).files[-1].path
    (tmp_path / "table" / missing).unlink()
    before = files_on_disk(tmp_path)
    with pytest.raises(RetryableError, match=missing.rpartition("/")[2]):
        compactor(backlog, spark)(backlog.merged, "delivery-1")
    assert files_on_disk(tmp_path) == before


class BrokenSession:
    def createDataFrame(self, *_: object) -> Iterator[Any]:
        raise ConnectionError("the driver has ended\nand more")


def test_a_spark_that_cannot_run_the_job_is_a_retryable_error(tmp_path: Path) -> None:
    backlog = Backlog(partitioned_sink("delta", tmp_path))
    broken: Any = BrokenSession()
    with pytest.raises(RetryableError, match=r"the driver has ended\. .*compactWith=local"):
        compactor(backlog, broken)(backlog.merged, "delivery-1")


SUBMITTED = """
from penstock.cli.app import app
app()
"""


@pytest.mark.parametrize(
    ("kind", "by"),
    [pytest.param("delta", "penstock", marks=pytest.mark.campaign), ("iceberg", "spark-submit")],
)
def test_penstock_deliver_has_spark_rewrite_a_backlog_of_small_files(
    kind: str, by: str, tmp_path: Path
) -> None:
    """In a session of its own, or in the one of spark-submit; Spark's own log of events says that it did."""
    lake = decoupled(tmp_path, kind, batches=12, compactWith="spark")
    events, program = tmp_path / "events", tmp_path / "deliver.py"
    events.mkdir()
    program.write_text(SUBMITTED)
    settings = {
        **SHORT_LIVED,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    conf = ["--master", "local[2]", *(word for pair in settings.items() for word in conf_of(*pair))]
    words = ["deliver", "--once", "--spark", "--store", lake.store_url]
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    if by == "penstock":
        command = [str(bin_folder / "penstock"), *words]
        environment["PYSPARK_SUBMIT_ARGS"] = shlex.join([*conf, "pyspark-shell"])
    else:
        command = [str(bin_folder / "spark-submit"), *conf, str(program), *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    output = ended.stdout + ended.stderr  # spark-submit joins them
    assert ended.returncode == 0, output
    assert "delivered batches 0..11, 24 rows, 24 -> 2 files" in output
    assert "Traceback" not in output
    assert lake.row_ids() == list(range(1, 25))
    logged = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert "MapInArrow" in logged
    lake.store.close()


def conf_of(key: str, value: str) -> tuple[str, str]:
    return "--conf", f"{key}={value}"
