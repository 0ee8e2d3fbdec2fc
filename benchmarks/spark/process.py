"""Runs Spark in a separate process for a benchmark.

It uses the newest Spark for which all JVM sinks have a release, from a separate environment. If that
environment or Maven is missing, it uses the Spark of this environment without the JVM sinks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from benchmarks.measure import print_progress
from servers.maven import MavenUnreachableError, classpath

import penstock

ROOT = Path(__file__).parents[2]
PEERS_ENVIRONMENT = ROOT / ".venv-spark41"
PEERS_POM = ROOT / "benchmarks" / "peers" / "pom.xml"
JVM_SINKS = ("delta-spark", "iceberg-spark", "delta-merge", "iceberg-merge")

LOCAL, CLUSTER = "local[2]", "local-cluster[2,1,4096]"
CORES = 2
"""Number of cores, equal to the number of concurrent tasks, so a Python sink shares them with the JVM."""
SETTINGS = {
    **penstock.START_SETTINGS,
    "spark.ui.enabled": "false",
    "spark.driver.memory": "8g",
    "spark.executor.memory": "4g",
    "spark.driver.maxResultSize": "0",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}
"""Penstock's recommended settings, which do not affect JVM sinks, and memory to collect a large batch
(foreachBatch); otherwise Spark's defaults."""


@dataclass(frozen=True)
class Peers:
    """The Python environment of Spark, and the JVM sinks."""

    python: Path
    jars: str
    """Jars of the JVM sinks, separated by commas; empty without them."""
    missing_reason: str = ""
    """For the report: the reason for missing JVM sinks."""

    def has(self, sink: str) -> bool:
        return bool(self.jars) or sink not in JVM_SINKS


@cache
def find_peers() -> Peers:
    if not (PEERS_ENVIRONMENT / ".installed").exists():
        why = f"Without the JVM sinks: {PEERS_ENVIRONMENT.name} is missing; `make bench` creates it."
        return Peers(Path(sys.executable), "", why)
    try:
        jars = classpath(PEERS_POM).replace(os.pathsep, ",")
    except MavenUnreachableError as error:
        return Peers(Path(sys.executable), "", f"Without the JVM sinks: {error}.")
    return Peers(PEERS_ENVIRONMENT / "bin" / "python", jars)


class Spark:
    """Calls the methods of benchmarks.spark.driver.Streams."""

    def __init__(self, connection: Connection, log: Path, pid: int) -> None:
        self._connection, self._log, self._pid = connection, log, pid
        self.machine = ""
        self._python_s = self._ended_s = 0.0
        """The hardware, and the libraries of Spark's environment."""

    def call(self, method: str, **arguments: Any) -> Any:
        self._connection.send((method, arguments))
        try:
            is_ok, returned = self._connection.recv()
        except EOFError:
            raise RuntimeError(f"Spark has ended. Its log ends:\n{self._log.read_text()[-4000:]}") from None
        if not is_ok:
            raise RuntimeError(f"{method} failed in Spark:\n{returned}")
        return returned

    def processor_s(self) -> tuple[float, float]:
        """Return the processor seconds so far of the JVM and of its Python processes."""
        jvm = python = 0.0
        for process in psutil.Process(self._pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                if process.name() == "java":
                    jvm += times.user + times.system
                    python += times.children_user + times.children_system  # of ended processes
                else:
                    python += times.user + times.system + times.children_user + times.children_system
        # Workers that are idle for a minute end, and their parents do not always have their seconds.
        self._ended_s += max(0.0, self._python_s - python - self._ended_s)
        self._python_s = python + self._ended_s
        return jvm, self._python_s


@contextmanager
def started(
    master: str, peers: Peers, settings: Mapping[str, str] | None = None, cores: int = CORES
) -> Iterator[Spark]:
    """Start Spark on this number of cores, and stop it at the end of the block."""
    here, there = Pipe()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-spark-") as folder, here:
        log = Path(folder) / "log"
        with there, log.open("w") as output:
            process = subprocess.Popen(
                [peers.python, "-m", "benchmarks.spark.driver", str(there.fileno())],
                pass_fds=[there.fileno()],
                stdout=output,
                stderr=output,
                env=_environment(peers.python),
                cwd=folder,
            )
        try:
            psutil.Process(process.pid).cpu_affinity(sorted(os.sched_getaffinity(0))[:cores])
            spark = Spark(here, log, process.pid)
            all_settings = {**SETTINGS, **(settings or {})}
            spark.machine = spark.call("start_spark", master=master, jars=peers.jars, settings=all_settings)
            print_progress(f"{spark.machine}, {master}")
            yield spark
        finally:
            here.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _environment(python: Path) -> dict[str, str]:
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
    }
    environment.pop("SPARK_HOME", None)
    return environment
