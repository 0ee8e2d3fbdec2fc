"""Posts rows with Flink's AsyncSinkBase, in a local Flink cluster in a JVM of its own."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from servers.jvm import compiled
from servers.maven import classpath, java

_FOLDER = Path(__file__).parent / "flink_async_sink"


@contextmanager
def flink_async_sink(
    url: str, rows: int, batch_rows: int, in_flight: int, buffered_rows: int
) -> Iterator[subprocess.Popen[str]]:
    """Start to send rows from one task, with Flink's other defaults. The process ends with the last row.

    Raises:
        MavenUnreachableError: the jars cannot be downloaded.
    """
    numbers = map(str, (rows, batch_rows, in_flight, buffered_rows))
    with tempfile.TemporaryDirectory(prefix="penstock-flink-") as folder:
        classes = compiled(_FOLDER / "Sender.java", flink_jars())
        command = [java(), "-Xmx512m", "-cp", f"{classes}:{flink_jars()}", "Sender", url, *numbers]
        sender = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder
        )
        try:
            yield sender
        finally:
            sender.kill()
            sender.communicate()


@cache
def flink_jars() -> str:
    return classpath(_FOLDER / "pom.xml")
