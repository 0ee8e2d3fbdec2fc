"""Import caches and garbage of Spark's workers are released between tasks."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile
from zipimport import zipimporter

import pytest

from penstock.datasource.spark.spark_workers import drop_import_caches


def archive(folder: Path, name: str, package: str) -> str:
    path = folder / name
    with ZipFile(path, "w") as file:
        file.writestr(f"{package}/__init__.py", "")
        file.writestr(f"{package}/first.py", "VALUE = 1")
        file.writestr(f"{package}/second.py", "VALUE = 2")
    return str(path)


def finders(path: str) -> list[str]:
    return [
        one
        for one, finder in sys.path_importer_cache.items()
        if isinstance(finder, zipimporter) and finder.archive == path
    ]


@pytest.mark.parametrize("name", ["pyspark.zip", "py4j-0.10.9.9-src.zip", "spark-core_2.13-4.1.0.jar"])
def test_finders_of_spark_are_dropped(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = "package_of_" + name.partition(".")[0].partition("-")[0]
    path = archive(tmp_path, name, package)
    monkeypatch.syspath_prepend(path)
    importlib.import_module(f"{package}.first")
    assert len(finders(path)) == 2  # of the archive and of the package in it

    drop_import_caches()

    assert finders(path) == []
    assert importlib.import_module(f"{package}.second").VALUE == 2


@pytest.mark.parametrize("name", ["dependencies.zip", "pyspark_jobs.zip"])
def test_archives_of_the_user_may_change(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = "of_user_" + name.removesuffix(".zip")
    path = archive(tmp_path, name, package)
    monkeypatch.syspath_prepend(path)
    importlib.import_module(f"{package}.first")

    drop_import_caches()

    assert len(finders(path)) == 2


GARBAGE = """
import gc, sys, weakref
import penstock.datasource.planning.plan
from penstock.datasource.spark.spark_workers import release_caches

class Ring:
    def __init__(self):
        self.itself = self

before = len(gc.get_objects())
gc.disable()
garbage = weakref.ref(Ring())
for more in ("colorsys", "wave"):
    release_caches()
    assert garbage() is None
    garbage = weakref.ref(Ring())
    assert more not in sys.modules
    __import__(more)
release_caches()
assert garbage() is None
garbage = weakref.ref(Ring())
release_caches()
assert garbage() is not None
gc.collect()
assert garbage() is None
print(before, len(gc.get_objects()))
"""


def test_modules_are_not_searched_for_garbage_any_more_and_what_comes_later_is() -> None:
    done = subprocess.run([sys.executable, "-c", GARBAGE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert before > 20_000
    assert after < 1_000
