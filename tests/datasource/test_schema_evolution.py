"""Tables whose schema changes with the rows of a query (`schemaEvolution=evolve`), read by other engines."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.lakes import LAKES, LakeTable

from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import Query
from penstock.testing.faults import crash_at

INNER, WIDER_INNER = pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64()), ("b", pa.string())])
NARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int32(), nullable=False),
        ("f", pa.float32()),
        ("d", pa.decimal128(5, 2)),
        ("s", INNER),
        ("l", pa.list_(INNER)),
    ]
)
WIDE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("d", pa.decimal128(9, 2)),
        ("s", WIDER_INNER),
        ("l", pa.list_(WIDER_INNER)),
        ("extra", pa.string()),
    ]
)
OLD = {"id": 1, "n": 1, "f": 0.5, "d": Decimal("1.50"), "s": {"a": 1}, "l": [{"a": 1}]}
NEW = {
    "id": 2,
    "n": 2**40,
    "f": 1e300,
    "d": Decimal("1234567.89"),
    "s": {"a": 2**40, "b": "x"},
    "l": [{"a": 2**40, "b": "y"}],
    "extra": "z",
}
NULLS = {"id": 3}
EVOLVE = {
    "delta": {"schemaEvolution": "evolve", "typeWidening": "true"},
    "iceberg": {"schemaEvolution": "evolve"},
}


def both(old: dict[str, Any]) -> dict[str, Any]:
    """The old row in the wider table."""
    return {**old, "s": {"a": 1, "b": None}, "l": [{"a": 1, "b": None}], "extra": None}


EXPECTED = [both(OLD), NEW, dict.fromkeys(WIDE.names) | NULLS]


def lake_rows(table: LakeTable) -> list[dict[str, Any]]:
    return sorted(
        (dict(zip(WIDE.names, row, strict=True)) for row in table.rows(", ".join(WIDE.names))),
        key=lambda row: row["id"],
    )


def rows(schema: pa.Schema, *values: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(values), schema)


@pytest.fixture(params=LAKES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    lake: LakeTable = LAKES[request.param](tmp_path)
    lake.create(NARROW)
    return lake


def evolving(table: LakeTable, **options: str) -> Query:
    return Query(table, options={**EVOLVE[table.kind], **options})


def check(table: LakeTable, expected: Sequence[dict[str, Any]] = EXPECTED) -> None:
    assert lake_rows(table) == list(expected)


def test_a_batch_widens_the_table(table: LakeTable, store: SqlManifestStore) -> None:
    """Types, NOT NULL, columns and fields of structs. Narrower rows still fit."""
    query = evolving(table)
    query.run(store, query.batch(0), rows(NARROW, OLD))
    assert table.schema().field("n").type == pa.int32()
    for run_id in ("r1", "r2"):
        query.run(store, query.batch(1), rows(WIDE, NEW, NULLS), run_id=run_id)
    check(table)
    schema = table.schema()
    assert [schema.field(name).nullable for name in ("id", "n")] == [False, True]

    query.run(store, query.batch(2), rows(NARROW, {**OLD, "id": 4}))
    check(table, [*EXPECTED, both({**OLD, "id": 4})])


@pytest.mark.parametrize("point", ["prepare.done", "evolve.done", "commit.start", "commit.landed"])
def test_a_killed_driver_changes_the_schema_once(
    table: LakeTable, store: SqlManifestStore, point: str
) -> None:
    query = evolving(table)
    query.run(store, query.batch(0), rows(NARROW, OLD))
    if point == "evolve.done" and table.kind == "iceberg":
        return  # rows and schema are one commit
    with crash_at(point):
        query.run(store, query.batch(1), rows(WIDE, NEW, NULLS))
    versions = table.versions()
    query.run(store, query.batch(1), rows(WIDE, NEW, NULLS), run_id="r2")
    check(table)
    expected = {"prepare.done": 2, "evolve.done": 1, "commit.start": 1, "commit.landed": 0}[point]
    assert table.versions() - versions == (min(expected, 1) if table.kind == "iceberg" else expected)
