"""A real Spark streams into the plug-in, and its driver is killed."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest
from tests.spark.killed_stream import FILES, ROWS, KilledStream

import penstock

pytestmark = pytest.mark.spark


def environment(plug_in: Path) -> dict[str, str]:
    """The environment of a process that finds the plug-in, and this Penstock."""
    source = str(Path(penstock.__file__).absolute().parents[1])
    return {"PYTHONPATH": os.pathsep.join([str(plug_in), source])}


@pytest.mark.kills
@pytest.mark.slow
def test_a_stream_whose_driver_is_killed_loses_and_doubles_no_row(plug_in: Path, tmp_path: Path) -> None:
    """SIGKILL once prepared, and once committed but not logged by Spark."""
    kills = ("prepare.done", "mark.done")
    KilledStream(tmp_path, "jsonlines", {"path": f"{tmp_path}/rows"}, kills, environment(plug_in)).run()

    ids = duckdb.sql(f"SELECT id FROM read_json('{tmp_path}/rows/*.jsonl') ORDER BY id").fetchall()
    assert ids == [(number,) for number in range(ROWS)]
    assert len(list((tmp_path / "rows").glob("*.jsonl"))) == FILES
