"""What is particular to changes by key in DuckDB tables. See the claims of `conformance.upserts`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes_by_key import LATE, query, run, texts
from tests.support.duckdb_table import DuckDbHarness

from penstock.committers.contract import AlreadyCommitted, Committed, Conflict
from penstock.committers.duckdb.fence import DuckDbFence
from penstock.committers.errors import SchemaMismatchError, TableNotSupportedError
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance.upserts import changes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    with open_store(f"sqlite:///{tmp_path}/store.sqlite") as store:
        yield store


@pytest.fixture
def table(tmp_path: Path) -> DuckDbHarness:
    return DuckDbHarness(tmp_path)


def test_a_column_that_is_computed_is_computed_again(table: DuckDbHarness, store: SqlManifestStore) -> None:
    table.sql(
        "CREATE TABLE events (id BIGINT PRIMARY KEY, n BIGINT, text VARCHAR, note VARCHAR DEFAULT 'new', "
        "twice BIGINT GENERATED ALWAYS AS (id * 2))"
    )
    run(store, query(table), changes((1, 1, "a"), (2, 1, "b")))
    table.sql("UPDATE events SET note = 'kept'")
    run(store, query(table), changes((1, 2, "A"), (2, 2), (3, 2, "c")), 1)

    found = table.sql("SELECT id, text, note, twice FROM events ORDER BY id")
    assert found == [(1, "A", "kept", 2), (3, "c", "new", 6)]


def test_several_rows_of_a_key_become_one(table: DuckDbHarness, store: SqlManifestStore) -> None:
    """A table needs no unique key."""
    table.sql("CREATE TABLE events (id BIGINT, n BIGINT, text VARCHAR, note VARCHAR)")
    table.sql(
        "INSERT INTO events VALUES (1, 0, 'x', 'a'), (1, 0, 'y', 'a'), (2, 0, 'x', 'b'), (3, 0, 'z', 'c')"
    )
    run(store, query(table), changes((1, 1, "one"), (2, 1)))

    assert table.sql("SELECT id, text, note FROM events ORDER BY id") == [(1, "one", "a"), (3, "z", "c")]


def test_a_uuid_is_one_key_however_it_is_written(table: DuckDbHarness, store: SqlManifestStore) -> None:
    table.sql("CREATE TABLE events (id BIGINT, n BIGINT, text VARCHAR, name UUID)")
    by_name, one = query(table, keys="name"), "550e8400-e29b-41d4-a716-446655440000"
    run(store, by_name, texts([one.upper()], "first"))
    run(store, by_name, texts([one.replace("-", ""), one], "second", 2), 1)

    assert table.sql("SELECT CAST(name AS VARCHAR), text FROM events") == [(one, "second")]


def test_a_table_to_which_others_refer_is_refused(table: DuckDbHarness, store: SqlManifestStore) -> None:
    table.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, n BIGINT, text VARCHAR)")
    table.sql("CREATE TABLE parts (id BIGINT REFERENCES events (id))")
    with pytest.raises(TableNotSupportedError, match="The table parts refers to rows"):
        run(store, query(table), changes((1, 1, "a")))


@pytest.mark.parametrize(("first", "second"), [(0.0, -0.0), (None, 1.0), (1.0, 2.0), (float("nan"), None)])
def test_rows_that_differ_in_any_way_have_no_last_one(
    table: DuckDbHarness, store: SqlManifestStore, first: float | None, second: float | None
) -> None:
    rows = pa.concat_tables([changes((1, 1, "a")), changes((1, 1, "a"))])
    rows = rows.append_column("many", pa.array([["a, b"], ["a, b"]]))
    with pytest.raises(SchemaMismatchError, match="Two different rows have the same key"):
        run(store, query(table), rows.append_column("x", pa.array([first, second], pa.float64())))
    same = rows.append_column("x", pa.array([first, first], pa.float64()))
    run(store, query(table), same)

    assert table.ids() == [1]


# Rows that the table refuses --------------------------------------------------------------------------


def test_a_unique_value_may_go_to_another_key(table: DuckDbHarness, store: SqlManifestStore) -> None:
    """From a row that is deleted, or gets another value; and not from one that stays."""
    table.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, n BIGINT, text VARCHAR UNIQUE)")
    drop = query(table, badRows="drop")
    run(store, drop, changes((1, 1, "a"), (2, 1, "b"), (3, 1, "c")))
    run(store, drop, changes((1, 2), (2, 2, "z"), (4, 2, "a"), (5, 2, "b"), (6, 2, "c")), 1)

    found = table.sql("SELECT id, text FROM events ORDER BY id")
    assert found == [(2, "z"), (3, "c"), (4, "a"), (5, "b")]


# Late rows --------------------------------------------------------------------------------------------


def test_two_queries_of_a_process_see_the_deletions_of_each_other(
    table: DuckDbHarness, store: SqlManifestStore
) -> None:
    """Of two commits at once one fails, and is tried again: neither row is in the table before."""
    late = query(table, **LATE)
    run(store, late, changes((9, 1, "x")))
    other = replace(late, query_id="q2")
    manifest = other.build(store, other.batch(0), changes((1, 4, "older")))
    first: Any = late.target()
    with first._server.transaction("") as cursor:
        DuckDbFence().touch(cursor, first._address)
        assert isinstance(other.target().commit(manifest), Conflict)
    assert isinstance(other.target().commit(manifest), Committed)
    assert isinstance(other.target().commit(manifest), AlreadyCommitted)
