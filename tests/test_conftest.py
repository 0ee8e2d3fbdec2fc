"""In continuous integration, only expected skips pass, and a test that ends its process has failed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def run(folder: Path, body: str, *arguments: str, ci: str = "true") -> subprocess.CompletedProcess[str]:
    """Run `body` as the tests of a project that has this suite's conftest."""
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    (folder / "test_it.py").write_text("import pytest\n" + body)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(folder),
            str(folder),
            *arguments,
        ],
        env={**os.environ, "CI": ci, "PYTHONPATH": str(Path(__file__).parents[1])},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "body",
    ["def test_it(): pytest.skip('no network')", "pytest.skip('no network', allow_module_level=True)"],
    ids=["test", "module"],
)
def test_an_unexpected_skip_fails_in_ci_and_says_why(tmp_path: Path, body: str) -> None:
    ended = run(tmp_path, body)
    assert ended.returncode != 0, ended.stdout
    assert "no network" in ended.stdout


def test_an_unexpected_skip_passes_on_a_laptop(tmp_path: Path) -> None:
    assert run(tmp_path, "def test_it(): pytest.skip('no network')", ci="").returncode == 0


def test_an_expected_skip_passes_in_ci(tmp_path: Path) -> None:
    ended = run(tmp_path, "def test_it(): pytest.skip('needs Spark 4.1')")
    assert ended.returncode == 0, ended.stdout


CRASHES = """
import os, signal

@pytest.mark.parametrize("number", range(10))
def test_it(number):
    if number == %d:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("crashed", [0, 8, 9])
def test_a_test_that_ends_its_process_fails_and_the_others_run(tmp_path: Path, crashed: int) -> None:
    for number in range(8):
        (tmp_path / f"test_other_{number}.py").write_text("import pytest\n" + CRASHES % -1)
    ended = run(tmp_path, CRASHES % crashed, "--numprocesses=3", "--dist=loadfile", "--no-loadscope-reorder")
    assert f"crashed while running 'test_it.py::test_it[{crashed}]'" in ended.stdout
    assert "1 failed, 89 passed" in ended.stdout
