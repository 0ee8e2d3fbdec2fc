"""VARIANT columns of a Delta table of Delta's own engine, written and read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType, VariantType
from tests.committers.test_delta_features import FIXTURES
from tests.support.evolving import compacted
from tests.support.lakes import DeltaLake, IcebergLake

from penstock.committers.arrow_values import VARIANT
from penstock.committers.errors import SchemaMismatchError, TableNotSupportedError
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.planning.plan import plan_batch_write
from penstock.datasource.spark.types import arrow_schema
from penstock.testing.conformance.query import Query

ONE = {"value": b"\x02\x01\x00\x00\x02\x0c\x01", "metadata": b"\x01\x01\x00\x01a"}
"""`{"a": 1}`"""
SPARK = StructType([StructField("id", LongType()), StructField("v", VariantType())])
ROWS = arrow_schema(SPARK, variants=True)


def rows(*values: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist(list(values), ROWS)


@pytest.fixture
def lake(tmp_path: Path) -> DeltaLake:
    shutil.copytree(FIXTURES / "variant", tmp_path / "table")
    return DeltaLake(tmp_path / "table")


def test_variants_are_appended_and_read_by_another_engine(lake: DeltaLake, store: SqlManifestStore) -> None:
    query = Query(lake)
    query.run(store, query.batch(0), rows({"id": 2, "v": ONE}, {"id": 3}))
    for batch_id in range(1, 5):
        query.run(store, query.batch(batch_id), rows({"id": 3 + batch_id, "v": ONE}))
    assert lake.rows("id, v") == [(1, {"a": 1}), (2, {"a": 1}), (3, None)] + [
        (n, {"a": 1}) for n in range(4, 8)
    ]
    log = lake.folder / "_delta_log" / f"{2:020}.json"
    (added,) = [json.loads(line)["add"] for line in log.read_text().splitlines() if '"add"' in line]
    assert json.loads(added["stats"])["nullCount"] == {"id": 0, "v": 1}

    assert compacted(query)[1] == 1
    assert lake.count() == 7
    with pytest.raises(TableNotSupportedError, match="variantType"):
        query.plan(store, query.batch(5), ROWS, overwrite=True)


def test_a_struct_is_no_variant(lake: DeltaLake, store: SqlManifestStore) -> None:
    query = Query(lake)
    struct = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    with pytest.raises(SchemaMismatchError, match="'v' is variant in the table and struct"):
        query.plan(store, query.batch(0), pa.schema([("id", pa.int64()), ("v", struct)]))


def test_a_table_without_the_feature_gets_no_variants(tmp_path: Path, store: SqlManifestStore) -> None:
    lake = DeltaLake(tmp_path / "table")
    query = Query(lake, options={"schemaEvolution": "addColumns"})
    for why in ("it does not exist", "it does not have the table feature"):
        with pytest.raises(SchemaMismatchError, match=why):
            query.plan(store, query.batch(0), ROWS)
        if not lake.exists:
            lake.create(pa.schema([("id", pa.int64())]))


def test_other_destinations_refuse_variants(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatchError, match=r"v \(variant\). Write this instead: to_json\(v\)"):
        plan_batch_write(Query(IcebergLake(tmp_path)).sink(), SPARK, overwrite=False)


def test_spark_hands_over_variants_in_this_form() -> None:
    assert ROWS.field("v").type.equals(VARIANT, check_metadata=True)
