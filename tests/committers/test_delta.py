"""A batch is committed once to a Delta table. Rows are read back with duckdb."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.support.streams import VIEWS, DeltaStream, stream_in

from penstock.committers.errors import PenstockError, RetryableError, TableNotSupportedError


@pytest.fixture(params=sorted(VIEWS))
def stream(tmp_path: Path, request: pytest.FixtureRequest) -> DeltaStream:
    return stream_in(tmp_path, snapshot_cache=VIEWS[request.param]())


# The token --------------------------------------------------------------------------------------------


def test_the_token_survives_checkpoints_and_transaction_retention(stream: DeltaStream) -> None:
    properties = {"delta.setTransactionRetentionDuration": "interval 0 seconds"}
    stream.commit(0, [1], properties=properties)
    assert stream.committer().token("query-1") is not None
    table = DeltaTable(stream.uri)
    table.create_checkpoint()
    (Path(stream.uri) / "_delta_log" / f"{1:020}.json").unlink()
    token = stream.committer().token("query-1")
    assert token is not None
    assert token.batch_id == 0
    assert token.matches(stream.batch(0).digest)
    assert not token.matches(stream.batch(0, "other").digest)


def test_leading_zeros_of_a_digest_are_kept(stream: DeltaStream) -> None:
    offsets = next(n for n in map(str, range(10_000)) if stream.batch(0, n).digest.startswith("00"))
    stream.commit(0, [1], offsets=offsets)
    token = stream.committer().token("query-1")
    assert token is not None
    assert token.matches(stream.batch(0, offsets).digest)


def test_the_commit_names_its_query_and_batch(stream: DeltaStream) -> None:
    stream.commit(3, [1, 2])
    (info, *_) = DeltaTable(stream.uri).history(1)
    assert json.loads(info["userMetadata"])["penstock"] == {
        "query_id": "query-1",
        "batch_id": 3,
        "digest": stream.batch(3).digest,
        "files": 1,
        "rows": 2,
    }
    assert info["isBlindAppend"] is True


# Overwrite --------------------------------------------------------------------------------------------


def test_overwrite_of_an_append_only_table_is_refused_by_name(stream: DeltaStream) -> None:
    stream.commit(0, [1], properties={"delta.appendOnly": "true"})
    with pytest.raises(TableNotSupportedError, match=r"delta\.appendOnly"):
        stream.prepare(1, [2], mode="overwrite")
    stream.commit(1, [2])
    assert stream.ids() == [1, 2]


# Files and storage ------------------------------------------------------------------------------------


def test_a_damaged_table_is_reported_as_unreadable(stream: DeltaStream) -> None:
    manifest = stream.prepare(0, [1])
    (Path(stream.uri) / "_delta_log" / f"{0:020}.json").write_text("{damaged")
    with pytest.raises(RetryableError, match="cannot be read") as caught:
        stream.committer().commit(manifest)
    assert isinstance(caught.value, PenstockError)
    assert "\n" not in str(caught.value), "no message has the library's backtrace"
