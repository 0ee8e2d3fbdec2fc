"""A query that is watched, and the picture of its history."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.stored_lake import Lake

import penstock
from penstock import StreamRecord
from penstock.operating.plotting import waiting_over_time
from penstock.operating.records import BatchRecord, Records
from penstock.operating.watching import Seen, as_html

QUERY = "8d9a1c2b-5a0f-4f4e-9d3e-000000000001"
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Query:
    """A query that ends after a few looks."""

    id = uuid.UUID(QUERY)

    def __init__(self, looks: int, error: Exception | None = None) -> None:
        self._left, self._error = looks, error
        self._batch = -1

    @property
    def isActive(self) -> bool:
        self._left -= 1
        return self._left > 0

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        self._batch += 1
        numbers = {"numInputRows": 1500, "processedRowsPerSecond": 3000.0}
        return [
            {"batchId": batch, **numbers, "durationMs": {"triggerExecution": 500}}
            for batch in range(self._batch)
        ]

    def exception(self) -> Exception | None:
        return self._error


def test_each_change_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Lake(tmp_path, None, QUERY) as lake:
        lake.commit(0, lake.write(0))
        lake.prepare(1, lake.write(1))
        penstock.watch(Query(looks=4), lake.store_url, every=0)
    heading, none, first, second, _ = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["batch", "rows", "rows/s"]
    assert set(none.split()) == {"-"}
    assert first.split()[:8] == ["0", "1,500", "3,000", "0.50", "s", "2", "1", "batches"]
    assert second.split()[:2] == ["1", "3,000"]


def test_a_query_without_a_batch_has_no_store_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    penstock.watch(Query(1), checkpoint=str(tmp_path), every=0)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_error_of_the_query_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)
    penstock.watch(Query(1, penstock.ConfigurationError("There is no table.")), every=0)
    told = capsys.readouterr()
    assert "ConfigurationError: There is no table." in told.err
    assert told.out.splitlines()[1].split()[-3:] == ["-", "-", "-"]


def test_the_view_of_a_notebook_shows_texts_as_they_are() -> None:
    stream = StreamRecord(
        *("q", QUERY, "<t>", "delta", penstock.StreamState.FAILING, 3, None, 1, 2, BEGIN),
        *(3, 4, 5, 6, 1, "<b>", "", 0, ()),
    )
    seen = Seen({"batchId": 3}, 7, Records(StreamRecord, [stream]), BEGIN + timedelta(seconds=90))
    assert "<td>90 s</td>" in as_html(seen)
    assert "&lt;t&gt;: FAILING. &lt;b&gt;" in as_html(seen)


def test_the_number_of_waiting_batches_over_time() -> None:
    def batch(number: int, prepared: int, finished: int | None) -> BatchRecord:
        end = None if finished is None else BEGIN + timedelta(seconds=finished)
        return BatchRecord(
            *("q", "t", number, "COMMITTED", 1, 1, 1, BEGIN + timedelta(seconds=prepared), end),
            *(None, None, None, None, ""),
        )

    times, counts = waiting_over_time([batch(0, 0, 2), batch(1, 1, 2), batch(2, 3, None)])
    assert counts == [1, 2, 1, 0, 1]
    assert times[-1] == BEGIN + timedelta(seconds=3)


def test_the_history_is_a_picture(tmp_path: Path) -> None:
    with Lake(tmp_path, None, QUERY) as lake:
        with pytest.raises(penstock.ConfigurationError, match="no batches yet"):
            penstock.plot("ids", lake.store_url)
        for number in range(3):
            lake.commit(number, lake.write(number))
        figure = penstock.plot("ids", lake.store_url)
    assert [len(axes.lines) for axes in figure.axes] == [1, 1, 1]
    assert list(np.asarray(figure.axes[0].lines[0].get_ydata())) == [2, 2, 2]
