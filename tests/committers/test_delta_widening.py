"""A Delta table with type widening: the Delta library loads it, and cannot commit to it. Penstock does."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError
from tests.support.evolving import EVOLVE, EXPECTED, NARROW, NEW, NULLS, OLD, WIDE, both, check, rows
from tests.support.lakes import DeltaLake

from penstock.committers.errors import ConfigurationError, SchemaMismatchError, TableNotSupportedError
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import Query


@pytest.fixture
def lake(tmp_path: Path) -> DeltaLake:
    made = DeltaLake(tmp_path / "table")
    made.create(NARROW)
    return made


@pytest.fixture
def query(lake: DeltaLake) -> Query:
    return Query(lake, options=EVOLVE["delta"])


def test_types_are_only_widened_where_the_table_or_the_query_says_so(
    lake: DeltaLake, query: Query, store: SqlManifestStore
) -> None:
    careful = query.with_options(typeWidening="false")
    with pytest.raises(
        SchemaMismatchError, match=r"'n' is integer .*\n.*'f' is float .*typeWidening=true would allow it"
    ):
        careful.plan(store, careful.batch(0), WIDE)
    query.run(store, query.batch(0), rows(WIDE, NEW))
    assert lake.load().metadata().configuration == {"delta.enableTypeWidening": "true"}
    with pytest.raises(CommitFailedError, match="TypeWidening"):
        lake.append(9)

    later = pa.schema([("id", pa.int64()), ("d", pa.decimal128(20, 2))])
    careful.run(store, careful.batch(1), pa.table({"id": [5], "d": [None]}, schema=later))
    assert lake.load().schema().to_arrow().field("d").type == pa.decimal128(20, 2)
    changes = json.loads(lake.load().schema().to_json())["fields"][3]["metadata"]["delta.typeChanges"]
    assert [one["fromType"] for one in changes] == ["decimal(5,2)", "decimal(9,2)"]


def test_features_of_an_older_protocol_stay(lake: DeltaLake, query: Query, store: SqlManifestStore) -> None:
    assert lake.load().protocol().min_writer_version == 2
    query.run(store, query.batch(0), rows(WIDE, NEW))
    protocol = lake.load().protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert protocol.reader_features == ["typeWidening"]
    assert sorted(protocol.writer_features or ()) == ["appendOnly", "invariants", "typeWidening"]


def test_a_widened_table_is_not_overwritten(lake: DeltaLake, query: Query, store: SqlManifestStore) -> None:
    query.run(store, query.batch(0), rows(WIDE, NEW))
    with pytest.raises(TableNotSupportedError, match="'typeWidening'"):
        query.plan(store, query.batch(1), WIDE, overwrite=True)


def test_rows_are_replaced_in_files_of_older_types(
    lake: DeltaLake, query: Query, store: SqlManifestStore
) -> None:
    plain = query.with_options(writeMode="upsert", keys="id", merge="on-write")
    plain.run(store, plain.batch(0), rows(NARROW, OLD, {**OLD, "id": 2}, {**OLD, "id": 4}))
    plain.run(store, plain.batch(1), rows(WIDE, NEW, NULLS))
    check(lake, [*EXPECTED, both({**OLD, "id": 4})])


def test_a_key_is_not_widened(lake: DeltaLake, query: Query, store: SqlManifestStore) -> None:
    upserts = query.with_options(writeMode="upsert", keys="n")
    with pytest.raises(SchemaMismatchError, match="'n' is integer in the table and long in the query"):
        upserts.plan(store, upserts.batch(0), WIDE)


def test_only_delta_s_own_rules_widen(lake: DeltaLake, query: Query, store: SqlManifestStore) -> None:
    for name, kind in (("n", pa.float64()), ("f", pa.int64()), ("d", pa.decimal128(5, 3)), ("n", pa.int16())):
        schema = pa.schema([f.with_type(kind) if f.name == name else f for f in NARROW])
        if kind == pa.int16():  # narrower than the table
            query.plan(store, query.batch(0), schema)
            continue
        with pytest.raises(SchemaMismatchError, match=f"'{name}' is"):
            query.plan(store, query.batch(0), schema)


def test_a_rename_is_refused_with_the_reason(lake: DeltaLake) -> None:
    with pytest.raises(ConfigurationError, match=r"not supported by penstock.delta: it needs column mapping"):
        Query(lake, options={"schemaEvolution": "evolve", "renameColumns": "n:m"}).sink()


def test_a_widened_table_gets_no_deletion_vectors(
    lake: DeltaLake, query: Query, store: SqlManifestStore
) -> None:
    query.run(store, query.batch(0), rows(WIDE, NEW))
    masking = query.with_options(writeMode="upsert", keys="id", merge="on-read")
    with pytest.raises(TableNotSupportedError, match=r"cannot get deletion vectors .*merge=on-write"):
        masking.plan(store, masking.batch(1), WIDE)
