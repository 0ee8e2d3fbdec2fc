"""Hudi's own Java library reads the tables that Penstock writes, and writes tables for Penstock."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers.hudi_reader import SeenTable, archive_hudi, hudi_jars, read_hudi, write_hudi
from servers.maven import MavenUnreachableError
from tests.support.hudi import HudiLake, dying_in

from penstock.committers.contract import AlreadyCommitted
from penstock.committers.errors import SchemaMismatchError, TableNotSupportedError
from penstock.committers.protocol.commit_runner import stored_manifest
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance import Query

SIX, EIGHT = (pytest.param(version, marks=pytest.mark.campaign) for version in (6, 8))
ROWS = pa.schema([("id", pa.int64()), ("day", pa.string())])
WIDER = pa.schema([*ROWS, ("price", pa.decimal128(12, 2))])


@pytest.fixture(autouse=True)
def _reachable() -> None:
    try:
        hudi_jars()
    except MavenUnreachableError as error:
        pytest.skip(str(error))


def seen(lake: HudiLake, as_of: str = "", after: str = "") -> SeenTable:
    return read_hudi(lake.folder, as_of, after)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "day": ["2026/1", None, "b c"][: len(ids)]}, schema=ROWS)


@pytest.mark.parametrize(
    ("version", "hive_style"),
    [(6, "true"), pytest.param(8, "true", marks=pytest.mark.campaign), (9, "false")],
)
def test_hudi_sees_the_rows_of_completed_batches_only(
    tmp_path: Path, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch, version: int, hive_style: str
) -> None:
    """The driver dies when the files are in their places, and the instant is not completed."""
    lake = HudiLake(tmp_path, version)
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
    assert (before.version, before.columns, len(before.pending)) == (version, WIDER.names, 1)
    assert before.rows == [0, 3, 2]
    assert set(lake.commits()) < before.completed

    query.recover(store)
    after = seen(lake)
    assert _ids(lake, after) == [0, 1, 2, 3, 4, 5, 6]
    assert not after.pending


@pytest.mark.parametrize("version", [EIGHT, 9])
def test_a_table_that_hudi_has_created_is_appended_to_in_turn(
    tmp_path: Path, store: SqlManifestStore, version: int
) -> None:
    """Hudi adds its rows to a small file of Penstock. Readers see all, earlier and new rows."""
    lake = HudiLake(tmp_path, version)
    write_hudi(lake.folder, version, 1, 2)
    query = Query(lake, store=store)
    query.run(store, query.batch(0), pa.table({"id": [3], "day": ["x"]}, schema=ROWS))
    write_hudi(lake.folder, version, 4)
    query.run(store, query.batch(1), pa.table({"id": [5], "day": ["y"]}, schema=ROWS))

    first, second, third, fourth = lake.commits()
    now = seen(lake, after=lake.end_of(first))
    assert _ids(lake, now) == [1, 2, 3, 4, 5]
    assert now.changed == [second, third, fourth]
    assert _ids(lake, seen(lake, as_of=second)) == [1, 2, 3]
    assert lake.ids() == [1, 2, 3, 4, 5]
    assert sorted(row["id"] for row in lake.rows(after=lake.end_of(first))) == [3, 4, 5]
    assert [row["_hoodie_record_key"] for row in lake.rows(after=lake.end_of(third))] == ["5"]


@pytest.mark.parametrize(
    ("version", "kind", "has_metadata_table", "message"),
    [
        (8, "MERGE_ON_READ", False, "it is a MERGE_ON_READ table"),
        (9, "COPY_ON_WRITE", True, "it has a metadata table with .*files"),
    ],
)
def test_a_table_of_hudi_that_commits_would_damage_is_refused_by_name(
    tmp_path: Path, store: SqlManifestStore, version: int, kind: str, has_metadata_table: bool, message: str
) -> None:
    lake = HudiLake(tmp_path, version)
    write_hudi(lake.folder, version, 1, kind=kind, has_metadata_table=has_metadata_table)
    before = sorted(lake.folder.rglob("*"))
    query = Query(lake, store=store)
    with pytest.raises(TableNotSupportedError, match=message):
        query.plan(store, query.batch(0), ROWS)

    assert sorted(lake.folder.rglob("*")) == before


@pytest.mark.parametrize("version", [SIX, 9])
def test_a_batch_that_hudi_has_rolled_back_before_its_end_is_committed_by_the_next_attempt(
    tmp_path: Path, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Hudi's writer cleans eagerly: it deletes the pending instant of a dead driver, and its files."""
    lake = HudiLake(tmp_path, version)
    query = Query(lake, options={"partitionBy": "day", "recordKey": "id"}, store=store)
    query.run(store, query.batch(0), rows(0))
    with dying_in(monkeypatch, "complete"):
        query.run(store, query.batch(1), rows(1))
    (pending,) = lake.pending()
    write_hudi(lake.folder, version, 2)
    assert not lake.pending()
    assert not [path for path in lake.visible_files() if pending in path]
    assert lake.ids() == [0, 2]

    query.recover(store)
    assert lake.ids() == [0, 1, 2]
    assert _ids(lake, seen(lake)) == [0, 1, 2]


@pytest.mark.parametrize("version", [SIX, EIGHT, 9])
def test_streams_continue_after_hudi_has_archived_their_commits(
    tmp_path: Path, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Of four queries: one goes on, one died right after its commit, one before, one was not committed."""
    lake = HudiLake(tmp_path, version)
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
    archive_hudi(lake.folder, 2)
    assert len(lake.commits()) == 2
    archive = "archived/.commits_.archive*" if version == 6 else "timeline/history/*.parquet"
    assert list(lake.meta.glob(archive))

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


@pytest.mark.slow
@pytest.mark.parametrize("version", [SIX, EIGHT, 9])
def test_hudi_reads_changed_rows_once_and_changes_them_in_turn(
    tmp_path: Path, store: SqlManifestStore, version: int
) -> None:
    """Both rewrite the file groups of the other: updates, deletions, and keys that move to a partition. In
    the end Hudi deletes the earlier files, and archives their commits.
    """
    lake = HudiLake(tmp_path, version)
    write_hudi(lake.folder, version, 1, 2, 3)
    options = {"writeMode": "upsert", "keys": "id", "deleteWhen": "op = 'd'", "dropColumns": "op"}
    query = Query(lake, options=options, store=store)

    def change(batch_id: int, *some: tuple[int, str | None, str]) -> None:
        columns = [pa.array(column) for column in zip(*some, strict=True)]
        query.run(store, query.batch(batch_id), pa.table(columns, names=["id", "day", "op"]))

    change(0, (2, "y", "u"), (3, None, "d"), (4, "x", "u"))
    write_hudi(lake.folder, version, 1, 4, 5, upserts=True)
    assert _days(lake, seen(lake)) == [(1, "x"), (2, "y"), (4, "x"), (5, "x")]
    first, second, third = lake.commits()
    change(1, (1, None, "d"), (5, "y", "u"), (2, "z", "u"))
    change(2, (6, "x", "u"), (4, None, "d"))

    now = seen(lake, after="" if version == 6 else lake.end_of(third))
    assert _days(lake, now) == [(2, "z"), (5, "y"), (6, "x")]
    assert now.changed == ([] if version == 6 else lake.commits()[3:])  # not in Hudi's library
    assert now.rows == [sum(stat["numWrites"] for stat in lake.stats(one)) for one in lake.commits()]
    assert _days(lake, seen(lake, as_of=second)) == [(1, "x"), (2, "y"), (4, "x")]
    assert sorted((row["id"], row["day"]) for row in lake.rows()) == [(2, "z"), (5, "y"), (6, "x")]
    assert sorted(row["id"] for row in lake.rows(after=lake.end_of(third))) == [2, 5, 6]
    keys = [(row["_hoodie_record_key"], row["_hoodie_partition_path"]) for row in lake.rows()]
    assert sorted(keys) == [("2", "day=z"), ("5", "day=y"), ("6", "day=x")]
    assert first < second < third
    files = len(lake.visible_files())
    archive_hudi(lake.folder, 2, cleans=True)
    assert len(lake.commits()) == 2
    assert len(lake.visible_files()) < files
    change(3, (2, None, "d"), (7, "x", "u"))
    assert _days(lake, seen(lake)) == [(5, "y"), (6, "x"), (7, "x")]
    assert sorted(lake.ids()) == [5, 6, 7]


def _days(lake: HudiLake, table: SeenTable) -> list[tuple[int, str]]:
    columns = [
        pq.read_table(lake.folder / path, columns=["id", "day"], partitioning=None) for path in table.files
    ]
    return sorted((row["id"], row["day"]) for one in columns for row in one.to_pylist())


def _ids(lake: HudiLake, table: SeenTable) -> list[int]:
    columns = [pq.read_table(lake.folder / path, columns=["id"], partitioning=None) for path in table.files]
    return sorted(row for column in columns for row in column["id"].to_pylist())
