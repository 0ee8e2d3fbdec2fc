"""Spark's own archives on the path of its Python workers: looked through once, not before every task."""

from __future__ import annotations

import sys
from pathlib import Path
from zipimport import zipimporter

ARCHIVES = ("pyspark.zip", "py4j-", "spark-core_")
"""How their names begin: `py4j-…-src.zip`, `spark-core_….jar`."""


def forget_finders() -> None:
    """Planner, task and commit process, at the end of their work.

    Before each piece of work Spark 4.0 to 4.2 calls `importlib.invalidate_caches()`, with which Python 3.10
    and 3.11 read the directories of all archives anew, once for each package that was imported from them:
    150 ms of processor, three times in a batch (docs/benchmarks/profiles.md, cpython's issue 103200). Finders
    that are gone are made anew, from directories that Python still has, by the next import that asks for
    them; in a worker that has done the same work before there is none. Archives of the user stay as they
    are: they may change.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and Path(finder.archive).name.startswith(ARCHIVES):
            del sys.path_importer_cache[path]
