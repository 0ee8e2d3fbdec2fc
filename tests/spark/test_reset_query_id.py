"""`penstock reset-query-id` on a checkpoint of real Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.id_stream import IdStream
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.committers.store.sql import open_store

pytestmark = pytest.mark.spark


def query_id(checkpoint: Path) -> str:
    return str(json.loads((checkpoint / "metadata").read_text())["id"])


def reset_query_id(checkpoint: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["reset-query-id", str(checkpoint), "--yes"])
    return result.exit_code, result.stderr


def test_a_query_with_a_new_id_continues_at_its_offsets_as_a_new_stream(ids: IdStream) -> None:
    ids.add_files(2)
    ids.run()
    old = query_id(ids.checkpoint)
    assert (ids.checkpoint / ".metadata.crc").exists()
    assert reset_query_id(ids.checkpoint)[0] == 0

    ids.add_files(1)
    query = ids.start()
    query.awaitTermination()

    assert query.id == query_id(ids.checkpoint) != old
    assert [progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]] == [2]
    assert ids.findings().problems == []
    with open_store(ids.store_url) as store:
        written = {stream.key.query_id: stream.committed_rows for stream in store.streams()}
    assert written == {old: 200, query.id: 100}


def test_a_rewound_checkpoint_writes_other_rows_only_with_a_new_query_id(delta_ids: IdStream) -> None:
    """As the error about other source offsets suggests. The rows are added to the existing ones."""
    delta_ids.add_files(2)
    delta_ids.run()
    for folder in ("offsets", "commits"):
        for entry in (delta_ids.checkpoint / folder).glob("*1*"):
            entry.unlink()
    for entry in (delta_ids.checkpoint / "sources" / "0").glob("*1*"):
        entry.unlink()
    (delta_ids.source / "00001.parquet").unlink()
    delta_ids.add_files(1)
    (delta_ids.source / "00001.parquet").rename(delta_ids.source / "other.parquet")

    assert "penstock reset-query-id" in delta_ids.fails_with()
    assert reset_query_id(delta_ids.checkpoint)[0] == 0
    delta_ids.run()

    assert delta_ids.findings().rows == 300


def test_a_new_query_id_is_refused_if_spark_would_replay_a_committed_batch(delta_ids: IdStream) -> None:
    """The replay under a new id would double its rows; one more start under the old id repairs it."""
    delta_ids.add_files(2)
    delta_ids.run()
    delta_ids.forget_commit(1)
    code, message = reset_query_id(delta_ids.checkpoint)
    assert code == 2
    assert "run it again" in message

    delta_ids.run()
    assert reset_query_id(delta_ids.checkpoint)[0] == 0
    delta_ids.run()
    assert delta_ids.findings().problems == []
