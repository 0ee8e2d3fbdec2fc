"""What is particular to DuckDB tables. The promises of all destinations are in the conformance suite."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from tests.support.duckdb_table import DuckDbHarness

from penstock import ConfigurationError, RetryableError, SchemaMismatchError
from penstock.committers.database.staging import StagingTable
from penstock.committers.duckdb import types
from penstock.committers.duckdb.address import DuckDbAddress, parse_path, parse_table_name
from penstock.committers.duckdb.staged_files import relative_path
from penstock.committers.errors import (
    ManifestCorruptError,
    TableChangedError,
    TableNotSupportedError,
)
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance.query import Query, ids

IDS_AND_SIZES = pa.schema([("id", pa.int64()), ("size", pa.int32())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    with open_store(f"sqlite:///{tmp_path}/store.sqlite") as store:
        yield store


@pytest.fixture
def table(tmp_path: Path) -> DuckDbHarness:
    return DuckDbHarness(tmp_path)


def query(table: DuckDbHarness, **options: str) -> Query:
    return Query(table, "q1", options)


def run(store: SqlManifestStore, of: Query, rows: pa.Table, batch_id: int = 0) -> None:
    of.run(store, of.batch(batch_id), rows)


def sizes(*rows: tuple[int, int | None]) -> pa.Table:
    return pa.table({"id": [row[0] for row in rows], "size": [row[1] for row in rows]}, IDS_AND_SIZES)


@contextmanager
def opened_elsewhere(path: Path, *, read_only: bool) -> Iterator[int]:
    """Another process has the file open in the block; yields its id."""
    program = (
        f"import duckdb, sys\nwith duckdb.connect({str(path)!r}, read_only={read_only}):\n"
        "    print('open', flush=True)\n    sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        try:
            yield process.pid
        finally:
            process.communicate(b"")


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_that_another_process_has_open_is_waited_for_and_named(
    read_only: bool, table: DuckDbHarness, store: SqlManifestStore
) -> None:
    run(store, query(table), ids(1))
    waits = query(table, lockWaitSeconds="1")
    with opened_elsewhere(table.path, read_only=read_only) as process:
        with pytest.raises(RetryableError, match=f"lake.duckdb is open in process {process} "):
            run(store, waits, ids(2), 1)
    run(store, waits, ids(2), 1)
    assert sorted(table.ids()) == [1, 2]


def test_a_batch_waits_until_another_process_has_closed_the_file(
    table: DuckDbHarness, store: SqlManifestStore
) -> None:
    run(store, query(table), ids(1))
    with ExitStack() as other:
        other.enter_context(opened_elsewhere(table.path, read_only=False))
        closes = threading.Timer(1, other.close)
        closes.start()
        run(store, query(table), ids(2), 1)
        closes.join()
    assert sorted(table.ids()) == [1, 2]


def test_a_file_that_this_process_has_open_is_an_error(table: DuckDbHarness, store: SqlManifestStore) -> None:
    run(store, query(table), ids(1))
    with duckdb.connect(str(table.path)), pytest.raises(RetryableError, match="This process has the DuckDB"):
        run(store, query(table, lockWaitSeconds="1"), ids(2), 1)


def test_no_file_is_open_between_two_batches(table: DuckDbHarness, store: SqlManifestStore) -> None:
    run(store, query(table), ids(1))
    with duckdb.connect(str(table.path)) as connection:
        assert connection.sql("SELECT id FROM events").fetchall() == [(1,)]


def test_all_types_are_read_as_they_were_written(table: DuckDbHarness, store: SqlManifestStore) -> None:
    struct = pa.struct([("a b", pa.int32()), ("C", pa.list_(pa.string()))])
    rows = pa.table(
        {
            "flag": pa.array([True, None]),
            "tiny": pa.array([1, -128], pa.int8()),
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "at": pa.array([-1, 2**52], pa.timestamp("us", "UTC")),
            "local": pa.array([0, None], pa.timestamp("us")),
            "list": pa.array([[1, None], None], pa.list_(pa.int64())),
            "struct": pa.array([{"a b": 1, "C": ["x"]}, None], struct),
            "map": pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())),
            "bytes": pa.array([b"\0", None], pa.binary()),
            "text": pa.array(["a\0b", ""]),
            "day": pa.array([date(1, 1, 1), None], pa.date32()),
            "float": pa.array([float("inf"), -0.0], pa.float32()),
        }
    )
    run(store, query(table), rows)
    run(store, query(table), rows, 1)  # the types are those of the table now
    with duckdb.connect(str(table.path)) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.sql("SELECT * FROM events").to_arrow_table()
    assert found.to_pylist() == [*rows.to_pylist(), *rows.to_pylist()]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("md:lake", "MotherDuck is not supported"),
        ("motherduck:lake", "MotherDuck is not supported"),
        (":memory:", "ends with its process"),
        ("s3://bucket/lake.duckdb", "not s3: URLs"),
        ("lake.duckdb", "absolute"),
        ("/lake/*.duckdb", "pattern"),
        ("/", "folder"),
    ],
)
def test_what_is_no_file_of_a_disk_is_refused_by_name(path: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_path(path)


def test_names_ignore_case_and_an_address_is_its_own_uri() -> None:
    assert parse_table_name("Shop.Events") == parse_table_name('"shop"."EVENTS"') == ("shop", "events")
    assert parse_table_name("events") == ("main", "events")
    with pytest.raises(ValueError, match="memory"):
        parse_table_name("memory.events")
    address = DuckDbAddress("/a b/c?.duckdb", "s/x", "t.ü")
    assert DuckDbAddress.parse(address.uri) == address
    for uri in ("duckdb:///lake", "postgresql://x/y/z", "duckdb://x/main/t"):
        with pytest.raises(ConfigurationError):
            DuckDbAddress.parse(uri)


def test_columns_that_differ_only_in_case_are_refused(table: DuckDbHarness, store: SqlManifestStore) -> None:
    with pytest.raises(SchemaMismatchError, match="ignore case"):
        run(store, query(table), pa.table({"a": [1], "A": [2]}))


def test_a_refused_row_is_named_and_the_batch_is_not_in_the_table(
    table: DuckDbHarness, store: SqlManifestStore
) -> None:
    table.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, size INTEGER CHECK (size < 10))")
    with pytest.raises(SchemaMismatchError, match=r"CHECK constraint failed .* row with id = '3'"):
        run(store, query(table), sizes((2, 1), (3, 20)))
    assert table.ids() == []


def test_refused_rows_of_each_constraint_are_left_out(table: DuckDbHarness, store: SqlManifestStore) -> None:
    table.sql("CREATE TABLE sizes (size INTEGER PRIMARY KEY)")
    table.sql("INSERT INTO sizes VALUES (1), (2)")
    table.sql(
        "CREATE TABLE events "
        "(id BIGINT PRIMARY KEY, size INTEGER NOT NULL REFERENCES sizes, CHECK (id < 100))"
    )
    of = query(table, badRows="drop")
    run(store, of, sizes((1, 1), (1, 2), (2, 7), (3, 2), (100, 1)))
    run(store, of, sizes((3, 1), (4, 2)), 1)
    assert table.sql("SELECT * FROM events ORDER BY id") == [(1, 1), (3, 2), (4, 2)]


def test_texts_that_are_no_uuid_are_left_out(table: DuckDbHarness, store: SqlManifestStore) -> None:
    table.sql("CREATE TABLE events (id UUID, other JSON)")
    given = "b6cd8a1a-0000-4000-8000-000000000000"
    rows = pa.table({"id": [given, "none", None], "other": ["{}", "{}", "{"]})
    run(store, query(table, badRows="drop"), rows)
    assert table.sql("SELECT * FROM events") == [(given, "{}")]


def test_a_column_that_an_index_uses_is_not_altered(table: DuckDbHarness, store: SqlManifestStore) -> None:
    table.sql("CREATE TABLE events (id INTEGER)")
    table.sql("CREATE INDEX by_id ON events (id)")
    with pytest.raises(TableNotSupportedError, match="depends on it"):
        run(store, query(table, schemaEvolution="evolve"), ids(1))


def test_a_table_that_others_created_gets_an_id_beside_its_comment(
    table: DuckDbHarness, store: SqlManifestStore
) -> None:
    table.sql("CREATE TABLE events (id BIGINT)")
    table.sql("COMMENT ON TABLE events IS 'mine'")
    run(store, query(table), ids(1))
    ((comment,),) = table.sql("SELECT comment FROM duckdb_tables() WHERE table_name = 'events'")
    assert comment.startswith("mine (penstock table ")
    run(store, query(table), ids(2), 1)
    assert sorted(table.ids()) == [1, 2]
    table.recreate()
    with pytest.raises(TableChangedError):
        run(store, query(table), ids(3), 2)


def test_the_last_microsecond_of_duckdb_is_a_bad_row(table: DuckDbHarness, store: SqlManifestStore) -> None:
    rows = pa.table({"at": pa.array([2**63 - 1], pa.timestamp("us"))})
    with pytest.raises(SchemaMismatchError, match="beyond the dates of DuckDB"):
        run(store, query(table), rows)


def test_a_missing_database_is_not_created_without_create_table(
    table: DuckDbHarness, store: SqlManifestStore
) -> None:
    with pytest.raises(ConfigurationError, match="There is no DuckDB database"):
        run(store, query(table, createTable="false"), ids(1))
    assert not table.path.exists()


@pytest.mark.parametrize("folder", ["..", "", ".", "a/b"])
def test_a_manifest_names_no_file_of_another_folder(folder: str) -> None:
    with pytest.raises(ManifestCorruptError):
        relative_path(StagingTable(folder, "penstock_x", 1, 1))


@pytest.mark.parametrize(
    "kind",
    [
        "BIGINT",
        "DECIMAL(38,10)",
        "TIMESTAMP WITH TIME ZONE",
        'STRUCT("a, b" INTEGER, "q""" VARCHAR[], c STRUCT(d BLOB))[]',
        "MAP(VARCHAR, STRUCT(x DOUBLE[][]))",
    ],
)
def test_a_type_is_the_same_after_a_way_through_arrow(kind: str) -> None:
    data_type = types.arrow_type(kind)
    assert types.is_staged_as(kind)
    assert types.holds(kind, data_type)
    assert types.arrow_type(str(types.sql_type(data_type))) == data_type


@pytest.mark.parametrize(
    "kind",
    ["TIME", "STRUCT(a", "BIGINT; DROP TABLE x", "BIGINT)", "STRUCT(a BIGINT;)", "STRUCT(a;x BIGINT)", ""],
)
def test_other_texts_are_no_types(kind: str) -> None:
    assert not types.is_staged_as(kind)
