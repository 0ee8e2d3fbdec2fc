"""Spark's standalone cluster on the loopback, and jars for its jobs that do not come with PySpark."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
from servers.maven import classpath
from servers.ports import free_port

_KAFKA = Path(__file__).parent / "spark_kafka" / "pom.xml"
START_S_MAX = 60


def spark_kafka_jars() -> list[str]:
    """Return the jars of Spark's Kafka source and of its Avro functions, for this version of Spark. If the
    repository does not have that, those of the version in `pom.xml`, which run on Spark 4.3, too.

    Raises:
        MavenUnreachableError: they cannot be downloaded.
    """
    try:
        found = classpath(_KAFKA, options=[f"-Dspark.version={pyspark.__version__}"])
    except AssertionError:
        found = classpath(_KAFKA)
    return found.split(os.pathsep)


@contextmanager
def spark_master(folder: Path) -> Iterator[str]:
    """Start a master without workers, and yield its URL."""
    port = free_port()
    arguments = ["org.apache.spark.deploy.master.Master", "--port", str(port), "--webui-port", "0"]
    with _daemon(arguments, folder / "master.log"):
        deadline = time.monotonic() + START_S_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert time.monotonic() < deadline, (folder / "master.log").read_text()
                time.sleep(0.1)
        yield f"spark://127.0.0.1:{port}"


@contextmanager
def spark_worker(master: str, folder: Path, cores: int = 1, memory: str = "1g") -> Iterator[None]:
    """Start a worker. At the end, it and its executors are killed with SIGKILL."""
    folder.mkdir(parents=True, exist_ok=True)
    size = ["--cores", str(cores), "--memory", memory, "--work-dir", str(folder), "--webui-port", "0"]
    with _daemon(["org.apache.spark.deploy.worker.Worker", *size, master], folder / "worker.log"):
        yield


@contextmanager
def _daemon(arguments: list[str], log: Path) -> Iterator[None]:
    home = Path(pyspark.__file__).parent
    class_name, *others = arguments
    command = [str(home / "bin" / "spark-class"), class_name, "--host", "127.0.0.1", *others]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
