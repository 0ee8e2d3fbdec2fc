"""Child processes get secrets, so they import nothing from the working directory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.backlogs import SOON, decoupled, wait_until
from tests.writers.test_compaction import NEW, some

import penstock
from penstock.writers.parquet.compaction_process import RewriteProcess

MODULES = (
    "pyarrow",
    "penstock",
    "runpy",
    "json",
    "pickle",
    "sqlalchemy",
    "typer",
    "readline",
    "sitecustomize",
)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: each module there leaves a file of its name. The session is interactive."""
    folder = tmp_path / "working-directory"
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text("open(__file__ + '.ran', 'w'); raise SystemExit(66)")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    return folder


def test_a_rewrite_process_imports_nothing_from_the_working_directory(tmp_path: Path, planted: Path) -> None:
    plan, _, group = some(tmp_path)
    with RewriteProcess() as process:
        assert sum(file.rows for file in process.rewrite(plan, NEW, group)) > 0
    assert not list(planted.glob("*.ran"))


def test_a_delivery_process_imports_nothing_from_the_working_directory(tmp_path: Path, planted: Path) -> None:
    lake = decoupled(tmp_path, **SOON)
    with penstock.start_delivery(lake.store_url, process=True) as delivery:
        wait_until(lambda: lake.left == 0 or delivery.last_error is not None)
        assert delivery.last_error is None
    assert not list(planted.glob("*.ran"))
    lake.store.close()
