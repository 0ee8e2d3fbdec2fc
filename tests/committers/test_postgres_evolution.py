"""The columns of a Postgres table change in the transaction of the batch (`schemaEvolution=evolve`)."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.lakes import DeltaLake
from tests.support.postgres import PostgresQuery, query_into

from penstock.committers.errors import SchemaMismatchError, TableNotSupportedError
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
def query(new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> PostgresQuery:
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


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("CREATE VIEW v AS SELECT n FROM events", "rule _RETURN on view v uses 'n'"),
        ("ALTER TABLE events ADD twice integer GENERATED ALWAYS AS (n * 2) STORED", "column twice uses 'n'"),
        (
            "ALTER TABLE events RENAME TO other; "
            "CREATE TABLE events (id bigint, n integer) PARTITION BY LIST (n);"
            "CREATE TABLE part PARTITION OF events DEFAULT",
            "the partition key uses 'n'",
        ),
    ],
)
def test_a_column_that_postgres_would_not_widen_is_refused_at_first(
    query: PostgresQuery, store: SqlManifestStore, statement: str, problem: str
) -> None:
    for one in statement.split(";"):
        query.sql(one)
    with pytest.raises(TableNotSupportedError, match=problem):
        query.plan(store, query.batch(0), pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    query.run(store, query.batch(0), pa.table({"id": [5], "n": pa.array([5], pa.int32())}))
    assert 5 in query.ids()


def test_a_column_is_renamed_in_the_transaction_of_the_batch(
    query: PostgresQuery, store: SqlManifestStore
) -> None:
    renaming = query.with_options(renameColumns="n:number, must:may")
    rows = pa.table({"id": [2], "number": [2**40], "may": pa.array([None], pa.string())})
    with crash_at("commit.start"):
        renaming.run(store, renaming.batch(0), rows)
    assert "n" in types(query)
    for batch_id in range(2):
        more = rows.set_column(0, "id", pa.array([2 + batch_id]))
        renaming.run(store, renaming.batch(batch_id), more, run_id="r2")
    found = query.sql("SELECT id, number, may FROM events ORDER BY id")
    assert found == [(1, 1, "must"), (2, 2**40, None), (3, 2**40, None)]
    with pytest.raises(SchemaMismatchError, match="has neither of the columns"):
        query.with_options(renameColumns="x:y").plan(store, query.batch(2), rows.schema)


def test_changes_by_key_of_a_new_shape_are_quarantined(
    query: PostgresQuery, store: SqlManifestStore, tmp_path: Path
) -> None:
    options = {"badRows": "deadLetter", "deadLetter": str(tmp_path / "refused"), "writeMode": "upsert"}
    careful = query.with_options(schemaEvolution="quarantine", keys="id", **options)
    schema = pa.schema([*WIDE, ("must", pa.string())])
    values = [
        {"id": 1, "n": 7, "f": 0.5, "d": Decimal("2.25"), "t": "abc", "must": "x"},
        {"id": 2, "n": 2**40, "must": "x"},
        {"id": 3, "n": 3, "f": 0.1, "must": "x"},
        {"id": 4, "n": 4, "extra": "y", "must": "x"},
        {"id": 5, "n": 5, "t": "long text", "must": "x"},
    ]
    before = types(query)
    careful.run(store, careful.batch(0), pa.Table.from_pylist(values, schema))
    assert types(query) == before
    assert query.sql("SELECT id, n, f, d FROM events") == [(1, 7, 0.5, Decimal("2.25"))]
    assert len(DeltaLake(tmp_path / "refused").rows("batch_id")) == 4
