"""`import penstock` is fast, executors load no database driver, and no modules import each other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

import penstock
from penstock import testing

ROOT = Path(penstock.__file__).resolve().parent
PACKAGES = (
    "cli",
    "committers",
    "datasource",
    "delivery",
    "operating",
    "readers",
    "telemetry",
    "testing",
    "ui",
    "writers",
)
HEAVY = {"alembic", "deltalake", "pyarrow", "pyiceberg", "pyspark", "sqlalchemy"}
IMPORT_MS_MAX = 150


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def loaded_by(statement: str) -> set[str]:
    """Every module that is loaded in a fresh interpreter after `statement`, beyond those of its start."""
    code = (
        "import sys, json; before = set(sys.modules)\n"
        f"{statement}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    return set(json.loads(python("-c", code).stdout))


def top_level(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def import_ms() -> float:
    """Cumulative milliseconds of `import penstock`, from the interpreter's own -X importtime."""
    report = python("-X", "importtime", "-c", "import penstock").stderr
    (line,) = [line for line in report.splitlines() if line.split("|")[-1].strip() == "penstock"]
    return int(line.split("|")[1]) / 1000


def test_importing_penstock_takes_less_than_150_ms() -> None:
    """The best of five: a shared machine only ever makes it slower."""
    assert min(import_ms() for _ in range(5)) < IMPORT_MS_MAX


def test_importing_penstock_loads_neither_spark_nor_a_library() -> None:
    assert not top_level(loaded_by("import penstock")) & HEAVY


def test_every_public_name_can_be_imported() -> None:
    for name in penstock.__all__:
        assert (
            getattr(penstock, name).__name__ == name if name != "START_SETTINGS" else penstock.START_SETTINGS
        )
    for name in testing.__all__:
        assert getattr(testing, name).__name__ == name if name != "CRASH_POINTS" else testing.CRASH_POINTS


def test_importing_the_test_kit_loads_neither_duckdb_nor_spark() -> None:
    """Killing a job requires no duckdb, and checking a table no Spark."""
    assert not top_level(loaded_by("import penstock.testing")) & {*HEAVY, "duckdb", "psutil"}


@pytest.mark.parametrize("module", ["checking", "delta_table", "duckdb_reader", "iceberg_table", "jobs"])
def test_modules_of_the_test_kit_load_no_spark(module: str) -> None:
    assert "pyspark" not in top_level(loaded_by(f"import penstock.testing.{module}"))


def test_the_invariant_needs_only_the_standard_library() -> None:
    loaded = loaded_by("import penstock.testing.invariant")
    assert top_level(loaded) - set(sys.stdlib_module_names) == {"penstock"}
    assert {module for module in loaded if module.startswith("penstock")} == {
        "penstock",
        "penstock.testing",
        "penstock.testing.invariant",
    }


def test_writers_load_no_database_driver_table_library_or_spark() -> None:
    """Executors pay for every import once per worker process."""
    modules = [
        ".".join(("penstock", *path.relative_to(ROOT).with_suffix("").parts))
        for path in sorted((ROOT / "writers").rglob("[!_]*.py"))
    ]
    assert modules
    loaded = loaded_by(f"import {', '.join(modules)}")
    assert not top_level(loaded) & (HEAVY - {"pyarrow"})


@pytest.mark.parametrize("writer", ["arrow_stream_writer", "batch_writer", "row_stream_writer"])
def test_writers_in_executors_load_no_database_driver_or_table_library(writer: str) -> None:
    """Spark itself is there already."""
    loaded = loaded_by(f"import penstock.datasource.spark.{writer}")
    assert "pyspark" in top_level(loaded)
    assert not top_level(loaded) & (HEAVY - {"pyarrow", "pyspark"})


@pytest.mark.parametrize("data_source", ["delta", "iceberg"])
def test_a_data_source_loads_nothing_but_spark(data_source: str) -> None:
    """Spark makes one several times a batch; the table library is loaded when it is asked for a writer."""
    loaded = loaded_by(f"import penstock.datasource.{data_source}.source")
    assert not top_level(loaded) & (HEAVY - {"pyarrow", "pyspark"})


def test_the_contract_needs_only_the_standard_library() -> None:
    loaded = loaded_by("import penstock.committers.contract")
    assert top_level(loaded) - set(sys.stdlib_module_names) == {"penstock"}
    assert {module for module in loaded if module.startswith("penstock")} == {
        "penstock",
        "penstock.committers",
        "penstock.committers.contract",
        "penstock.committers.lineage",
    }


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and for types count, too. `CycleError` names the modules of a circle."""
    graph = grimp.build_graph("penstock", cache_dir=None)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    assert len(imports) > 500
    TopologicalSorter(imports).prepare()


def test_committers_init_is_empty() -> None:
    """Or importing the contract on an executor would load whatever is in it."""
    assert (ROOT / "committers" / "__init__.py").read_bytes() == b""


def test_nothing_outside_the_tests_imports_them() -> None:
    """What they share with benchmarks is in `servers/`; what users test with, in `testing/`."""
    folders = (*PACKAGES, "benchmarks", "notebooks", "servers")
    sources = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(sources) > 100
    pattern = re.compile(r"^\s*(?:from|import) tests\b", re.MULTILINE)
    assert [str(path) for path in sources if pattern.search(path.read_text())] == []
