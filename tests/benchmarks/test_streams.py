"""The stream of the benchmarks is the product's own: a batch of it lands as one on Spark's driver does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.streams import QUERY, Stream, named_files, sink_of

from penstock.committers.contract import Conflict, Outcome
from penstock.committers.delta.committer import DeltaTableCommitter

FILES = 3


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_batch_lands_and_what_it_took_is_told_by_part(kind: str, tmp_path: Path) -> None:
    stream = Stream(sink_of(kind, tmp_path))
    for batch_id in range(2):
        spent = stream.run(named_files(kind, FILES))
        token = stream.sink.open_table().token(QUERY)
        assert token is not None
        assert token.batch_id == batch_id
        assert 0 < spent.table < spent.commit
        assert spent.plan > 0


def test_a_conflict_is_counted_and_the_batch_lands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = DeltaTableCommitter.commit
    refused: list[bool] = []

    def refuse_once(self: DeltaTableCommitter, *args: Any) -> Outcome:
        if not refused:
            refused.append(True)
            return Conflict("another writer")
        return commit(self, *args)

    monkeypatch.setattr(DeltaTableCommitter, "commit", refuse_once)
    stream = Stream(sink_of("delta", tmp_path))
    spent = [stream.run(named_files("delta", FILES)) for _ in range(2)]
    assert [one.conflicts for one in spent] == [1, 0]
    assert stream.sink.open_table().token(QUERY).batch_id == 1
