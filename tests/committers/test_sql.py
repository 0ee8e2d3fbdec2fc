"""What is particular to `penstock.sql`. The promises of all destinations are in the conformance suite."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from tests.support.sqlite_table import SqliteHarness, read

from penstock import ConfigurationError, RetryableError, SchemaMismatchError
from penstock.committers.contract import BATCH_WRITE_PREFIX
from penstock.committers.errors import AccessRefusedError, TableChangedError, TableNotSupportedError
from penstock.committers.sql import connection
from penstock.committers.sql.address import SqlAddress, parse_table_name, parse_url
from penstock.committers.sql.backends import BACKENDS
from penstock.committers.sql.schema import type_sql
from penstock.committers.sql.types import SqlTypes
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance.query import Query, attempt, ids

IDS_AND_SIZES = pa.schema([("id", pa.int64()), ("size", pa.int32())])
TIMES = pa.timestamp("us", "UTC")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    with open_store(f"sqlite:///{tmp_path}/store.sqlite") as store:
        yield store


@pytest.fixture
def table(tmp_path: Path) -> SqliteHarness:
    return SqliteHarness(tmp_path)


def query(table: SqliteHarness, **options: str) -> Query:
    return Query(table, "q1", options)


def run(store: SqlManifestStore, of: Query, *tasks: pa.Table, batch_id: int = 0) -> None:
    of.run(store, of.batch(batch_id), *tasks)


def sizes(*rows: tuple[int, int | None]) -> pa.Table:
    return pa.table({"id": [row[0] for row in rows], "size": [row[1] for row in rows]}, IDS_AND_SIZES)


# Values -------------------------------------------------------------------------------------------


def test_values_are_read_from_sqlite_as_they_were_written(
    table: SqliteHarness, store: SqlManifestStore
) -> None:
    big = 2**63 - 1
    rows = pa.table(
        {
            "id": pa.array([big, -big - 1]),
            "flag": pa.array([True, None]),
            "tiny": pa.array([127, -128], pa.int8()),
            "text": pa.array(["a\0b'%s%%", ""]),
            "bytes": pa.array([b"\0\xff", b""], pa.binary()),
            "day": pa.array([date(1, 1, 1), date(9999, 12, 31)], pa.date32()),
            "double": pa.array([float("inf"), 5e-324]),
            "float": pa.array([1.1, float("-inf")], pa.float32()),
            "price": pa.array([Decimal("1234567890123.45"), Decimal("0.10")], pa.decimal128(15, 2)),
            "at": pa.array([-1, 2**52 + 1], TIMES),
            "local": pa.array([0, None], pa.timestamp("us")),
        }
    )
    run(store, query(table), rows)
    run(store, query(table), rows.slice(0, 1), batch_id=1)  # the types are those of the table now
    first, second, _ = table.sql("SELECT * FROM events")
    assert first[:7] == (big, True, 127, "a\0b'%s%%", b"\0\xff", "0001-01-01", float("inf"))
    assert second[:7] == (-big - 1, None, -128, "", b"", "9999-12-31", 5e-324)
    assert (first[7], second[7]) == (pa.scalar(1.1, pa.float32()).as_py(), float("-inf"))
    assert [f"{row[8]:.2f}" for row in (first, second)] == ["1234567890123.45", "0.10"]
    assert first[9:] == ("1969-12-31 23:59:59.999999", "1970-01-01 00:00:00.000000")
    assert second[9:] == ("2112-09-17 23:53:47.370497", None)
    days = (
        "SELECT count(*) FROM file.events WHERE day = DATE '9999-12-31' AND \"at\" > TIMESTAMP '2112-09-17'"
    )
    assert read(table.path, days) == [(1,)]


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (pa.array([float("nan")]), "is NaN, which SQLite cannot store"),
        (pa.array([2**62], TIMES), "outside of the years 1 to 9999"),
        (pa.array([Decimal(1)], pa.decimal128(16, 2)), "SQLite cannot store without loss"),
        (pa.array([[1]]), "SQLite cannot store without loss"),
    ],
)
def test_what_sqlite_would_change_is_refused(
    column: pa.Array, why: str, table: SqliteHarness, store: SqlManifestStore
) -> None:
    with pytest.raises(SchemaMismatchError, match=why):
        run(store, query(table), pa.table({"x": column}))


def test_a_column_that_would_change_values_is_refused(table: SqliteHarness, store: SqlManifestStore) -> None:
    table.sql("CREATE TABLE events (id DECIMAL(20, 2))")
    with pytest.raises(SchemaMismatchError, match=r"DECIMAL\(20, 2\)"):
        run(store, query(table), ids(1))


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("sqlite", "BIGINT DOUBLE FLOAT4 TEXT BLOB DATETIME DATETIME"),
        (
            "postgresql",
            "BIGINT|DOUBLE PRECISION|REAL|TEXT|BYTEA|TIMESTAMP WITHOUT TIME ZONE|TIMESTAMP WITH TIME ZONE",
        ),
        (
            "mssql",
            "BIGINT|DOUBLE PRECISION|REAL|NVARCHAR(max)|VARBINARY(max)|DATETIME2(6)|DATETIMEOFFSET(6)",
        ),
    ],
)
def test_new_columns_have_types_without_loss(backend: str, expected: str) -> None:
    rules = SqlTypes(BACKENDS[backend])
    given = (pa.int64(), pa.float64(), pa.float32(), pa.string(), pa.binary(), pa.timestamp("us"), TIMES)
    kinds = [rules.sql_type(one) for one in given]
    assert None not in kinds
    made = [type_sql(str(kind), backend) for kind in kinds]
    assert made == expected.split("|" if "|" in expected else " ")


# Rows that the table refuses ------------------------------------------------------------------------


def test_refused_rows_of_each_constraint_are_left_out(table: SqliteHarness, store: SqlManifestStore) -> None:
    table.path.touch()
    table.sql("CREATE TABLE sizes (size INTEGER PRIMARY KEY)")
    table.sql("INSERT INTO sizes VALUES (1), (2)")
    table.sql(
        "CREATE TABLE events "
        "(id BIGINT PRIMARY KEY, size INTEGER NOT NULL REFERENCES sizes, CHECK (id < 100))"
    )
    table.sql(
        "CREATE TRIGGER no_seven BEFORE INSERT ON events WHEN new.id = 7 "
        "BEGIN SELECT RAISE(ABORT, 'seven'); END"
    )
    of = query(table, badRows="drop")
    run(store, of, sizes((1, 1), (1, 2), (2, 7), (3, 2), (100, 1), (7, 1)), sizes((5, 1)))
    run(store, of, sizes((3, 1), (4, 2)), batch_id=1)
    assert table.sql("SELECT * FROM events ORDER BY id") == [(1, 1), (3, 2), (4, 2), (5, 1)]


def test_a_refused_row_is_named_and_the_batch_is_not_in_the_table(
    table: SqliteHarness, store: SqlManifestStore
) -> None:
    table.path.touch()
    table.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, size INTEGER CHECK (size < 10))")
    with pytest.raises(SchemaMismatchError, match=r"CHECK constraint failed.* row with id = '3'"):
        run(store, query(table), sizes((2, 1), (3, 20)))
    assert table.ids() == []


def test_a_trigger_that_drops_rows_is_refused(table: SqliteHarness, store: SqlManifestStore) -> None:
    table.path.touch()
    table.sql("CREATE TABLE events (id BIGINT)")
    table.sql("CREATE TRIGGER none BEFORE INSERT ON events WHEN new.id = 2 BEGIN SELECT RAISE(IGNORE); END")
    with pytest.raises(TableNotSupportedError, match="a trigger of the table drops rows"):
        run(store, query(table), ids(1, 2))
    assert table.ids() == []


def test_a_trigger_that_ends_the_transaction_leaves_no_row(
    table: SqliteHarness, store: SqlManifestStore
) -> None:
    """Later statements of the commit must not be transactions of their own."""
    table.path.touch()
    table.sql("CREATE TABLE events (id BIGINT)")
    table.sql(
        "CREATE TRIGGER none BEFORE INSERT ON events WHEN new.id = 2 "
        "BEGIN SELECT RAISE(ROLLBACK, 'no two'); END"
    )
    with pytest.raises(RetryableError, match="no such savepoint"):
        run(store, query(table, badRows="drop"), ids(1, 2), ids(3))
    assert table.ids() == []


def test_a_driver_that_is_not_installed_is_an_error_that_says_so(store: SqlManifestStore) -> None:
    server = connection.SqlServer(parse_url("cockroachdb://u:secret@localhost/d"), "t")
    with pytest.raises(ConfigurationError, match=r"cockroachdb\+psycopg needs a package"):
        server.connect()


@pytest.mark.parametrize(
    "statement", ["CREATE VIEW events AS SELECT 1 AS id", "CREATE VIRTUAL TABLE events USING fts5(id)"]
)
def test_what_is_no_plain_table_is_refused(
    statement: str, table: SqliteHarness, store: SqlManifestStore
) -> None:
    table.path.touch()
    table.sql(statement)
    with pytest.raises(TableNotSupportedError, match=r"view|virtual"):
        run(store, query(table), ids(1))


def test_names_of_sqlite_ignore_case(table: SqliteHarness, store: SqlManifestStore) -> None:
    table.path.touch()
    table.sql('CREATE TABLE "Events" ("Id" BIGINT)')
    run(store, query(table), ids(1))
    assert table.sql("SELECT Id FROM Events") == [(1,)]


# One writer at a time -------------------------------------------------------------------------------


def test_a_transaction_of_another_process_is_waited_for(
    table: SqliteHarness, store: SqlManifestStore
) -> None:
    run(store, query(table), ids(1))
    with closing(sqlite3.connect(table.path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        ends = threading.Timer(1, other.rollback)
        ends.start()
        run(store, query(table), ids(2), batch_id=1)
        ends.join()
    assert sorted(table.ids()) == [1, 2]


def test_a_transaction_that_does_not_end_is_an_error_that_a_restart_continues(
    table: SqliteHarness, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOCK_TIMEOUT_S", 0.1)
    run(store, query(table), ids(1))
    with closing(sqlite3.connect(table.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RetryableError, match="database is locked"):
            run(store, query(table), ids(2), batch_id=1)
    run(store, query(table), ids(2), batch_id=1)
    assert sorted(table.ids()) == [1, 2]


def test_tasks_write_at_the_same_time(table: SqliteHarness, store: SqlManifestStore) -> None:
    """No task holds the lock of the file while it waits for its next rows."""
    of = query(table)
    plan = of.plan(store, of.batch(0))
    assert plan.writers is not None
    tasks = [plan.writers.open(attempt(plan.batch, number, "r1")) for number in range(3)]
    for number in range(9):
        for batch in ids(number).to_batches():
            tasks[number % 3].write(batch)
    staged = [task.finish() for task in tasks]
    assert [part.payload[0].rows for (part,) in staged] == [3, 3, 3]


def test_the_manifests_may_be_in_the_file_of_the_table(table: SqliteHarness) -> None:
    """The process has one copy of SQLite."""
    with open_store(f"sqlite:///{table.path}") as store:
        for batch_id in range(3):
            run(store, query(table), ids(batch_id), batch_id=batch_id)
    assert sorted(table.ids()) == [0, 1, 2]
    assert read(table.path, "SELECT count(*) FROM file.penstock_fence") == [(1,)]


def test_a_file_that_is_read_only_is_an_error_that_says_so(
    table: SqliteHarness, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(store, query(table), ids(1))
    real = connection._configure_sqlite

    def read_only(opened: sqlite3.Connection, record: object) -> None:
        real(opened, record)
        opened.execute("PRAGMA query_only = ON")

    monkeypatch.setattr(connection, "_configure_sqlite", read_only)
    connection._engine.cache_clear()
    with pytest.raises(AccessRefusedError, match="must not write the SQLite database"):
        run(store, query(table), ids(2), batch_id=1)
    connection._engine.cache_clear()


def test_a_file_of_another_program_is_an_error_that_says_so(
    table: SqliteHarness, store: SqlManifestStore
) -> None:
    table.path.write_bytes(b"no database, but long enough for a header" * 100)
    with pytest.raises(ConfigurationError, match="is no SQLite database"):
        run(store, query(table), ids(1))


def test_a_missing_database_is_not_created_without_create_table(
    table: SqliteHarness, store: SqlManifestStore
) -> None:
    with pytest.raises(ConfigurationError, match="There is no SQLite database"):
        run(store, query(table, createTable="false"), ids(1))
    assert not table.path.exists()


def test_commits_reach_the_disk_and_enforce_foreign_keys(
    table: SqliteHarness, store: SqlManifestStore
) -> None:
    run(store, query(table), ids(1))
    with server_of(table).transaction("") as cursor:
        settings = [
            cursor.execute(f"PRAGMA {name}").fetchall()
            for name in ("synchronous", "fullfsync", "foreign_keys")
        ]
    assert settings == [[(2,)], [(1,)], [(1,)]]


def test_no_connection_stays_open(table: SqliteHarness, store: SqlManifestStore) -> None:
    """A process that is forked from this one would share it."""
    run(store, query(table), ids(1))
    assert str(table.path) not in [file.path for file in psutil.Process().open_files()]


def test_a_transaction_that_begins_to_read_writes_without_a_conflict(
    table: SqliteHarness, store: SqlManifestStore
) -> None:
    """SQLite refuses to write in a transaction that has read, if another one has written since."""
    run(store, query(table), ids(1))
    with server_of(table).transaction("") as cursor:
        assert cursor.execute("SELECT count(*) FROM events").fetchone() == (1,)
        with closing(sqlite3.connect(table.path, timeout=0)) as other:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("INSERT INTO events VALUES (2)")
        cursor.execute("INSERT INTO events VALUES (3)")
    assert sorted(table.ids()) == [1, 3]


# The tables of Penstock -----------------------------------------------------------------------------


def server_of(table: SqliteHarness) -> connection.SqlServer:
    return connection.SqlServer(parse_url(table.options["url"]), "t")


def test_the_fence_forgets_old_batch_writes(table: SqliteHarness, store: SqlManifestStore) -> None:
    run(store, query(table), ids(0))
    writes = [Query(table, f"{BATCH_WRITE_PREFIX}{number}") for number in range(3)]
    for number, write in enumerate(writes, 1):
        run(store, write, ids(number))
        if number == 1:
            table.sql("UPDATE penstock_fence SET committed_at = strftime('%Y-%m-%d', 'now', '-8 days')")
    found = table.sql("SELECT query_id FROM penstock_fence ORDER BY query_id")
    assert found == [("q1",), *((f"{BATCH_WRITE_PREFIX}{number}",) for number in (1, 2))]
    assert sorted(table.ids()) == [0, 1, 2, 3]


def test_a_missing_table_of_refused_rows_is_an_error(table: SqliteHarness, store: SqlManifestStore) -> None:
    """It may have held rows that the store does not have."""
    run(store, query(table), ids(0))
    table.sql("DROP TABLE penstock_refused")
    with pytest.raises(TableChangedError, match="Nothing was committed"):
        run(store, query(table), ids(1), batch_id=1)
    assert table.ids() == [0]


def test_a_staging_table_that_was_dropped_is_named(table: SqliteHarness, store: SqlManifestStore) -> None:
    of = query(table)
    messages = of.write(of.plan(store, of.batch(0)), [ids(1), ids(2)])
    table.sql(f"DROP TABLE {sorted(table.uncommitted())[0]}")
    with pytest.raises(RetryableError, match=r"1 of the 2 staging tables of batch 0 .* are missing"):
        of.commit(store, messages)
    assert table.ids() == []


def test_a_query_that_has_ended_leaves_no_refused_rows(table: SqliteHarness, store: SqlManifestStore) -> None:
    for query_id in ("q1", "q2"):
        of = Query(table, query_id)
        run(store, of, ids(1))
        letter = f"'{query_id}', 'events', 0, 'a', '1', 'c', 'm', '2020-01-01T00:00:00+00:00', x'00'"
        table.sql(f"INSERT INTO penstock_refused VALUES ({letter})")
    sink: Any = query(table).sink()
    records = sink.records("q1")
    assert records.found()
    records.remove()
    assert records.found() == []
    assert table.sql("SELECT query_id FROM penstock_refused") == [("q2",)]
    assert table.sql("SELECT query_id FROM penstock_fence") == [("q2",)]


# Addresses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://u:secret@h/d", "use penstock.mysql"),
        ("oracle://u:secret@h/d", "create or drop tables commit"),
        ("redshift+psycopg2://u:secret@h/d", "does not enforce primary keys"),
        ("snowflake://u:secret@h/d", "does not enforce primary keys"),
        ("clickhouse://u:secret@h/d", "no transactions"),
        ("firebird://u:secret@h/d", "does not know"),
        ("sqlite+aiosqlite:////lake.db", "knows only pysqlite"),
        ("sqlite://", "in memory"),
        ("sqlite:///lake.db", "four slashes"),
        ("sqlite:////", "folder"),
        ("sqlite:////lake.db?mode=ro", "in memory|no parameters"),
        ("postgresql://host", "must be a URL"),
        ("secret", "must be a URL"),
    ],
)
def test_a_database_without_the_promise_is_refused_by_name(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)


def test_a_database_without_tests_has_to_be_allowed(store: SqlManifestStore, table: SqliteHarness) -> None:
    url = "mssql+pyodbc://u:secret@localhost/d"
    with pytest.raises(ConfigurationError, match="SQL Server, on which no test of Penstock has run"):
        Query(table, "q1", {"url": url}).target()


@pytest.mark.parametrize(
    "address",
    [
        SqlAddress("sqlite", "", "/a b/c?.db", "", "t.ü"),
        SqlAddress("postgresql", "h:5432", "d/x", "s.x", "t"),
        SqlAddress("postgresql", "/tmp/socket:5432", "d", "s", "t"),
        SqlAddress("mssql", "[::1]:1433", "d", "", "T/%"),
    ],
)
def test_an_address_is_its_own_uri(address: SqlAddress) -> None:
    assert SqlAddress.parse(address.uri) == address


@pytest.mark.parametrize(
    "uri", ["sql+sqlite://host/t", "sql+mysql://h:1/d/t", "sqlite:///a/t", "sql+mssql:///d/t"]
)
def test_other_texts_are_no_addresses(uri: str) -> None:
    with pytest.raises(ConfigurationError):
        SqlAddress.parse(uri)


def test_names_without_quotes_are_in_lower_case() -> None:
    assert parse_table_name('Shop."Eve""nts"') == ("shop", 'Eve"nts')
    with pytest.raises(ValueError, match="must be table"):
        parse_table_name("a.b.c")
