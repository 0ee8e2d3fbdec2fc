"""Delta's and Iceberg's own connectors, in a Spark of their own, which has a release of both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from servers.maven import classpath
from tests.filters.spark_program import SETTINGS
from tests.support.driver_process import SHORT_LIVED

POM = Path(__file__).parents[1] / "fixtures" / "jvm_readers" / "pom.xml"
_PROGRAM = Path(__file__).with_name("jvm_program.py")


def catalog_settings(warehouse: Path) -> Mapping[str, str]:
    """Settings that open the embedded catalog of a warehouse by its name, `penstock`."""
    catalog = "spark.sql.catalog.penstock"
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{warehouse}/catalog.sqlite",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.clients": "1",
        f"{catalog}.warehouse": f"file://{warehouse}",
        f"{catalog}.cache-enabled": "false",
    }


class JvmTables:
    """Runs SQL, where Delta tables are named by their path and those of Iceberg by catalog, namespace and
    name; and streams.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return self._answer(statement)

    def stream(self, rows: str, sink: str, options: Mapping[str, str], table: str = "") -> None:
        """Write what a source has, and what the query's checkpoint does not have yet.

        Args:
            rows: an expression, such as `spark.readStream.table("a")`
            table: for sinks that take the name of a table in a catalog
        """
        self._answer({"rows": rows, "sink": sink, "options": options, "table": table})

    def _answer(self, request: str | Mapping[str, object]) -> list[tuple[Any, ...]]:
        self._connection.send(request)
        is_ok, answer = self._connection.recv()
        if not is_ok:
            raise AssertionError(f"{request}\n{answer}")
        return list(answer)


@contextmanager
def jvm_tables(folder: Path, settings: Mapping[str, str], jars: Sequence[str] = ()) -> Iterator[JvmTables]:
    """Start Spark, and stop it at the end of the block. Skips the test with another Spark than 4.0.

    Args:
        jars: besides those of both formats

    Raises:
        MavenUnreachableError: no repository answers for the jars.
    """
    pyspark = pytest.importorskip("pyspark")
    if not pyspark.__version__.startswith("4.0."):
        pytest.skip("needs Spark 4.0, for which Delta and Iceberg have connectors")
    all_jars = [*classpath(POM).split(os.pathsep), *jars]
    here, there = Pipe()
    command = [sys.executable, str(_PROGRAM), str(there.fileno())]
    with here, (folder / "spark.log").open("w") as log:
        with there:
            process = subprocess.Popen(command, pass_fds=[there.fileno()], cwd=folder, stdout=log, stderr=log)
        try:
            here.send({**SHORT_LIVED, **SETTINGS, **settings, "spark.jars": ",".join(all_jars)})
            yield JvmTables(here)
        finally:
            here.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
