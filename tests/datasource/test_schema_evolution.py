"""Tables whose schema changes with the rows of a query (`schemaEvolution=evolve`), read by other engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.evolving import EVOLVE, EXPECTED, NARROW, NEW, NULLS, OLD, WIDE, both, lake_rows, rows
from tests.support.lakes import LAKES, LakeTable

from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import Query
from penstock.testing.faults import crash_at


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
