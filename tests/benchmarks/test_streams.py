"""The stream of the benchmarks is the product's own: a batch of it lands as one on Spark's driver does."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.streams import QUERY, Stream, named_files, sink_of

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
