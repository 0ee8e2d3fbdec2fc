"""What protects the token and the files of a DuckLake table when catalogs, tables and connections change."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from tests.support.ducklakes import DuckLake, losing_commit, server_of, sqlite_lake
from tests.support.lakes import ids

from penstock.committers.contract import BATCH_WRITE_PREFIX, Conflict
from penstock.committers.ducklake import connection, fence
from penstock.committers.ducklake import plan as planning
from penstock.committers.ducklake.connection import DatabaseError, Lake
from penstock.committers.ducklake.files import DuckLakeCleanableTable
from penstock.committers.ducklake.maintenance import merge_files
from penstock.committers.ducklake.table import data_path_problem
from penstock.committers.errors import RetryableError, TableChangedError
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance import Query
from penstock.testing.conformance.query import payloads
from penstock.testing.duckdb_reader import load_extensions


@pytest.fixture
def lake(tmp_path: Path) -> DuckLake:
    return sqlite_lake(tmp_path)


def catalog_files(lake: DuckLake) -> list[Path]:
    return list(lake.folder.glob("catalog.sqlite*"))


def test_a_catalog_that_was_restored_from_a_backup_is_noticed(
    lake: DuckLake, store: SqlManifestStore, tmp_path: Path
) -> None:
    query = Query(lake)
    query.run(store, query.batch(0), ids(0))
    (tmp_path / "backup").mkdir()
    for file in catalog_files(lake):
        shutil.copy(file, tmp_path / "backup")
    query.run(store, query.batch(1), ids(1))
    for file in catalog_files(lake):
        file.unlink()
    for file in (tmp_path / "backup").iterdir():
        shutil.copy(file, lake.folder)
    with pytest.raises(TableChangedError, match="restored from a backup"):
        query.plan(store, query.batch(2))


def test_a_query_has_a_token_for_each_table(lake: DuckLake, store: SqlManifestStore) -> None:
    """A fan-out writes several tables with one query id, and the fence is one table."""
    one, other = Query(lake), Query(lake, options={"table": "main.other"})
    one.run(store, one.batch(0), ids(0))
    assert other.target().token("q1") is None
    other.run(store, other.batch(0), ids(1))
    one.run(store, one.batch(1), ids(2))
    assert [query.target().token("q1").batch_id for query in (one, other)] == [1, 0]  # type: ignore[union-attr]
    assert lake.sql("SELECT id FROM events ORDER BY id") == [(0,), (2,)]


def test_tokens_of_old_batch_writes_are_deleted(lake: DuckLake, store: SqlManifestStore) -> None:
    stream = Query(lake)
    stream.run(store, stream.batch(0), ids(0))
    for name in ("old", "young"):
        write = Query(lake, f"{BATCH_WRITE_PREFIX}{name}")
        write.run(store, write.batch(0), ids(1))
    lake.sql(
        "UPDATE penstock_fence SET committed_at = now() - INTERVAL 8 DAY "
        "WHERE query_id IN ('q1', '') OR ends_with(query_id, 'old')"
    )
    write = Query(lake, f"{BATCH_WRITE_PREFIX}new")
    write.run(store, write.batch(0), ids(2))
    found = lake.sql("SELECT query_id FROM penstock_fence ORDER BY 1")
    assert found == [("",), ("q1",), (f"{BATCH_WRITE_PREFIX}new",), (f"{BATCH_WRITE_PREFIX}young",)]


def test_an_earlier_query_into_a_table_that_was_dropped_is_no_origin(
    lake: DuckLake, store: SqlManifestStore
) -> None:
    query = Query(lake)
    query.run(store, query.batch(0), ids(0))
    (origin,) = lake.sql("SELECT origins::JSON->>0 FROM penstock_fence WHERE query_id = 'q1'")[0]
    target = Query(lake, "q2").target()
    assert target.recorded_origin("q2", [origin]) == origin  # type: ignore[attr-defined]
    lake.sql("DROP TABLE events", "CREATE TABLE events (id BIGINT)")
    assert target.recorded_origin("q2", [origin]) is None  # type: ignore[attr-defined]


def test_without_the_catalog_no_file_is_deleted(lake: DuckLake, store: SqlManifestStore) -> None:
    query = Query(lake)
    query.run(store, query.batch(0), ids(0))
    for file in catalog_files(lake):
        file.unlink()
    with pytest.raises(RetryableError, match="is missing, so it is unknown which files it lists"):
        next(DuckLakeCleanableTable(server_of(lake)).names())


def test_files_are_left_to_clean_up_if_the_catalog_does_not_answer(
    lake: DuckLake, store: SqlManifestStore
) -> None:
    query = Query(lake)
    written = query.write(query.plan(store, query.batch(0)), [ids(0)])
    for file in catalog_files(lake):
        file.unlink()
    (lake.folder / "catalog.sqlite").write_bytes(b"damaged" * 1000)
    assert query.target().discard(payloads(written)) == 0
    assert len(list(lake.files.iterdir())) == 1


def test_files_that_were_deleted_are_named(lake: DuckLake, store: SqlManifestStore) -> None:
    query = Query(lake)
    manifest = query.prepare(store, query.batch(0), ids(0))
    (file,) = lake.files.iterdir()
    file.unlink()
    with pytest.raises(
        RetryableError, match=f"1 of the 1 files of batch 0 .* first {file.name}: they were deleted"
    ):
        query.target().commit(manifest)


def test_a_conflict_before_the_end_of_the_transaction_is_retried(
    lake: DuckLake, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(lake)
    manifest = query.prepare(store, query.batch(0), ids(0))

    def locked(*_: object, **__: object) -> None:
        raise duckdb.TransactionException("database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(fence, "update", locked)
        assert isinstance(query.target().commit(manifest), Conflict)
    assert lake.sql("SELECT count(*) FROM events") == [(0,)]


def test_a_table_that_another_process_creates_first_is_used(
    lake: DuckLake, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [True]

    def commit(one: Lake) -> DatabaseError | None:
        if first and first.pop():
            query = Query(lake, "q2")
            query.plan(store, query.batch(0), pa.schema([("id", pa.int64()), ("more", pa.string())]))
        return connection.commit(one)

    monkeypatch.setattr(planning, "commit", commit)
    query = Query(lake)
    query.run(store, query.batch(0), ids(0))
    assert lake.sql("SELECT * FROM events") == [(0, None)]


def test_a_table_is_not_created_if_the_catalog_fails(
    lake: DuckLake, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "commit", lambda _lake: duckdb.IOException("the connection was lost"))
    query = Query(lake)
    with pytest.raises(RetryableError, match="the connection was lost"):
        query.plan(store, query.batch(0))


def test_a_merge_that_is_not_committed_is_reported(lake: DuckLake, store: SqlManifestStore) -> None:
    query = Query(lake)
    for number in range(2):
        query.run(store, query.batch(number), ids(number))
    with losing_commit("request"), pytest.raises(RetryableError, match="Nothing was merged"):
        merge_files(server_of(lake))
    assert len(lake.named()) == 2


def test_the_users_own_secrets_of_duckdb_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret with a longer scope would be used instead of the access key in the options."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = str(tmp_path / ".duckdb" / "stored_secrets")
    with duckdb.connect(config={"secret_directory": folder, "allow_unsigned_extensions": "true"}) as user:
        load_extensions(user, "httpfs")
        user.execute("CREATE PERSISTENT SECRET users (TYPE s3, KEY_ID 'a', SECRET 'b', SCOPE 's3://lake/x')")
    opened = connection._database.__wrapped__(0, "duckdb", (("KEY_ID", "key"), ("SECRET", "secret")))
    assert opened.execute("SELECT count(*), any_value(persistent) FROM duckdb_secrets()").fetchall() == [
        (1, False)
    ]


@pytest.mark.parametrize(
    ("data_path", "names"),
    [("s3://lake/", "whole bucket"), ("gs://lake/x/", "object store"), ("data/", "relative")],
)
def test_data_paths_that_files_cannot_be_beside(data_path: str, names: str) -> None:
    """Beside a bucket would be another bucket."""
    assert names in data_path_problem(data_path)
