"""A real Spark streams into the plug-in, and loses its driver on the way."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest
from tests.support.driver_process import SHORT_LIVED, DriverProcess
from tests.support.id_stream import write_ids

import penstock

pytestmark = pytest.mark.spark

FILES, ROWS = 4, 100


def environment(plug_in: Path) -> dict[str, str]:
    """Of a process that finds the plug-in, and Penstock as this one does."""
    source = str(Path(penstock.__file__).absolute().parents[1])
    return {"PYTHONPATH": os.pathsep.join([str(plug_in), source])}


@pytest.mark.kills
@pytest.mark.slow
def test_a_stream_whose_driver_is_killed_loses_and_doubles_no_row(plug_in: Path, tmp_path: Path) -> None:
    """SIGKILL once prepared, and once committed but not logged by Spark; the replays have other tasks."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(FILES):
        write_ids(source / f"{number:05}.parquet", range(number * ROWS, (number + 1) * ROWS), number)
    for turn, point in enumerate(("prepare.done", "mark.done", None)):
        reached = tmp_path / f"reached-{turn}"
        arguments = ["jsonlines", str(source), str(tmp_path / "checkpoint"), "--partitions", str(1 + turn)]
        arguments += ["--option", f"path={tmp_path}/rows"]
        for key, value in SHORT_LIVED.items():
            arguments += ["--conf", f"{key}={value}"]
        paused = {"PENSTOCK_PAUSE_AT": point, "PENSTOCK_PAUSE_FILE": str(reached)} if point else {}
        log = tmp_path / f"driver-{turn}.log"
        with DriverProcess(arguments, log, {**environment(plug_in), **paused}) as driver:
            if point:
                driver.wait_for(reached)
                driver.kill()
            else:
                assert driver.wait() == 0, driver.tail()

    ids = duckdb.sql(f"SELECT id FROM read_json('{tmp_path}/rows/*.jsonl') ORDER BY id").fetchall()
    assert ids == [(number,) for number in range(FILES * ROWS)]
    assert len(list((tmp_path / "rows").glob("*.jsonl"))) == FILES
