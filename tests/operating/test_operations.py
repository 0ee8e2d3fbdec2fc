"""What an operator asks from Python is what the commands print."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cli import Ended
from tests.support.stored_lake import Lake

import penstock
from penstock import StreamState

QUERY = "8d9a1c2b-5a0f-4f4e-9d3e-000000000001"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Query "ids": batches 0 and 1 committed, 2 rows each, and batch 2 prepared."""
    with Lake(tmp_path, None, QUERY) as lake:
        for batch_id in (0, 1):
            lake.commit(batch_id, lake.write(batch_id))
        lake.prepare(2, lake.write(2))
        monkeypatch.setenv("PENSTOCK_STORE", lake.store_url)
        yield lake


@pytest.mark.usefixtures("lake")
def test_the_status_is_that_of_the_command() -> None:
    (stream,), (told,) = penstock.status(), Ended("status", "--json").json["streams"]
    for mine, theirs in (
        ("query_id", "query_id"),
        ("table", "table_uri"),
        ("kind", "kind"),
        ("pending_batches", "pending"),
        ("committed_rows", "committed_rows"),
        ("table_version", "table_version"),
    ):
        assert getattr(stream, mine) == told[theirs], mine
    assert (stream.state, stream.last_batch_id) == (StreamState.PENDING, told["last_batch"]["batch_id"])


@pytest.mark.usefixtures("lake")
def test_records_do_not_change_and_are_a_table() -> None:
    streams = penstock.status(stream="ids")
    with pytest.raises(dataclasses.FrozenInstanceError):
        streams[0].pending_batches = 0  # type: ignore[misc]
    table = streams.to_arrow()
    assert table.column_names == list(streams.columns)
    assert table.column("state").to_pylist() == ["PENDING"]
    assert penstock.history().batches[:0].to_arrow().num_rows == 0


def test_a_notebook_shows_a_table_with_texts_as_they_are(lake: Lake) -> None:
    lake.store.deliveries.park(lake.batch(2).stream, "<b>ops</b>", "restore")
    shown = penstock.status()._repr_html_()
    assert "&lt;b&gt;ops&lt;/b&gt;" in shown
    assert "<b>ops</b>" not in shown
    first, second = repr(penstock.status()).splitlines()
    assert "parked_by" in first
    assert "PARKED" in second


def test_the_history_has_the_newest_batches_first(lake: Lake) -> None:
    batches = penstock.history("ids", lake.store_url, limit=2).batches
    assert [(one.batch_id, one.state, one.rows) for one in batches] == [
        (2, "PREPARED", 2),
        (1, "COMMITTED", 2),
    ]


def test_recover_commits_what_is_pending(lake: Lake) -> None:
    (batch,) = penstock.recover()
    assert (batch.batch_id, batch.state) == (2, "COMMITTED")
    assert len(lake.rows()) == 6
    assert not penstock.recover()


def test_recover_tells_why_a_table_cannot_be_written(lake: Lake) -> None:
    lake.lake.forget()
    lake.planned = lake.plan()
    with pytest.raises(penstock.TableChangedError):
        penstock.recover()
    assert penstock.status()[0].pending_batches == 1


def test_retry_resumes_what_is_parked(lake: Lake) -> None:
    lake.store.deliveries.park(lake.batch(2).stream, "ops", "restore")
    assert penstock.status()[0].state is StreamState.PARKED
    (resumed,) = penstock.retry("ids", who="ops", reason="restored")
    assert resumed.state is StreamState.PENDING
    assert not penstock.retry()


def test_mistakes_are_told(lake: Lake) -> None:
    with pytest.raises(penstock.ConfigurationError, match="no stream 'nobody'"):
        penstock.history("nobody")
    with pytest.raises(penstock.ConfigurationError, match="Give at least 1"):
        penstock.history("ids", limit=0)
    with pytest.raises(penstock.ConfigurationError, match="Two manifest stores"):
        penstock.status(lake.store_url, checkpoint="/tmp")
