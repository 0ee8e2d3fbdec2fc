"""The example of the README, as a newcomer runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.driver_process import SUBMIT_ARGS

README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.mark.spark
def test_the_example_prints_what_the_readme_says_also_the_second_time(tmp_path: Path) -> None:
    """But for its folders, and a JVM that starts faster."""
    program = re.search(r"```python\n(import penstock\n.*?)```\n\nIt prints `(.*?)`, also", README, re.DOTALL)
    assert program is not None
    (tmp_path / "example.py").write_text(program[1].replace("/tmp/", f"{tmp_path}/"))
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": SUBMIT_ARGS}
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "example.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == f"{program[2]}\n"
