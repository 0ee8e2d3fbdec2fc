"""A test that is skipped proves nothing: in continuous integration only expected skips pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def run(folder: Path, body: str, *, ci: str) -> subprocess.CompletedProcess[str]:
    """Run `body` as the only test of a project that has this suite's conftest."""
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    (folder / "test_it.py").write_text("import pytest\n" + body)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)],
        env={**os.environ, "CI": ci, "PYTHONPATH": str(Path(__file__).parents[1])},
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "body",
    ["def test_it(): pytest.skip('no network')", "pytest.skip('no network', allow_module_level=True)"],
    ids=["test", "module"],
)
def test_an_unexpected_skip_fails_in_ci_and_says_why(tmp_path: Path, body: str) -> None:
    ended = run(tmp_path, body, ci="true")
    assert ended.returncode != 0, ended.stdout
    assert "no network" in ended.stdout


def test_an_unexpected_skip_passes_on_a_laptop(tmp_path: Path) -> None:
    assert run(tmp_path, "def test_it(): pytest.skip('no network')", ci="").returncode == 0


def test_an_expected_skip_passes_in_ci(tmp_path: Path) -> None:
    ended = run(tmp_path, "def test_it(): pytest.skip('needs Spark 4.1')", ci="true")
    assert ended.returncode == 0, ended.stdout
