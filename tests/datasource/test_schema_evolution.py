"""Tables whose schema changes with the rows of a query (`schemaEvolution=evolve`), read by other engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.evolving import (
    EVOLVE,
    EXPECTED,
    NARROW,
    NEW,
    NULLS,
    OLD,
    WIDE,
    both,
    check,
    compacted,
    rows,
)
from tests.support.lakes import LAKES, DeltaLake, LakeTable

from penstock.committers.errors import ConfigurationError, SchemaMismatchError
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.deliveries import deliver
from penstock.testing.conformance.query import Query
from penstock.testing.faults import crash_at


@pytest.fixture(params=LAKES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    lake: LakeTable = LAKES[request.param](tmp_path)
    lake.create(NARROW)
    return lake


def evolving(table: LakeTable, **options: str) -> Query:
    return Query(table, options={**EVOLVE[table.kind], **options})


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


@pytest.mark.parametrize("point", ["prepare.done", "evolve.done"])
def test_a_killed_driver_changes_the_schema_once(
    table: LakeTable, store: SqlManifestStore, point: str
) -> None:
    """In Iceberg, rows and schema are one commit."""
    if point == "evolve.done" and table.kind == "iceberg":
        return
    query = evolving(table)
    query.run(store, query.batch(0), rows(NARROW, OLD))
    with crash_at(point):
        query.run(store, query.batch(1), rows(WIDE, NEW, NULLS))
    versions = table.versions()
    query.run(store, query.batch(1), rows(WIDE, NEW, NULLS), run_id="r2")
    check(table)
    assert table.versions() - versions == (2 if (point, table.kind) == ("prepare.done", "delta") else 1)


def test_the_files_since_a_change_are_compacted(table: LakeTable, store: SqlManifestStore) -> None:
    query = evolving(table)
    more: list[dict[str, Any]] = [{**NEW, "id": number} for number in (4, 5)]
    later: list[dict[str, Any]] = [NEW, NULLS, *more]
    query.run(store, query.batch(0), rows(NARROW, OLD))
    for batch_id, row in enumerate(later, 1):
        query.run(store, query.batch(batch_id), rows(WIDE, row))
    assert compacted(query) == (4, 1)
    check(table, [*EXPECTED, *more])


def test_a_delivery_changes_the_schema_between_its_batches(table: LakeTable, store: SqlManifestStore) -> None:
    """Batches of the wider query are planned before the first of them is delivered."""
    query = evolving(table, delivery="decoupled")
    query.run(store, query.batch(0), rows(NARROW, OLD))
    query.run(store, query.batch(1), rows(WIDE, NEW))
    query.run(store, query.batch(2), rows(WIDE, NULLS))
    assert table.ids() == []
    deliver(store)
    check(table)


def test_changes_by_key_evolve_the_other_columns(table: LakeTable, store: SqlManifestStore) -> None:
    for merge in ("on-read", "on-write"):
        query = evolving(table, writeMode="upsert", keys="id", merge=merge)
        query = replace(query, query_id=merge)
        query.run(store, query.batch(0), rows(NARROW, OLD, {**OLD, "id": 2}))
        query.run(store, query.batch(1), rows(WIDE, NEW, NULLS))
        check(table)


def test_fields_of_structs_are_added_for_every_reader(table: LakeTable, store: SqlManifestStore) -> None:
    """Without wider types, the Delta library and Polars read the table."""
    query = Query(table, options={"schemaEvolution": "addColumns"})
    query.run(store, query.batch(0), rows(NARROW, OLD))
    inner = pa.struct([("a", pa.int32()), ("b", pa.string())])
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("s", inner)])
    with crash_at("commit.start"):
        query.run(store, query.batch(1), rows(schema, {"id": 2, "n": 2, "s": {"a": 2, "b": "x"}}))
    query.run(store, query.batch(1), rows(schema, {"id": 2, "n": 2, "s": {"a": 2, "b": "x"}}), run_id="r2")
    expected = [(1, {"a": 1, "b": None}), (2, {"a": 2, "b": "x"})]
    assert sorted(table.rows("id, s")) == expected
    assert sorted(table.scan().select("id", "s").collect().rows()) == expected
    query.run(store, query.batch(2), rows(NARROW, {**OLD, "id": 3}), run_id="r2")
    assert table.ids() == [1, 2, 3]


def test_a_column_that_the_query_does_not_have_becomes_nullable(
    table: LakeTable, store: SqlManifestStore
) -> None:
    few = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    query = evolving(table)
    query.run(store, query.batch(0), rows(NARROW, OLD))
    query.run(store, query.batch(1), rows(few, {"id": 2}))
    assert sorted(table.rows("id, n")) == [(1, 1), (2, None)]
    assert [table.schema().field(name).nullable for name in ("id", "n")] == [False, True]


def test_a_key_and_a_column_of_a_primary_key_stay_as_they_are(
    table: LakeTable, store: SqlManifestStore
) -> None:
    nullable = pa.schema([("id", pa.int64()), ("n", pa.int32())])
    query = evolving(table, writeMode="upsert", keys="ID")
    query.run(store, query.batch(0), rows(nullable, {"id": 1, "n": 1}))
    assert not table.schema().field("id").nullable
    with pytest.raises(SchemaMismatchError, match="NULL in id"):
        query.run(store, query.batch(1), rows(nullable, {"n": 1}))


def test_changes_by_key_of_a_new_shape_are_quarantined(
    table: LakeTable, store: SqlManifestStore, tmp_path: Path
) -> None:
    """The row of the key stays. A deletion needs its key only."""
    options = {
        "badRows": "deadLetter",
        "deadLetter": str(tmp_path / "refused"),
        "schemaEvolution": "quarantine",
    }
    upserts = {"writeMode": "upsert", "keys": "id", "deleteWhen": "op = 'd'", "dropColumns": "op"}
    query = Query(table, options={**options, **upserts})
    schema = WIDE.append(pa.field("op", pa.string()))
    fits = {**OLD, "s": {"a": 5}, "l": [{"a": 5}]}
    query.run(store, query.batch(0), rows(schema, *({**fits, "id": number} for number in (1, 2, 3))))
    query.run(
        store,
        query.batch(1),
        rows(schema, {**fits, "n": 9, "op": "u"}, NEW, {**NEW, "id": 3, "op": "d"}, {**NEW, "id": 4}),
    )
    assert sorted(table.rows("id, n")) == [(1, 9), (2, 1)]
    assert len(DeltaLake(tmp_path / "refused").rows("batch_id")) == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"renameColumns": "a"}, "must be pairs of names such as old:new"),
        ({"renameColumns": "a:b.c"}, "must have a new name without dots"),
        ({"renameColumns": "a:b, a:c"}, "names a column twice"),
        (
            {"renameColumns": "a:b", "schemaEvolution": "addColumns"},
            "only a query with schemaEvolution=evolve",
        ),
        ({"renameColumns": "a:b", "writeMode": "upsert", "keys": "B"}, "contains b of keys or orderBy"),
        ({"schemaEvolution": "widen"}, "must be one of fail, addColumns, evolve, quarantine, none"),
        ({"schemaEvolution": "quarantine", "badRows": "drop"}, "quarantine needs badRows=deadLetter"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, options: dict[str, str], problem: str
) -> None:
    given = {"schemaEvolution": "evolve", **options}
    with pytest.raises(ConfigurationError, match=problem):
        Query(LAKES["iceberg"](tmp_path), options=given).sink()


@pytest.mark.parametrize(
    ("renames", "problem"),
    [
        ("n:f", "has both columns"),
        ("x:y", "has neither"),
        ("s.a:b, s.b:c", "has neither"),
        ("s.x:y", "has neither"),
    ],
)
def test_a_rename_of_what_is_not_there_is_refused(
    tmp_path: Path, store: SqlManifestStore, renames: str, problem: str
) -> None:
    table = LAKES["iceberg"](tmp_path)
    table.create(NARROW)
    query = evolving(table, renameColumns=renames)
    with pytest.raises(SchemaMismatchError, match=problem):
        query.plan(store, query.batch(0), NARROW)
