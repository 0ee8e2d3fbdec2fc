"""Spark's reused Python workers: drop stale import caches and freeze loaded objects between tasks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipimport import zipimporter

ARCHIVES = ("pyspark.zip", "py4j-", "spark-core_")
"""Prefixes of the archives' names: `py4j-…-src.zip`, `spark-core_….jar`."""

_known_modules = 0
"""Number of modules when this process last froze its objects."""


@contextmanager
def loading_libraries() -> Iterator[None]:
    """Pause Python's garbage collector while libraries are loaded, and exclude them from it afterwards.

    Without the pause it takes a sixth of the loading time. Matters in a new process, for the first batch and
    for each batch after a pause.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        freeze_loaded()
    finally:
        if was_enabled:
            gc.enable()


def release_caches() -> None:
    """Called in planner, task and commit processes at the end of their work.

    docs/benchmarks/profiles.md has the time that it saves.
    """
    drop_import_caches()
    if len(sys.modules) != _known_modules:
        gc.collect()
        freeze_loaded()


def drop_import_caches() -> None:
    """Drop the import caches of Spark's own archives.

    Before each task, Spark 4.0 to 4.2 calls `importlib.invalidate_caches()`. Python 3.10 and 3.11 then read
    the directories of all archives again, once for each package imported from them: 150 ms of CPU, three
    times per batch (cpython issue 103200). The next import creates missing finders again, from directories
    that Python has cached; in a worker that has done the same work before, there is no such import. Archives
    of the user are not touched, because they may change.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and Path(finder.archive).name.startswith(ARCHIVES):
            del sys.path_importer_cache[path]


def freeze_loaded() -> None:
    """Exclude loaded modules from garbage collection. Objects created later are collected as usual.

    After each task, Spark's worker calls `gc.collect()` (pyspark's `daemon.py`), which visits every object.
    With the table libraries loaded, this takes most of the time to plan or commit a small batch. Other data
    sources in the same process load more modules, and so does Spark: pandas, with its first result.

    Called as soon as modules are loaded. Their own garbage, 1.5 MB at most, stays: a search for it visits
    140,000 objects, which takes a quarter of a second in each new process.
    """
    global _known_modules
    if len(sys.modules) != _known_modules:
        _known_modules = len(sys.modules)
        gc.freeze()
