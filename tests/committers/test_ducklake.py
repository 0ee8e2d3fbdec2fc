"""The DuckLake committer with real catalogs: nothing is lost and nothing doubled, and what it refuses."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from tests.support.ducklakes import DuckLake, duckdb_lake, postgres_lake, server_of, sqlite_lake
from tests.support.file_rows import canonical
from tests.support.lakes import ids
from tests.support.values import rows_of_all_types

from penstock.committers.cleaning.cleanup import ListedFile
from penstock.committers.contract import AlreadyCommitted, Committed, Manifest, Token
from penstock.committers.ducklake.maintenance import delete_removed_files, merge_files
from penstock.committers.errors import (
    ConfigurationError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
    TableNotSupportedError,
)
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.destinations import cleanup_of
from penstock.datasource.stored.stored_table import Cleanable
from penstock.testing.conformance import Query
from penstock.testing.conformance.deliveries import deliver
from penstock.testing.conformance.upserts import OPTIONS, changes


@pytest.fixture
def lake(tmp_path: Path) -> DuckLake:
    return sqlite_lake(tmp_path)


@pytest.fixture(params=["sqlite", "duckdb", "postgresql"])
def any_lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DuckLake:
    if request.param == "postgresql":
        monkeypatch.setenv("PGUSER", "postgres")  # the store knows no user
        new_url: Callable[[], str] = request.getfixturevalue("new_postgres_url")
        return postgres_lake(tmp_path, new_url)
    return sqlite_lake(tmp_path) if request.param == "sqlite" else duckdb_lake(tmp_path)


def prepared(lake: DuckLake, store: SqlManifestStore, batch_id: int = 0) -> Manifest:
    query = Query(lake)
    return query.prepare(store, query.batch(batch_id), ids(batch_id))


# Concurrent commits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_id", [0, 1])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_of_two_transactions_that_read_the_same_token_one_commits(
    kind: str, batch_id: int, tmp_path: Path, store: SqlManifestStore, request: pytest.FixtureRequest
) -> None:
    """The first batch of a query inserts its row: two inserts alone would not conflict."""
    lake = sqlite_lake(tmp_path)
    if kind == "postgresql":
        lake = postgres_lake(tmp_path, request.getfixturevalue("new_postgres_url"))
    query = Query(lake)
    for earlier in range(batch_id):
        query.run(store, query.batch(earlier), ids(earlier))
    manifest = prepared(lake, store, batch_id=batch_id)

    def commit_first(_: Token | None) -> None:
        assert isinstance(query.target().commit(manifest), Committed)

    assert isinstance(query.target().commit(manifest, commit_first), AlreadyCommitted)
    assert lake.sql("SELECT id FROM events ORDER BY id") == [(number,) for number in range(batch_id + 1)]


def test_the_token_survives_a_fence_that_is_not_inlined(lake: DuckLake, store: SqlManifestStore) -> None:
    query = Query(lake)
    query.run(store, query.batch(0), ids(0))
    lake.sql("CALL lake.set_option('data_inlining_row_limit', 0)", "CALL ducklake_flush_inlined_data('lake')")
    manifest = prepared(lake, store, batch_id=1)

    def commit_first(_: Token | None) -> None:
        query.target().commit(manifest)

    assert isinstance(query.target().commit(manifest, commit_first), AlreadyCommitted)
    token = query.target().token("q1")
    assert token is not None
    assert token.batch_id == 1
    assert lake.sql("SELECT count(*) FROM events") == [(2,)]


def test_another_process_has_the_file_of_the_catalog_open(
    tmp_path: Path, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.committers.ducklake.connection.LOCK_WAIT_S", 0.1)
    lake = duckdb_lake(tmp_path)
    manifest = prepared(lake, store)
    with server_of(lake).attached("") as other:
        assert other is not None
        with pytest.raises(RetryableError, match=r"failed: .*[Uu]nique file handle"):
            Query(lake).target().commit(manifest)
    assert isinstance(Query(lake).target().commit(manifest), Committed)


# What others read -------------------------------------------------------------------------------------

ODD_NAMES = [("a b", pa.int32()), ("c", pa.string())]


def test_every_type_is_read_back_by_duckdb_and_from_the_files(
    any_lake: DuckLake, store: SqlManifestStore
) -> None:
    structs = pa.array([[{"a b": 1, "c": None}, None], None, []], pa.list_(pa.struct(ODD_NAMES)))
    texts = pa.array(["ä\0 'quoted'", None, None])
    rows = rows_of_all_types().append_column("structs", structs).append_column("texts", texts)
    query = Query(any_lake)
    query.run(store, query.batch(0), rows)

    read = any_lake.sql("SET TimeZone = 'UTC'", "SELECT * FROM events")
    found = [dict(zip(rows.column_names, row, strict=True)) for row in read]
    assert canonical(found) == canonical(rows.to_pylist(maps_as_pydicts="strict"))

    (path,) = any_lake.sql("SELECT path FROM __ducklake_metadata_lake.ducklake_data_file")[0]
    assert pl.read_parquet(path).get_column("long").to_list() == [-(2**63), None, None]


def test_the_snapshot_says_which_batch_it_has(any_lake: DuckLake, store: SqlManifestStore) -> None:
    query = Query(any_lake)
    batch = query.batch(0)
    query.run(store, batch, ids(1))
    (author, message, info) = any_lake.sql(
        "SELECT author, commit_message, commit_extra_info FROM lake.snapshots() "
        "ORDER BY snapshot_id DESC LIMIT 1"
    )[0]
    assert (author, message) == ("penstock", "batch 0")
    assert batch.digest in info


def test_a_new_column_comes_with_its_rows(lake: DuckLake, store: SqlManifestStore) -> None:
    query = Query(lake, options={"schemaEvolution": "addColumns"})
    query.run(store, query.batch(0), ids(0))
    before = lake.sql("SELECT max(snapshot_id) FROM lake.snapshots()")[0][0]
    query.run(store, query.batch(1), pa.table({"id": [1], "more": [["a"]]}))
    assert lake.sql("SELECT id, more FROM events ORDER BY id") == [(0, None), (1, ["a"])]
    assert lake.sql("SELECT max(snapshot_id) FROM lake.snapshots()") == [(before + 1,)]


def test_existing_tables_get_their_names_and_wider_types(lake: DuckLake, store: SqlManifestStore) -> None:
    lake.sql(
        'CREATE TABLE events ("Id" BIGINT NOT NULL, extra VARCHAR)', "INSERT INTO events VALUES (0, 'x')"
    )
    query = Query(lake)
    query.run(store, query.batch(0), pa.table({"id": pa.array([1], pa.int32())}))
    assert lake.sql('SELECT "Id", extra FROM events ORDER BY 1') == [(0, "x"), (1, None)]
    with pytest.raises(PenstockError, match="NULL"):
        query.run(store, query.batch(1), ids(None))  # type: ignore[arg-type]


# What is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statements", "error", "names"),
    [
        (
            ["CREATE TABLE events (id BIGINT, s VARCHAR DEFAULT 'x')"],
            SchemaMismatchError,
            "'s' has a default",
        ),
        (["CREATE TABLE events (id BIGINT, s VARCHAR NOT NULL)"], SchemaMismatchError, "'s' is NOT NULL"),
        (["CREATE TABLE events (id INTEGER)"], SchemaMismatchError, "INTEGER in the table and BIGINT"),
        (["CREATE TABLE events (id UUID)"], SchemaMismatchError, "UUID in the table and BIGINT"),
        (["CREATE TABLE events (other BIGINT)"], SchemaMismatchError, "no column 'id'"),
    ],
)
def test_a_table_that_cannot_take_the_rows_is_refused_before_any_is_written(
    lake: DuckLake, store: SqlManifestStore, statements: list[str], error: type[Exception], names: str
) -> None:
    lake.sql(*statements)
    query = Query(lake)
    with pytest.raises(error, match=names):
        query.plan(store, query.batch(0))
    assert not lake.files.exists()
    assert lake.sql("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'penstock_fence'") == [(0,)]


def test_an_encrypted_ducklake_is_refused(lake: DuckLake, store: SqlManifestStore) -> None:
    from tests.support.ducklakes import reader

    with reader().cursor() as other:
        other.execute(f"ATTACH '{lake.source}' AS e (DATA_PATH '{lake.folder}/data/', ENCRYPTED true)")
        other.execute("DETACH e")
    query = Query(lake)
    with pytest.raises(TableNotSupportedError, match="encrypted"):
        query.plan(store, query.batch(0))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"dataPath": "gs://bucket/data"}, "object stores"),
        ({"dataPath": "s3://bucket/"}, "folder of a bucket"),
        ({"dataPath": "data"}, "absolute"),
        ({"catalog": "sqlite:catalog.sqlite"}, "absolute"),
        ({"catalog": "sqlite:/lake/c.sqlite", "store": "sqlite:////lake/../lake/c.sqlite"}, "of the catalog"),
        ({"catalog": "mysql://host/db"}, "catalog"),
        ({"table": "a.b.c"}, "schema.table"),
        ({"tableProperties": '{"a": "b"}'}, "no properties"),
    ],
)
def test_bad_options_are_refused(lake: DuckLake, options: dict[str, str], names: str) -> None:
    with pytest.raises(ConfigurationError, match=names):
        Query(lake, options=options).sink()


def test_without_a_catalog_nothing_is_created(lake: DuckLake, store: SqlManifestStore) -> None:
    for options in ({"createTable": "false"}, {"dataPath": ""}):
        given = {key: value for key, value in {**lake.options, **options}.items() if value}
        query = Query(lake, destination_options=given)
        with pytest.raises(ConfigurationError, match="There is no DuckLake"):
            query.plan(store, query.batch(0))
    assert not os.path.exists(lake.catalog.partition(":")[2])  # noqa: PTH110


def test_another_data_path_is_refused(lake: DuckLake, store: SqlManifestStore) -> None:
    Query(lake).plan(store, Query(lake).batch(0))
    query = Query(lake, options={"dataPath": f"{lake.folder}/elsewhere"})
    with pytest.raises(ConfigurationError, match="another data path"):
        query.plan(store, query.batch(0))


@pytest.mark.parametrize(
    ("statement", "error", "names"),
    [
        ("ALTER TABLE events DROP COLUMN more", SchemaMismatchError, "'more' was removed"),
        ("ALTER TABLE events ADD COLUMN s VARCHAR DEFAULT 'x'", SchemaMismatchError, "now has a default"),
        ("ALTER TABLE events SET PARTITIONED BY (id)", SchemaMismatchError, "by id, and was by no column"),
        ("ALTER TABLE events SET PARTITIONED BY (bucket(4, id))", TableNotSupportedError, "bucket"),
        ("DROP TABLE penstock_fence", TableChangedError, "penstock_fence"),
    ],
)
def test_a_table_that_was_altered_meanwhile_does_not_get_the_batch(
    lake: DuckLake, store: SqlManifestStore, statement: str, error: type[Exception], names: str
) -> None:
    query = Query(lake)
    manifest = query.prepare(store, query.batch(0), pa.table({"id": [1], "more": [2]}))
    lake.sql(statement)
    with pytest.raises(error, match=names):
        query.target().commit(manifest)
    assert lake.sql("SELECT count(*) FROM events") == [(0,)]


WIDENED: list[tuple[str, pa.Array, object]] = [
    ("BIGINT", pa.array([-(2**31)], pa.int32()), -(2**31)),
    ("INTEGER", pa.array([-128], pa.int8()), -128),
    ("DOUBLE", pa.array([0.5], pa.float32()), 0.5),
    ("DECIMAL(38,3)", pa.array([Decimal("-1234567.89")]), Decimal("-1234567.890")),
    ("BIGINT[]", pa.array([[1, None]], pa.list_(pa.int32())), [1, None]),
    (
        "STRUCT(a DOUBLE, b BIGINT)",
        pa.array([{"a": 0.5}], pa.struct([("a", pa.float32())])),
        {"a": 0.5, "b": None},
    ),
    ("MAP(VARCHAR, BIGINT)", pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int16())), {"k": 1}),
]


@pytest.mark.parametrize(("kind", "values", "expected"), WIDENED, ids=[kind for kind, _, _ in WIDENED])
def test_batches_that_wait_are_delivered_to_a_column_that_was_widened(
    lake: DuckLake, store: SqlManifestStore, kind: str, values: pa.Array, expected: object
) -> None:
    query = Query(lake, options={"delivery": "decoupled"})
    for batch_id in range(2):
        query.run(store, query.batch(batch_id), ids(batch_id).append_column("x", values))
    lake.sql(f"ALTER TABLE events ALTER COLUMN x TYPE {kind}")
    deliver(store)
    assert lake.sql("SELECT id, x, typeof(x) FROM events ORDER BY 1") == [
        (0, expected, kind),
        (1, expected, kind),
    ]
    assert lake.sql("SELECT count(*) FROM events WHERE x = (SELECT max(x) FROM events)") == [(2,)]


def test_a_type_that_files_do_not_fit_is_not_undone_but_skipped(
    lake: DuckLake, store: SqlManifestStore
) -> None:
    query = Query(lake)
    manifest = query.prepare(store, query.batch(0), ids(1))
    lake.sql("ALTER TABLE events ALTER COLUMN id TYPE DOUBLE")
    with pytest.raises(SchemaMismatchError, match=r"cannot make a type smaller again.* penstock skip"):
        query.target().commit(manifest)


# Clean-up ---------------------------------------------------------------------------------------------


def test_no_clean_up_of_ducklake_deletes_files_that_wait_for_their_commit(
    any_lake: DuckLake, store: SqlManifestStore
) -> None:
    query = Query(any_lake)
    query.run(store, query.batch(0), ids(0))
    manifest = prepared(any_lake, store, batch_id=1)
    (any_lake.folder / "data").mkdir(exist_ok=True)
    (any_lake.folder / "data" / "orphan.parquet").touch()
    deleted = any_lake.sql(
        "CALL ducklake_expire_snapshots('lake', older_than => now())",
        "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
        "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)",
    )
    assert [path for (path,) in deleted] == [str(any_lake.folder / "data" / "orphan.parquet")]
    query.target().commit(manifest)
    assert sorted(any_lake.sql("SELECT id FROM events")) == [(0,), (1,)]


@pytest.mark.parametrize("is_new", [True, False])
def test_columns_may_have_the_names_of_inlined_rows(
    lake: DuckLake, store: SqlManifestStore, is_new: bool
) -> None:
    query = Query(lake, options={"schemaEvolution": "addColumns", "newTarget": "allow"})
    if not is_new:
        query.run(store, query.batch(0), ids(0))
    query.run(store, query.batch(1), pa.table({"id": [1], "row_id": [7]}))
    query.run(store, query.batch(2), ids(2))
    assert lake.sql("SELECT id, row_id FROM events WHERE id > 0 ORDER BY id") == [(1, 7), (2, None)]


def test_maintenance_keeps_rows_and_token_and_gc_keeps_every_listed_file(
    any_lake: DuckLake, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(any_lake)
    for number in range(5):
        query.run(store, query.batch(number), ids(number))
    pending = prepared(any_lake, store, batch_id=5)
    server = server_of(any_lake)
    assert merge_files(server) == 5
    stored = query.stored_table()
    assert isinstance(stored, Cleanable)
    cleanable = stored.cleanable(store)
    files: list[ListedFile] = list(cleanable.files())
    assert len(files) == 6
    assert len({name for names in cleanable.names() for name in names}) >= 6
    cleanup = cleanup_of(stored, store, [query.stream])
    assert not cleanup.find(dt.datetime.now(dt.timezone.utc), dt.timedelta(0)).unneeded

    assert delete_removed_files(server) == 0, "readers of older snapshots need them"
    monkeypatch.setattr("penstock.committers.ducklake.maintenance.RETENTION_DAYS", -1)
    assert delete_removed_files(server) == 5
    assert len(list(any_lake.files.iterdir())) == 1
    query.target().commit(pending)
    assert sorted(any_lake.sql("SELECT id FROM events")) == [(number,) for number in range(6)]


def test_maintenance_writes_files_with_many_deleted_rows_again(
    any_lake: DuckLake, store: SqlManifestStore
) -> None:
    query = Query(any_lake, options=OPTIONS)
    query.run(store, query.batch(0), changes(*((key, 1, "a") for key in range(100))))
    query.run(store, query.batch(1), changes(*((key, 2, "b") for key in range(30)), (99, 2)))
    assert merge_files(server_of(any_lake)) >= 1
    rows = any_lake.sql("SELECT count(*), count(*) FILTER (text = 'b') FROM events")
    assert rows == [(99, 30)]
    assert not any_lake.sql(
        "SELECT 1 FROM ducklake_list_files('lake', 'events') WHERE delete_file IS NOT NULL"
    )
