"""Spark's Python workers, which outlive a piece of work: less to search between one and the next."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from zipimport import zipimporter

ARCHIVES = ("pyspark.zip", "py4j-", "spark-core_")
"""How their names begin: `py4j-…-src.zip`, `spark-core_….jar`."""

_known_modules = 0
"""How many there were when this process last left what is loaded out of the search for garbage."""


def release_caches() -> None:
    """Planner, task and commit process, at the end of their work.

    What this is worth is in docs/benchmarks/profiles.md.
    """
    drop_import_caches()
    freeze_loaded()


def drop_import_caches() -> None:
    """Spare Python its search of Spark's own archives.

    Before each piece of work Spark 4.0 to 4.2 calls `importlib.invalidate_caches()`, with which Python 3.10
    and 3.11 read the directories of all archives anew, once for each package that was imported from them:
    150 ms of processor, three times in a batch (cpython's issue 103200). Finders that are gone are made anew,
    from directories that Python still has, by the next import that asks for them; in a worker that has done
    the same work before there is none. Archives of the user stay as they are: they may change.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and Path(finder.archive).name.startswith(ARCHIVES):
            del sys.path_importer_cache[path]


def freeze_loaded() -> None:
    """Spare Python its search of modules for garbage. What comes when all are loaded is searched as ever.

    After each piece of work Spark's worker calls `gc.collect()` (pyspark's `daemon.py`), which looks at every
    object there is: with the table libraries, most of what planning or committing a small batch takes.
    Another data source in the same process loads more, and so does Spark: with its first answer, pandas.
    """
    global _known_modules
    if len(sys.modules) != _known_modules:
        _known_modules = len(sys.modules)
        gc.collect()
        gc.freeze()
