"""Wheel and sdist, installed with the declared dependencies only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.support.driver_process import SUBMIT_ARGS
from tests.support.lakes import DeltaLake, IcebergLake, rows

from penstock.datasource import plug_ins

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "cli",
    "ui",
    "operating",
    "delivery",
    "datasource",
    "telemetry",
    "readers",
    "writers",
    "committers",
    "testing",
)
DEPENDENCIES = [need for need in requires("penstock") or [] if "extra ==" not in need]
LOCKS = ("dev.txt", "runtime.txt", "spark40.txt", "spark41.txt", "paimon.txt")
ROWS = 1000

_DUCKLAKE = ("changes", "committer", "connection", "fence", "files", "maintenance", "plan", "table", "types")
_KAFKA = ("brokers", "checking", "clients", "committer", "errors", "markers", "parts", "transactions")
NEEDS_EXTRA = {
    *(f"penstock.committers.ducklake.{name}" for name in _DUCKLAKE),
    *(f"penstock.readers.ducklake.{name}" for name in ("catalog", "deletions", "history", "scan", "table")),
    *(f"penstock.readers.postgres.{name}" for name in ("copied_rows", "scan", "table")),
    *(f"penstock.committers.{name}" for name in ("files.container", "files.hive", "iceberg.library.hive")),
    *(f"penstock.committers.{name}.connection" for name in ("duckdb", "mysql", "postgres")),
    *(f"penstock.committers.kafka.{name}" for name in _KAFKA),
    *(
        f"penstock.datasource.{name}"
        for name in ("duckdb.sink", "ducklake.target", "kafka.sink", "mysql.sink", "postgres.sink")
    ),
    *(f"penstock.telemetry.{name}" for name in ("openlineage", "opentelemetry")),
    *(f"penstock.writers.{name}" for name in ("aws.connection", "nats.parser", "paimon.buckets")),
    *(
        f"penstock.ui.{name}"
        for name in ("app", "charts", "pages", "rendering", "security", "server", "views")
    ),
    *(
        f"penstock.writers.postgres.{name}"
        for name in ("binary_numerics", "binary_values", "copy_binary", "prepared_writer", "staging_writer")
    ),
    *(f"penstock.writers.redis.{name}" for name in ("client", "connection")),
    *(f"penstock.writers.requests.{name}" for name in ("http", "http_answers")),
    *(f"penstock.writers.search.{name}" for name in ("elasticsearch_node", "opensearch_connection")),
    *(f"penstock.testing.conformance.{path.stem}" for path in ROOT.glob("testing/conformance/[!_]*.py")),
    "penstock.testing.conformance",
}
"""Modules that other modules import only if the packages of an extra are installed."""

IMPORT_EVERYTHING = f"""
import importlib, pkgutil, penstock
for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
    if module.name not in {NEEDS_EXTRA}:
        importlib.import_module(module.name)
        print(module.name)
"""

STREAM = """
import sys
import penstock
from pyspark.sql import SparkSession

folder, rows = sys.argv[1], int(sys.argv[2])
assert "site-packages" in penstock.__file__, penstock.__file__
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
penstock.register(spark)
spark.range(rows).write.parquet(f"{folder}/source")
tables = {
    "delta": {"path": f"{folder}/table"},
    "iceberg": {"warehouse": f"{folder}/warehouse", "table": "lake.ids"},
}
for name, options in tables.items():
    (
        spark.readStream.schema("id long").parquet(f"{folder}/source")
        .writeStream.format(f"penstock.{name}").options(**options)
        .option("checkpointLocation", f"{folder}/checkpoint-{name}").trigger(availableNow=True).start()
        .awaitTermination()
    )
spark.stop()
"""


def run(*command: object, **variables: str) -> str:
    """Return the standard output of a command. If it fails, the error has all of its output."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK", "VIRTUAL_ENV"))
    }
    ended = subprocess.run(
        [str(part) for part in command], env={**environment, **variables}, capture_output=True, text=True
    )
    assert ended.returncode == 0, (
        f"{command[0]} ended with {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    )
    return ended.stdout


def package_files() -> set[str]:
    """Modules, the type marker and the files of the page: what users install, by paths in the tree."""
    modules = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    of_page = [*(ROOT / "ui" / "templates").iterdir(), *(ROOT / "ui" / "static").iterdir()]
    return {
        "__init__.py",
        "destination.py",
        "reader.py",
        "py.typed",
        *(str(path.relative_to(ROOT)) for path in modules + of_page),
    }


def with_dependencies(names: Iterable[str]) -> set[str]:
    """The installed distributions that `names` need, themselves included."""
    found: set[str] = set()
    queue = [Requirement(name) for name in names]
    while queue:
        requirement = queue.pop()
        key = canonicalize_name(requirement.name)
        if key in found and not requirement.extras:
            continue
        try:
            needs = distribution(key).requires or []
        except PackageNotFoundError:
            continue  # for another platform or another Python
        found.add(key)
        for need in map(Requirement, needs):
            extras = requirement.extras or {""}
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
                queue.append(need)
    return found


def clean_environment(folder: Path, names: Iterable[str]) -> Path:
    """Create an environment with only `names` and their dependencies. Offline: linked from this one.

    A distribution that the package imports and does not declare is absent there.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for name in with_dependencies(names):
        installed = distribution(name)
        for top in {
            file.parts[0] for file in installed.files or [] if file.parts[0] not in ("..", "__pycache__")
        }:
            link = site / top
            if not link.exists():
                link.symlink_to(str(installed.locate_file(top)))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module", params=["whl", "tar.gz"])
def installed(request: pytest.FixtureRequest, dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a clean environment with the built package: from the wheel, then from the sdist."""
    (archive,) = dist.glob(f"*.{request.param}")
    backend = ["hatchling"] if request.param == "tar.gz" else []
    python = clean_environment(tmp_path_factory.mktemp("installed") / "env", [*DEPENDENCIES, *backend])
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    run(sys.executable, "-m", "pip", "--python", python, *install, archive)
    return python


def test_the_wheel_holds_the_package_and_nothing_else(dist: Path) -> None:
    """With `py.typed` and the migrations, without tests."""
    (wheel,) = dist.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {f"penstock/{path}" for path in package_files()}
    assert "penstock/py.typed" in names
    assert any(re.match(r"penstock/committers/store/migrations/versions/\w+\.py", name) for name in names)


def test_the_sdist_holds_what_builds_the_wheel_and_nothing_else(dist: Path) -> None:
    """Without tests, which need benchmarks, documentation and locks."""
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    links = {f"src/penstock/{name}" for name in ("__init__.py", "destination.py", "reader.py", "py.typed")}
    texts = {"README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", "pyproject.toml", ".gitignore"}
    templates = {"committers/store/migrations/script.py.mako"}
    assert names == package_files() | links | texts | templates


def test_the_wheel_from_the_sdist_is_the_wheel_from_the_tree(dist: Path, tmp_path: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, unpacked)
    (ours,), (theirs,) = dist.glob("*.whl"), tmp_path.glob("*.whl")
    assert {f.filename: f.CRC for f in zipfile.ZipFile(ours).filelist} == {
        f.filename: f.CRC for f in zipfile.ZipFile(theirs).filelist
    }


def test_every_module_imports_with_the_declared_dependencies(installed: Path) -> None:
    imported = set(run(installed, "-I", "-c", IMPORT_EVERYTHING).split())
    paths = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    dotted = [
        ".".join(("penstock", *path.with_suffix("").parts))
        for path in paths
        if "migrations" not in path.parts
    ]
    top = {"penstock.destination", "penstock.reader"}
    assert imported | NEEDS_EXTRA == top | {name.removesuffix(".__init__") for name in dotted}


def test_the_installed_command_explains_itself(installed: Path) -> None:
    text = run(installed.with_name("penstock"), "--help")
    for command in ("status", "show", "recover", "gc"):
        assert re.search(rf"\b{command}\b", text)


@pytest.mark.spark
@pytest.mark.parametrize("installed", ["whl"], indirect=True)
def test_the_installed_package_streams_into_a_table_of_each_format(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "stream.py"
    script.write_text(STREAM)
    variables = {"PYSPARK_PYTHON": str(installed), "PYSPARK_SUBMIT_ARGS": SUBMIT_ARGS}
    run(installed, "-I", script, tmp_path, ROWS, **variables)
    for table in (DeltaLake(tmp_path / "table"), IcebergLake(tmp_path / "warehouse")):
        assert rows(table, "id") == [(key,) for key in range(ROWS)]


def test_the_zip_for_py_files_can_be_imported(dist: Path, tmp_path: Path) -> None:
    """`make pyfiles` copies the wheel under a name that Spark puts on the path."""
    (wheel,) = dist.glob("*.whl")
    archive = tmp_path / "penstock.zip"
    archive.write_bytes(wheel.read_bytes())
    python = clean_environment(tmp_path / "env", DEPENDENCIES)
    imported = run(python, "-c", f"{IMPORT_EVERYTHING}\nprint(penstock.__file__)", PYTHONPATH=str(archive))
    assert imported.split()[-1] == str(archive / "penstock" / "__init__.py")


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_has_every_declared_dependency_in_a_fitting_version(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text()
    locked = dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", text, re.MULTILINE))
    for requirement in map(Requirement, DEPENDENCIES):
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)])


def test_releases_that_nobody_has_tried_are_not_installed() -> None:
    """Of the libraries that Penstock uses beyond what their releases promise to keep."""
    capped = {"alembic", "deltalake", "obstore", "pyarrow", "pyiceberg", "sqlalchemy"}
    needs = {need.name: need.specifier for need in map(Requirement, DEPENDENCIES)}
    assert {name for name in capped if needs[name].contains("1000")} == set()


def test_the_package_can_be_found_by_each_destination() -> None:
    project = (ROOT / "pyproject.toml").read_text().partition("classifiers")[0]
    names = (set(plug_ins.BUILT_IN) - {"files", "delta"}) | {"delta lake", "parquet"}
    assert {name for name in names if f'"{name}"' not in project} == set()


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_names_no_registry_and_hashes_everything(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text()
    assert "://" not in text
    assert "--index" not in text
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)
