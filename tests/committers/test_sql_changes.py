"""What is particular to changes by key in tables of `penstock.sql`. See `conformance.upserts`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from tests.support.sql_postgres import SqlPostgresHarness
from tests.support.sqlite_table import SqliteHarness

from penstock.committers.errors import ConfigurationError, SchemaMismatchError, TableNotSupportedError
from penstock.committers.sql.dialect import dialect_of
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance.query import Query
from penstock.testing.conformance.upserts import COLUMNS, OPTIONS, changes

LATE = {"lateRows": "ignore"}
RUNS = count()
Table: TypeAlias = SqliteHarness | SqlPostgresHarness


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    with open_store(f"sqlite:///{tmp_path}/store.sqlite") as store:
        yield store


@pytest.fixture(params=["sqlite", "postgresql"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    if request.param == "sqlite":
        return SqliteHarness(tmp_path)
    return SqlPostgresHarness(request.getfixturevalue("new_postgres_url"))


@pytest.fixture
def file(tmp_path: Path) -> SqliteHarness:
    return SqliteHarness(tmp_path)


def query(table: Table, **options: str) -> Query:
    return Query(table, "q1", {**OPTIONS, **options})


def run(store: SqlManifestStore, of: Query, rows: pa.Table, batch_id: int = 0) -> Any:
    """Write and commit a batch; return the outcome."""
    return of.target().commit(of.build(store, of.batch(batch_id), rows, run_id=str(next(RUNS))))


def texts(keys: list[str], text: str, n: int = 1) -> pa.Table:
    """Rows whose key is `name`."""
    count = len(keys)
    given = {"id": [0] * count, "n": [n] * count, "text": [text] * count, "op": ["u"] * count, "name": keys}
    return pa.table(given, pa.schema([*COLUMNS, ("name", pa.string())]))


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
    """Also where SQLite ignores case in the column. Also of late rows."""
    if isinstance(table, SqliteHarness):
        table.sql("CREATE TABLE events (id BIGINT, n BIGINT, text TEXT, name TEXT COLLATE NOCASE)")
        table.sql("CREATE UNIQUE INDEX by_name ON events (name COLLATE BINARY)")
    by_name = query(table, keys="name", **LATE)
    keys = ["a", "A", "a ", "ä", "a\u0308", ""]
    run(store, by_name, texts(keys, "first"))
    run(store, by_name, texts(["A", "a\u0308"], "second", 2), 1)
    run(store, by_name, texts(["A", "a"], "late", 0), 2)

    found = sorted((name, text) for name, text in table.sql("SELECT name, text FROM events"))
    assert found == sorted((key, "second" if key in ("A", "a\u0308") else "first") for key in keys)


def test_without_a_unique_index_over_the_keys_the_table_is_refused(
    table: Table, store: SqlManifestStore
) -> None:
    """Also a partial index, and one over more columns."""
    table.sql("CREATE TABLE events (id BIGINT, n BIGINT, text TEXT)")
    table.sql("CREATE UNIQUE INDEX partial ON events (id) WHERE n > 0")
    table.sql("CREATE UNIQUE INDEX wide ON events (id, n)")
    table.sql("CREATE INDEX plain ON events (id)")
    with pytest.raises(
        TableNotSupportedError, match=r"no unique index over exactly the columns of keys, \"id\""
    ):
        run(store, query(table), changes((1, 1, "a")))
    table.sql("CREATE UNIQUE INDEX by_id ON events (id)")
    run(store, query(table), changes((1, 1, "a")))

    assert table.sql("SELECT id FROM events") == [(1,)]


def test_of_sqlite_row_ids_are_keys(file: SqliteHarness, store: SqlManifestStore) -> None:
    file.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, n BIGINT, text TEXT)")
    run(store, query(file), changes((1, 1, "a"), (2, 1, "b")))
    run(store, query(file), changes((1, 2, "A"), (2, 2)), 1)

    assert file.sql("SELECT id, text FROM events") == [(1, "A")]


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ("id BIGINT PRIMARY KEY, n BIGINT, text TEXT) WITHOUT ROWID", "WITHOUT ROWID"),
        ("id BIGINT PRIMARY KEY, n BIGINT, text TEXT, _rowid_ BIGINT)", "WITHOUT ROWID, or has a column"),
        (
            "id BIGINT, n BIGINT, text TEXT UNIQUE COLLATE NOCASE)",
            "different texts are equal in its collation",
        ),
    ],
)
def test_what_sqlite_cannot_change_by_key_is_refused(
    file: SqliteHarness, store: SqlManifestStore, definition: str, problem: str
) -> None:
    file.sql(f"CREATE TABLE events ({definition}")
    keys = "text" if "NOCASE" in definition else "id"
    with pytest.raises(TableNotSupportedError, match=problem):
        run(store, query(file, keys=keys), changes((1, 1, "a")))


def test_a_database_whose_statements_are_not_known_refuses_changes() -> None:
    with pytest.raises(ConfigurationError, match="Penstock only appends to tables of SQL Server"):
        dialect_of("mssql").keyed_changes()


# Rows that the table refuses --------------------------------------------------------------------------


def test_a_refused_row_leaves_what_was_there(table: Table, store: SqlManifestStore) -> None:
    """All others are committed."""
    table.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, n BIGINT, text TEXT CHECK (text <> 'bad'))")
    table.sql("INSERT INTO events VALUES (1, 0, 'old'), (2, 0, 'old'), (4, 0, 'old')")
    with pytest.raises(SchemaMismatchError, match="the row with id = '2' of batch 0"):
        run(store, query(table), changes((1, 1, "new"), (2, 1, "bad")))
    run(store, query(table, badRows="drop"), changes((1, 1, "new"), (2, 1, "bad"), (3, 1, "new"), (4, 1)))

    assert table.sql("SELECT id, text FROM events ORDER BY id") == [(1, "new"), (2, "old"), (3, "new")]


def test_a_trigger_that_drops_a_row_ends_the_batch(table: Table, store: SqlManifestStore) -> None:
    table.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, n BIGINT, text TEXT)")
    if isinstance(table, SqliteHarness):
        table.sql(
            "CREATE TRIGGER dropping BEFORE UPDATE ON events WHEN new.text = 'bad' "
            "BEGIN SELECT raise(IGNORE); END"
        )
    else:
        table.sql(
            "CREATE FUNCTION dropping() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF NEW.text = 'bad' THEN RETURN NULL; END IF; RETURN NEW; END $$"
        )
        table.sql("CREATE TRIGGER dropping BEFORE UPDATE ON events FOR EACH ROW EXECUTE FUNCTION dropping()")
    run(store, query(table), changes((1, 1, "old"), (2, 1, "old")))
    with pytest.raises(TableNotSupportedError, match="a trigger of the table drops rows"):
        run(store, query(table), changes((1, 2, "new"), (2, 2, "bad")), 1)

    assert table.sql("SELECT id, text FROM events ORDER BY id") == [(1, "old"), (2, "old")]


# Late rows --------------------------------------------------------------------------------------------


def test_tombstones_are_kept_until_a_newer_row_or_their_time(table: Table, store: SqlManifestStore) -> None:
    late = query(table, **LATE)
    run(store, late, changes((1, 5, "a"), (2, 5)))
    run(store, late, changes((1, 6), (2, 4)), 1)
    (name,) = deleted_keys(table, late)
    kept = f"SELECT key_1, order_1 FROM {name} ORDER BY key_1"
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
    late.target().accept(late.query_id)  # type: ignore[attr-defined]
    run(store, late, changes((1, 4, "late"), (2, 1, "b")), 1)

    assert table.sql("SELECT id FROM events") == [(2,)]
