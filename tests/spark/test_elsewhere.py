"""docs/managed-spark.md: its job on a cluster without any package of Maven, and its declarative pipeline."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from servers.spark_cluster import spark_master, spark_worker
from tests.support.driver_process import SHORT_LIVED
from tests.support.lakes import DeltaLake, rows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "managed-spark.md").read_text()
BLOCKS = re.compile(r"^```\w+\n(# (\S+)\n.*?)^```$", re.DOTALL | re.MULTILINE)
FILES = {block[2]: block[1] for block in BLOCKS.finditer(PAGE)}
ROWS = 1000

needs_pipelines = pytest.mark.skipif(pyspark.__version__ < "4.3", reason="needs Spark 4.3")


def write_events(folder: Path, number: int) -> None:
    ids = range(number * ROWS, (number + 1) * ROWS)
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": ids, "kind": [one % 3 for one in ids]}), folder / f"{number}.parquet")


def run(command: list[object], log: Path, folder: Path, variables: Mapping[str, str] = {}) -> str:
    """Return what the command has printed, after it has ended well."""
    environment = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "PYSPARK_SUBMIT_ARGS")}
    with log.open("w") as output:
        ended = subprocess.run(
            [str(part) for part in command],
            cwd=folder,
            env={**environment, "PYSPARK_PYTHON": sys.executable, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=300,
        )
    text = log.read_text()
    assert ended.returncode == 0, text
    return text


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make pyfiles` builds: the wheel under a name that Spark puts on the path."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    run(build, folder / "build.log", folder)
    (wheel,) = folder.glob("*.whl")
    return wheel.rename(folder / "penstock.zip")


WHERE = """
paths = spark.sparkContext.range(2).map(lambda _: __import__("penstock").__file__).collect()
print("executors:", set(paths))
"""
"""Shows that executors have Penstock from the archive."""

COPY = """
written = spark.readStream.format("penstock.delta").load(sys.argv[2])
copy = written.writeStream.format("penstock.delta").option("path", sys.argv[2] + "-copy")
copy.option("checkpointLocation", sys.argv[3] + "-copy").trigger(availableNow=True).start().awaitTermination()
some = spark.read.format("penstock.delta").option("where", "id < 10").load(sys.argv[2] + "-copy")
print("read:", some.count())
"""
"""Reads the table as a stream, and the copy as a table."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    with ExitStack() as stack:
        master = stack.enter_context(spark_master(tmp_path / "cluster"))
        stack.enter_context(spark_worker(master, tmp_path / "cluster" / "worker"))
        yield master


@pytest.mark.spark
@pytest.mark.slow
def test_a_cluster_runs_the_job_without_packages(cluster: str, archive: Path, tmp_path: Path) -> None:
    job, table = tmp_path / "job.py", tmp_path / "table"
    job.write_text(FILES["job.py"] + WHERE + COPY)
    conf = [word for key, value in SHORT_LIVED.items() for word in ("--conf", f"{key}={value}")]
    submit = [
        Path(sys.executable).with_name("spark-submit"),
        "--master",
        cluster,
        *conf,
        "--py-files",
        archive,
    ]
    write_events(tmp_path / "events", 0)
    places = [tmp_path / "events", table, tmp_path / "checkpoint"]
    printed = run([*submit, job, *places], tmp_path / "log", tmp_path)
    for written in (table, tmp_path / "table-copy"):
        assert rows(DeltaLake(written), "id") == [(one,) for one in range(ROWS)]
    assert "read: 10\n" in printed
    assert re.search(r"executors: \{'\S+/penstock\.zip/penstock/__init__\.py'\}", printed), printed


@needs_pipelines
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.campaign
def test_a_declarative_pipeline_writes_each_row_once(tmp_path: Path) -> None:
    for name in ("spark-pipeline.yml", "transformations/events.py"):
        text = FILES[name].replace("/pipelines/events", f"{tmp_path}/storage")
        text = text.replace("/lake/events", f"{tmp_path}/table").replace("/data/events", f"{tmp_path}/events")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [Path(sys.executable).with_name("spark-pipelines"), "run", "--spec", "spark-pipeline.yml"]
    for number in range(2):
        write_events(tmp_path / "events", number)
        assert "Run is COMPLETED" in run(
            command, tmp_path / "log", tmp_path, {"PYTHONPATH": str(ROOT / "src")}
        )
        assert rows(DeltaLake(tmp_path / "table"), "id") == [(one,) for one in range((number + 1) * ROWS)]
    assert (tmp_path / "storage/_checkpoints/lake/events_to_lake/0/penstock.sqlite").exists()


def test_every_block_is_python() -> None:
    for name, text in FILES.items():
        if name.endswith(".py"):
            compile(text, name, "exec")
