"""How often the log is read for a token: each time the library reads all since the last checkpoint."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.sink_stream import SinkStream

from penstock.committers.contract import Batch, StreamKey
from penstock.committers.delta.table import AppVersions, landed_version, token_actions, token_of
from penstock.datasource.options.delta import DeltaOptions
from penstock.datasource.sinks.delta import DeltaSink

TOKEN_PARTS = 3


@pytest.fixture
def stream(tmp_path: Path) -> SinkStream:
    store = f"sqlite:///{tmp_path}/penstock.db"
    return SinkStream(DeltaSink(DeltaOptions(path=str(tmp_path / "table"), store=store)))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the library was asked for the version of an application."""
    asked: Counter[str] = Counter()
    ask = DeltaTable.transaction_version

    def counting(table: DeltaTable, app_id: str) -> int | None:
        asked[app_id] += 1
        return ask(table, app_id)

    monkeypatch.setattr(DeltaTable, "transaction_version", counting)
    return asked


def test_a_batch_reads_each_part_of_the_token_once_to_plan_and_once_to_commit(
    stream: SinkStream, asked: Counter[str]
) -> None:
    for number in range(3):
        stream.run(pa.table({"id": [number]}))
    asked.clear()

    stream.run(pa.table({"id": [3]}))

    assert len(asked) == TOKEN_PARTS
    assert set(asked.values()) == {2}


def test_a_handle_that_has_moved_on_is_asked_anew(stream: SinkStream) -> None:
    """The token decides whether a batch lands: an answer of another version would double its rows."""
    stream.run(pa.table({"id": [0]}))
    versions, table = AppVersions(), DeltaTable(stream.sink.table_uri)
    before = token_of(table, stream.query_id, versions)

    stream.run(pa.table({"id": [1]}))
    table.update_incremental()

    token = token_of(table, stream.query_id, versions)
    assert before is not None
    assert token is not None
    assert (before.batch_id, token.batch_id) == (0, 1)
    assert landed_version(table, stream.query_id, versions) == table.version()


def test_another_handle_is_asked_anew(stream: SinkStream, tmp_path: Path) -> None:
    """Also of a table at the same version."""
    other = SinkStream(
        DeltaSink(DeltaOptions(path=str(tmp_path / "other"), store=str(stream.sink.options.store)))
    )
    for one, first in ((stream, 0), (other, 7)):
        one.next_batch = first
        one.run(pa.table({"id": [first]}))
    versions = AppVersions()

    tokens = [
        token_of(DeltaTable(one.sink.table_uri), one.query_id, versions) for one in (stream, other, stream)
    ]

    assert [token.batch_id for token in tokens if token is not None] == [0, 7, 0]


def test_a_token_has_as_many_parts_as_are_counted_here() -> None:
    assert len(token_actions(Batch(StreamKey("q", "/t"), 0, "0" * 64), 1)) == TOKEN_PARTS
