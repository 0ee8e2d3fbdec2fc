"""docs/testing.md: its example runs, and it says of crash points and names what the code says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.driver_process import SUBMIT_ARGS

from penstock import testing

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
FILES = {name[1]: block for block in BLOCKS if (name := re.match(r"# (\w+\.py)\n", block))}


@pytest.mark.spark
@pytest.mark.kills
@pytest.mark.campaign
def test_the_example_runs_and_prints_what_the_page_says(tmp_path: Path) -> None:
    """As a user runs it, but for a JVM that starts faster."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": SUBMIT_ARGS}
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_job.py"]

    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    (promised,) = re.findall(r"^[\d,]+ rows: .*$", PAGE, re.MULTILINE)
    without_orphans = re.compile(r"\d+ orphaned")
    (printed,) = re.findall(r"[\d,]+ rows: .*$", ended.stdout, re.MULTILINE)
    assert without_orphans.sub("", printed) == without_orphans.sub("", promised)
    print(printed)  # noqa: T201 - shown by `make kills`


def test_the_example_is_killed_at_crash_points() -> None:
    killed_at = re.findall(r"\.kill_at\(\"([\w.]+)\"\)", FILES["test_job.py"])
    assert set(killed_at) < set(testing.CRASH_POINTS)


def test_the_page_says_when_each_crash_point_is_reached() -> None:
    table = PAGE.partition("| crash point | reached |")[2].partition("\n\n")[0]
    named = [
        point for row in table.splitlines()[2:] for point in re.findall(r"`([\w.]+)`", row.split("|")[1])
    ]
    assert named == list(testing.CRASH_POINTS)


def test_every_name_on_the_page_is_public() -> None:
    named = set(re.findall(r"testing\.(\w+)", PAGE.replace("testing.md", "")))
    assert named <= set(testing.__all__)


@pytest.mark.parametrize("table", re.findall(r"`(testing\.\w+Table\(.*?\))`", PAGE))
def test_every_table_on_the_page_can_be_named_so(table: str) -> None:
    assert eval(table, {"testing": testing}).uri


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_is_python(block: str) -> None:
    compile(block, "docs/testing.md", "exec")
