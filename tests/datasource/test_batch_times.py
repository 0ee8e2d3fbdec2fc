"""When a batch was planned, written, prepared and committed: from the driver into the history."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.planned_stream import Stream, orders

import penstock
from penstock.committers.store.sql import open_store


@pytest.mark.parametrize("kind", ["delta", "fanout"])
def test_the_history_has_the_seconds_of_each_step(kind: str, tmp_path: Path) -> None:
    stream = Stream(tmp_path, kind)
    stream.run(orders(15, 0))
    stream.deliver()
    with open_store(stream.store_url) as store:
        records = [one for status in store.streams() for one in store.history(status.key, 5)]
    for one in records:
        assert one.planned_at is not None
        assert one.written_at is not None
        assert one.finished_at is not None
        assert one.planned_at <= one.written_at <= one.prepared_at <= one.finished_at
    batches = penstock.history(store=stream.store_url).batches
    assert [(one.write_s, one.prepare_s, one.commit_s) for one in batches] == [
        (one.write_s, one.prepare_s, one.commit_s) for one in records
    ]
    assert len(batches) == (1 if kind == "delta" else 2)
    assert str(batches.to_arrow().schema.field("write_s").type) == "double"
