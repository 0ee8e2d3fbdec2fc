"""Hudi's own Java library reads the tables that Penstock writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers.hudi_reader import SeenTable, archive_hudi, read_hudi
from servers.maven import MavenUnreachableError
from tests.support.hudi import HudiLake

from penstock.committers.commit_runner import stored_manifest
from penstock.committers.contract import AlreadyCommitted
from penstock.committers.errors import SchemaMismatchError
from penstock.committers.hudi.publishing import Publishing
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance import Query
from penstock.testing.faults import Crash

ROWS = pa.schema([("id", pa.int64()), ("day", pa.string())])
WIDER = pa.schema([*ROWS, ("price", pa.decimal128(12, 2))])


def seen(lake: HudiLake) -> SeenTable:
    try:
        return read_hudi(lake.folder)
    except MavenUnreachableError as error:
        pytest.skip(str(error))


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "day": ["2026/1", None, "b c"][: len(ids)]}, schema=ROWS)


@contextmanager
def dying_in(monkeypatch: pytest.MonkeyPatch, step: str) -> Iterator[None]:
    """The process dies at the start of a step of the commit."""

    def die(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(Publishing, step, die)
        with pytest.raises(Crash):
            yield


@pytest.mark.parametrize("hive_style", ["true", "false"])
def test_hudi_sees_the_rows_of_completed_batches_only(
    tmp_path: Path, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch, hive_style: str
) -> None:
    """The driver dies when the files are in their places, and the instant is not completed."""
    lake = HudiLake(tmp_path)
    options = {"partitionBy": "day", "recordKey": "id", "hiveStylePartitions": hive_style}
    query = Query(lake, options=options, store=store)
    query.run(store, query.batch(0), rows(0, 1, 2))
    wider = Query(lake, options={**options, "schemaEvolution": "addColumns"}, store=store)
    more = rows(3, 4).append_column("price", pa.nulls(2, WIDER.field("price").type))
    wider.run(store, wider.batch(1), more)

    with dying_in(monkeypatch, "complete"):
        query.run(store, query.batch(2), rows(5, 6), run_id="r3")
    before = seen(lake)
    assert len(lake.visible_files()) == 7
    assert _ids(lake, before) == [0, 1, 2, 3, 4]
    assert (before.version, before.columns, len(before.pending)) == (6, WIDER.names, 1)
    assert set(lake.commits()) < before.completed

    query.recover(store)
    after = seen(lake)
    assert _ids(lake, after) == [0, 1, 2, 3, 4, 5, 6]
    assert not after.pending


def test_streams_continue_after_hudi_has_archived_their_commits(
    tmp_path: Path, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four queries: one goes on, one died right after its commit, one before, one was not committed."""
    lake = HudiLake(tmp_path)
    steady, after, before, planned = (Query(lake, name, store=store) for name in ("q1", "q2", "q3", "q4"))
    steady.run(store, steady.batch(0), rows(0))
    with dying_in(monkeypatch, "heal"):
        after.run(store, after.batch(0), rows(1))
    clustered = lake.visible_files()
    with dying_in(monkeypatch, "request"):
        before.run(store, before.batch(0), rows(2))
    late = planned.prepare(store, planned.batch(0), rows(3))
    for batch_id in range(1, 5):
        steady.run(store, steady.batch(batch_id), rows(10 + batch_id))
    try:
        archive_hudi(lake.folder, 2)
    except MavenUnreachableError as error:
        pytest.skip(str(error))
    assert len(lake.commits()) == 2
    assert list((lake.meta / "archived").glob(".commits_.archive*"))

    for path in clustered:  # cleaning deletes the files that clustering has replaced
        if "penstock-q2" in path:
            (lake.folder / path).unlink()
    found = after.target().token("q2")
    assert found is not None
    assert found.batch_id == 0
    after.recover(store)
    assert isinstance(after.target().commit(stored_manifest(store, after.batch(0))), AlreadyCommitted)
    assert before.target().token("q3") is None
    before.run(store, before.batch(0), rows(2), run_id="r2")
    with pytest.raises(SchemaMismatchError, match="has archived its timeline"):
        planned.target().commit(late)
    steady.run(store, steady.batch(5), rows(15))

    assert _ids(lake, seen(lake)) == [0, 2, 11, 12, 13, 14, 15]


def _ids(lake: HudiLake, table: SeenTable) -> list[int]:
    columns = [pq.read_table(lake.folder / path, columns=["id"], partitioning=None) for path in table.files]
    return sorted(row for column in columns for row in column["id"].to_pylist())
