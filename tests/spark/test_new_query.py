"""A deleted checkpoint is reported by a real Spark."""

from __future__ import annotations

import re
import shutil

import pytest
from pyspark.errors import StreamingQueryException
from tests.support.driver_process import SHORT_LIVED, DriverProcess
from tests.support.id_stream import IdStream

import penstock

pytestmark = pytest.mark.spark


def test_a_deleted_checkpoint_is_a_warning_in_the_log_of_the_driver(delta_ids: IdStream) -> None:
    """Once, at the query's start. Spark's planner writes into the standard error of the driver."""
    ids = delta_ids
    ids.add_files(3)
    ids.run()
    shutil.rmtree(ids.checkpoint)
    arguments = [ids.table.source, str(ids.source), str(ids.checkpoint)]
    arguments += [text for pair in ids.table.options.items() for text in ("--option", "=".join(pair))]
    arguments += [text for pair in SHORT_LIVED.items() for text in ("--conf", "=".join(pair))]
    with DriverProcess(arguments, ids.root / "driver.log") as driver:
        assert driver.wait() == 0, driver.tail()

    log = (ids.root / "driver.log").read_text()
    assert (
        log.count(
            f"already has rows of an earlier query with the same checkpoint directory '{ids.checkpoint}'"
        )
        == 1
    )
    assert ids.findings().rows == 600


def test_a_deleted_checkpoint_is_refused_on_request(ids: IdStream) -> None:
    ids.add_files(2)
    ids.run(newQuery="refuse", queryName="ids")
    shutil.rmtree(ids.checkpoint)
    files, commits = ids.data_files(), ids.commits()
    with pytest.raises(StreamingQueryException) as failure:
        ids.run(newQuery="refuse", queryName="ids")

    error = penstock.error_of(failure.value)
    assert type(error) is penstock.CheckpointMismatchError
    assert re.fullmatch(r"The table .* same checkpoint directory .*\)\.", str(error))
    assert (ids.data_files(), ids.commits()) == (files, commits)

    ids.run(newQuery="allow")
    assert ids.findings().rows == 400
