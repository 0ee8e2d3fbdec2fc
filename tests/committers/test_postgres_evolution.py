"""The columns of a Postgres table change in the transaction of the batch (`schemaEvolution=evolve`)."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from tests.support.postgres import PostgresQuery, query_into

from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.faults import crash_at

COLUMNS = (
    "id bigint PRIMARY KEY, n integer NOT NULL, f real, d numeric(5,2), t varchar(3), must text NOT NULL"
)
WIDE = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("d", pa.decimal128(9, 2)),
        ("t", pa.string()),
        ("extra", pa.string()),
    ]
)
NEW = [(2, 2**40, 1e300, Decimal("1234567.89"), "long text", "x")]
TYPES = {
    "id": ("bigint", True),
    "n": ("bigint", False),
    "f": ("double precision", False),
    "d": ("numeric(9,2)", False),
    "t": ("text", False),
    "must": ("text", False),
    "extra": ("text", False),
}


@pytest.fixture
def query(new_postgres_url, monkeypatch) -> PostgresQuery:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("PGUSER", "postgres")
    made = query_into(new_postgres_url(), schemaEvolution="evolve")
    made.sql(f"CREATE TABLE events ({COLUMNS})")
    made.sql("INSERT INTO events VALUES (1, 1, 0.5, 1.50, 'abc', 'must')")
    return made


def wide(*rows: tuple[object, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(WIDE.names, row, strict=True)) for row in rows], WIDE)


def types(query: PostgresQuery) -> dict[str, tuple[str, bool]]:
    found = query.sql(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
        "WHERE attrelid = 'events'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    return {name: (kind, is_required) for name, kind, is_required in found}


@pytest.mark.parametrize("point", ["", "commit.start", "commit.landed"])
def test_a_batch_changes_columns_once(query: PostgresQuery, store: SqlManifestStore, point: str) -> None:
    before = types(query)
    if point:
        with crash_at(point):
            query.run(store, query.batch(0), wide(*NEW))
        assert types(query) == (before if point == "commit.start" else TYPES)
    query.run(store, query.batch(0), wide(*NEW), run_id="r2")
    assert types(query) == TYPES
    assert query.sql("SELECT id, n, f, d, t, extra FROM events ORDER BY id") == [
        (1, 1, 0.5, Decimal("1.50"), "abc", None),
        *NEW,
    ]
