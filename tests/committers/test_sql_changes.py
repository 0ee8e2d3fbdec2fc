"""What is particular to changes by key in tables of `penstock.sql`. See `conformance.upserts`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.support.changes_by_key import query, run
from tests.support.sql_postgres import SqlPostgresHarness
from tests.support.sqlite_table import SqliteHarness

from penstock.committers.errors import ConfigurationError, TableNotSupportedError
from penstock.committers.sql.dialect import dialect_of
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance.upserts import changes

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
    file.sql(f"CREATE TABLE Events ({definition}")
    keys = "text" if "NOCASE" in definition else "id"
    with pytest.raises(TableNotSupportedError, match=problem):
        run(store, query(file, keys=keys), changes((1, 1, "a")))


def test_a_database_whose_statements_are_not_known_refuses_changes(file: SqliteHarness) -> None:
    """Before it connects."""
    url = "mssql+pyodbc://u:secret@localhost/d"
    with pytest.raises(ConfigurationError, match="Penstock only appends to tables of SQL Server"):
        query(file, url=url, allowUntested="true").target()
    with pytest.raises(ConfigurationError, match="Penstock only appends to tables of SQL Server"):
        dialect_of("mssql").keyed_changes()  # of a stored batch


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
