"""`penstock history`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.test_cli import QUERY, filled
from tests.support.cli import Ended
from tests.support.stored_lake import Lake


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Query "ids": batches 0 and 1 committed, batch 2 prepared, 2 rows each."""
    lake = filled(Lake(tmp_path, None, QUERY))
    lake.prepare(2, lake.write(2))
    monkeypatch.setenv("PENSTOCK_STORE", lake.store_url)
    yield lake
    lake.store.close()


def test_history_lists_the_newest_batches_first(lake: Lake) -> None:
    told = Ended("history", "ids", "--json").json
    assert told["query_id"] == QUERY
    assert told["deliveries"] == []
    batches = [(batch["batch_id"], batch["state"], batch["rows"]) for batch in told["batches"]]
    assert batches == [(2, "PREPARED", 2), (1, "COMMITTED", 2), (0, "COMMITTED", 2)]
    assert Ended("history", "ids", "--limit", "1", "--json").json["batches"] == told["batches"][:1]


def test_history_fits_80_columns(lake: Lake) -> None:
    ended = Ended("history", "ids")
    assert ended.code == 0
    assert [line.split()[:3] for line in ended.out.splitlines()[3:6]] == [
        ["2", "PREPARED", "2"],
        ["1", "COMMITTED", "2"],
        ["0", "COMMITTED", "2"],
    ]
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "…" not in ended.out


def test_history_of_a_stream_that_is_not_there_is_an_error(lake: Lake) -> None:
    ended = Ended("history", "nobody")
    assert ended.code == 2
    assert "ids" in ended.err
