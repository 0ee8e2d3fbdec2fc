"""Changes by key in databases: what is the same for all of them, and no claim of `conformance.upserts`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from tests.support.changes_by_key import LATE, query, run, texts
from tests.support.duckdb_table import DuckDbHarness
from tests.support.sql_postgres import SqlPostgresHarness
from tests.support.sqlite_table import SqliteHarness

from penstock.committers.contract import Changes
from penstock.committers.database.layout import PlanOptions
from penstock.committers.database.plan import plan
from penstock.committers.duckdb.address import DuckDbAddress
from penstock.committers.duckdb.dialect import DuckDbDialect
from penstock.committers.errors import ConfigurationError, SchemaMismatchError
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance.query import Query
from penstock.testing.conformance.upserts import changes

Table: TypeAlias = DuckDbHarness | SqliteHarness | SqlPostgresHarness


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    with open_store(f"sqlite:///{tmp_path}/store.sqlite") as store:
        yield store


@pytest.fixture(params=["duckdb", "sqlite", "postgresql"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    if request.param == "duckdb":
        return DuckDbHarness(tmp_path)
    if request.param == "sqlite":
        return SqliteHarness(tmp_path)
    return SqlPostgresHarness(request.getfixturevalue("new_postgres_url"))


class WithoutChanges(DuckDbDialect):
    """A database that takes no changes."""

    changes = None  # type: ignore[assignment]


def test_a_database_without_changes_refuses_them_by_name_before_it_is_asked_anything() -> None:
    cursor: Any = None
    address = DuckDbAddress("/lake.duckdb", "main", "events")
    options = PlanOptions(mode=Changes(keys=("id",)))
    with pytest.raises(
        ConfigurationError, match="writeMode=upsert: Penstock only appends to tables of DuckDB"
    ):
        plan(cursor, WithoutChanges(), address, pa.schema([("id", pa.int64())]), options)


def test_a_column_that_the_query_does_not_have_keeps_its_value(table: Table, store: SqlManifestStore) -> None:
    table.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, n BIGINT, text TEXT, note TEXT DEFAULT 'new')")
    run(store, query(table), changes((1, 1, "a"), (2, 1, "b")))
    table.sql("UPDATE events SET note = 'kept'")
    run(store, query(table), changes((1, 2, "A"), (2, 2), (3, 2, "c")), 1)

    found = table.sql("SELECT id, text, note FROM events ORDER BY id")
    assert found == [(1, "A", "kept"), (3, "c", "new")]


def test_a_table_that_has_only_its_key(table: Table, store: SqlManifestStore) -> None:
    only = query(table, dropColumns="op, n, text")
    run(store, only, changes((1, 1, "a"), (2, 1, "b")))
    run(store, only, changes((1, 2, "a"), (2, 2), (3, 2, "c")), 1)

    assert table.sql("SELECT id FROM events ORDER BY id") == [(1,), (3,)]


def test_keys_are_compared_by_their_bytes(table: Table, store: SqlManifestStore) -> None:
    """Whatever the collation of the column says. Also of late rows."""
    if not isinstance(table, SqlPostgresHarness):
        table.sql("CREATE TABLE events (id BIGINT, n BIGINT, text TEXT, name TEXT COLLATE NOCASE)")
    if isinstance(table, SqliteHarness):
        table.sql("CREATE UNIQUE INDEX by_name ON events (name COLLATE BINARY)")
    by_name = query(table, keys="name", **LATE)
    keys = ["a", "A", "a ", "ä", "a\u0308", ""]
    run(store, by_name, texts(keys, "first"))
    run(store, by_name, texts(["A", "a\u0308"], "second", 2), 1)
    run(store, by_name, texts(["A", "a"], "late", 0), 2)

    found = sorted((name, text) for name, text in table.sql("SELECT name, text FROM events"))
    assert found == sorted((key, "second" if key in ("A", "a\u0308") else "first") for key in keys)


def test_a_refused_row_leaves_what_was_there(table: Table, store: SqlManifestStore) -> None:
    """All others are committed."""
    table.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, n BIGINT, text TEXT CHECK (text <> 'bad'))")
    table.sql("INSERT INTO events VALUES (1, 0, 'old'), (2, 0, 'old'), (4, 0, 'old')")
    with pytest.raises(SchemaMismatchError, match="the row with id = '2' of batch 0"):
        run(store, query(table), changes((1, 1, "new"), (2, 1, "bad")))
    run(store, query(table, badRows="drop"), changes((1, 1, "new"), (2, 1, "bad"), (3, 1, "new"), (4, 1)))

    assert table.sql("SELECT id, text FROM events ORDER BY id") == [(1, "new"), (2, "old"), (3, "new")]


def test_tombstones_are_kept_until_a_newer_row_or_their_time(table: Table, store: SqlManifestStore) -> None:
    late = query(table, **LATE)
    run(store, late, changes((1, 5, "a"), (2, 5)))
    run(store, late, changes((1, 6), (2, 4)), 1)
    (name,) = deleted_keys(table, late)
    kept = f"SELECT CAST(key_1 AS BIGINT), CAST(order_1 AS BIGINT) FROM {name} ORDER BY key_1"
    assert table.sql(kept) == [(1, 6), (2, 5)]
    run(store, late, changes((1, 5, "late"), (2, 4, "late")), 2)
    assert table.sql("SELECT id FROM events") == []
    run(store, late, changes((1, 6, "as late"), (2, 4)), 3)
    assert table.sql("SELECT id, n, text FROM events") == [(1, 6, "as late")]
    assert table.sql(kept) == [(2, 5)]
    table.sql(f"UPDATE {name} SET expires_at = '2001-01-01 00:00:00'")
    run(store, late, changes((4, 1)), 4)
    assert table.sql(kept) == [(4, 1)]


def deleted_keys(table: Table, of: Query) -> list[str]:
    """The names of the tables with deleted keys."""
    target: Any = of.target()
    with target._server.transaction("") as cursor:
        return list(target._dialect.changes.tables_named(cursor, target._address, "penstock_deleted_"))


def test_tombstones_count_for_a_table_that_was_restored_and_accepted(
    table: Table, store: SqlManifestStore
) -> None:
    late = query(table, **LATE)
    run(store, late, changes((1, 5)))
    table.sql("DROP TABLE events")
    table.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, n BIGINT, text TEXT)")
    target: Any = late.target()
    with target._server.transaction("") as cursor:
        target._dialect.identified(cursor, target._address, target._dialect.load(cursor, target._address))
    late.target().accept(late.query_id)  # type: ignore[attr-defined]
    run(store, late, changes((1, 4, "late"), (2, 1, "b")), 1)

    assert table.sql("SELECT id FROM events") == [(2,)]
