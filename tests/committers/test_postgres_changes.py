"""Changes by key into Postgres tables, with a real server: a dict decides what the table must have."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from tests.support.postgres import PostgresQuery, query_into

from penstock.committers.store.sql import SqlManifestStore

ROWS = pa.schema([("id", pa.int64()), ("lsn", pa.int64()), ("name", pa.string()), ("op", pa.string())])
UPSERT = {
    "writeMode": "upsert",
    "keys": "id",
    "orderBy": "lsn",
    "deleteWhen": "op = 'd'",
    "dropColumns": "op,lsn",
}


def changes(*rows: tuple[int, int, str | None, str]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(ROWS.names, row, strict=True)) for row in rows], schema=ROWS)


@pytest.fixture
def query(new_postgres_url: Callable[[], str]) -> PostgresQuery:
    return query_into(new_postgres_url(), **UPSERT)


def rows_of(query: PostgresQuery) -> list[tuple[object, ...]]:
    return query.sql("SELECT id, name FROM events ORDER BY id")


def test_smoke(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.run(store, query.batch(0), changes((1, 1, "a", "u"), (2, 1, "b", "u")), changes((1, 2, "c", "u")))
    assert rows_of(query) == [(1, "c"), (2, "b")]
    query.run(store, query.batch(1), changes((1, 3, None, "d"), (2, 1, "b2", "u")), changes((3, 2, "c", "u")))
    assert rows_of(query) == [(2, "b2"), (3, "c")]
    late = query.with_options(lateRows="ignore", dropColumns="op", schemaEvolution="addColumns")
    late.run(store, query.batch(2), changes((2, 5, None, "d"), (3, 4, "d", "u"), (9, 4, "d", "d")))
    assert rows_of(query) == [(3, "d")]
    late.run(store, query.batch(3), changes((2, 4, "x", "u"), (3, 3, "x", "u"), (9, 5, "new", "u")))
    assert rows_of(query) == [(3, "d"), (9, "new")]
