"""A checkpoint that was moved to another host with the store and the row log in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers.http_rows import HttpRows
from tests.support.cli import Ended
from tests.support.request_streams import ROWS, http_stream

from penstock.committers.store.sql import open_store
from penstock.datasource.spark.checkpoint import STORE_FILE


@pytest.fixture
def moved(tmp_path: Path, http_server: HttpRows) -> Path:
    """The checkpoint of a stream whose batches wait."""
    before, now = tmp_path / "checkpoint", tmp_path / "moved"
    before.mkdir()
    (before / "metadata").write_text('{"id":"q1"}')
    with http_stream(tmp_path, http_server, {"format": "row"}, f"sqlite:///{before}/{STORE_FILE}") as stream:
        stream.prepare()
        assert len(stream.row_log()) == 6
    before.rename(now)
    return now


def deliver(checkpoint: Path) -> Ended:
    return Ended("deliver", "--once", "--checkpoint", str(checkpoint))


def test_its_row_log_is_delivered_from_the_new_place(
    moved: Path, http_server: HttpRows, caplog: pytest.LogCaptureFixture
) -> None:
    assert deliver(moved).code == 0
    assert f"was moved from {moved.with_name('checkpoint')} to {moved}." in caplog.text
    assert sorted(http_server.ids()) == list(range(ROWS))
    assert list(moved.rglob("*.arrow")) == []


def test_commands_look_at_the_new_place_and_change_nothing(moved: Path) -> None:
    place = ("--checkpoint", str(moved))
    shown = Ended("show", "q1", "0", "--rows", *place, "--json")
    assert shown.code == 0, shown.err
    assert shown.json["waiting_rows"]
    aborted = Ended("abort", "q1", "--reason", "lost", "--yes", *place)
    assert f"The checkpoint {moved} of query q1 still exists" in aborted.err
    with open_store(f"sqlite:///{moved}/{STORE_FILE}") as store:
        assert str(moved) not in "".join(store.settings(stream) for stream in store.streams_of("q1"))
    skipped = Ended("skip", "q1", "0", "--reason", "bad", "--yes", *place, "--json").json
    assert skipped["saved_to"] == str(moved / "penstock-skipped")


@pytest.mark.parametrize("why", ["of another query", "still at its place"])
def test_a_store_is_left_alone_that_is_not_of_this_checkpoint(
    moved: Path, http_server: HttpRows, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """The stream is parked, and the message says how its rows are delivered."""
    if why == "of another query":
        (moved / "metadata").write_text('{"id":"q2"}')
    else:
        moved.with_name("checkpoint").mkdir()
    assert deliver(moved).code == 1
    assert "Was the checkpoint or the row log moved" in caplog.text
    assert http_server.ids() == []
    assert len(list(moved.rglob("*.arrow"))) == 6
