"""The driver program of the kill tests, started in a process of its own. The demo uses it, too."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.class_archive import java_options

from penstock.testing import RunningJob

DRIVER = Path(__file__).with_name("stream_driver.py")

SHORT_LIVED = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": java_options(),
}
"""Configuration of a Spark that lives for seconds."""

SUBMIT_ARGS = " ".join(f'--conf "{key}={value}"' for key, value in SHORT_LIVED.items()) + " pyspark-shell"
"""The same as the environment variable PYSPARK_SUBMIT_ARGS, for a program that is tested as it is."""


class DriverProcess(RunningJob):
    """A driver program with this Python."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        program: Path = DRIVER,
        prefix: Sequence[str] = (),
    ) -> None:
        """
        Args:
            prefix: what to start the Python with, such as another user
        """
        python = {"PYSPARK_PYTHON": sys.executable, **(environment or {})}
        super().__init__([*prefix, sys.executable, program, *arguments], log, python)

    def __enter__(self) -> DriverProcess:
        return self
