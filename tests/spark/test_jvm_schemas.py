"""Delta's and Iceberg's own connectors read and write tables whose schema has changed with their rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.evolving import EVOLVE, EXPECTED, NARROW, NEW, NULLS, OLD, WIDE, both, rows
from tests.support.jvm_tables import JvmTables, catalog_settings, jvm_tables
from tests.support.lakes import DeltaLake, IcebergLake
from tests.support.unreachable import skipped_if_unreachable

from penstock.committers.arrow_values import VARIANT
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import Query

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COLUMNS = "id, n, f, d, to_json(s), to_json(l), extra"


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("iceberg")


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory, warehouse: Path) -> Iterator[JvmTables]:
    settings = catalog_settings(warehouse)
    with skipped_if_unreachable(), jvm_tables(tmp_path_factory.mktemp("jvm"), settings) as tables:
        yield tables


def as_json(row: dict[str, object]) -> tuple[object, ...]:
    def text(value: object) -> object:
        if isinstance(value, dict):
            return {name: one for name, one in value.items() if one is not None}
        return [text(one) for one in value] if isinstance(value, list) else value

    return tuple(
        json.dumps(text(value), separators=(",", ":")) if isinstance(value, dict | list) else value
        for value in row.values()
    )


def check(jvm: JvmTables, name: str, *more: dict[str, object]) -> None:
    expected = sorted(map(as_json, [*EXPECTED, *more]))
    assert sorted(jvm.sql(f"SELECT {COLUMNS} FROM {name}")) == expected


def test_delta_spark_reads_and_writes_a_table_that_was_widened(
    jvm: JvmTables, tmp_path: Path, store: SqlManifestStore
) -> None:
    lake, name = DeltaLake(tmp_path / "table"), f"delta.`{tmp_path}/table`"
    lake.create(NARROW, {"delta.checkpointInterval": "2"})
    query = Query(lake, options=EVOLVE["delta"])
    query.run(store, query.batch(0), rows(NARROW, OLD))
    query.run(store, query.batch(1), rows(WIDE, NEW, NULLS))
    check(jvm, name)
    assert lake.version() == 3, "a log checkpoint follows"
    assert list((tmp_path / "table" / "_delta_log").glob("*.checkpoint.parquet"))

    jvm.sql(f"INSERT INTO {name} SELECT 4, n, f, d, s, l, extra FROM {name} WHERE id = 2")
    query.run(store, query.batch(2), rows(NARROW, {**OLD, "id": 5}))
    check(jvm, name, {**NEW, "id": 4}, both({**OLD, "id": 5}))
    jvm.sql(f"OPTIMIZE {name}")
    jvm.sql(f"DELETE FROM {name} WHERE id > 3")
    check(jvm, name)


def test_iceberg_s_connector_reads_and_writes_a_table_that_was_evolved(
    jvm: JvmTables, warehouse: Path, store: SqlManifestStore
) -> None:
    lake, name = IcebergLake(warehouse), "penstock.lake.ids"
    lake.create(NARROW)
    with lake.load().update_spec() as update:
        update.add_identity("n")
    query = Query(lake, options=EVOLVE["iceberg"])
    query.run(store, query.batch(0), rows(NARROW, OLD))
    query.run(store, query.batch(1), rows(WIDE, NEW, NULLS))
    check(jvm, name)
    assert jvm.sql(f"SELECT id FROM {name} WHERE n = 1 OR n = {2**40} ORDER BY id") == [(1,), (2,)]

    jvm.sql(f"INSERT INTO {name} SELECT 4, n, f, d, s, l, extra FROM {name} WHERE id = 2")
    names = {"n": "number", "s": "struct"}
    renaming = query.with_options(renameColumns="n:number, s:struct, l.element.b:c")
    inner = pa.struct([("a", pa.int64()), ("c", pa.string())])
    fields = [f.with_name(names.get(f.name, f.name)) for f in WIDE]
    schema = pa.schema([f.with_type(pa.list_(inner)) if f.name == "l" else f for f in fields])
    new = {names.get(key, key): value for key, value in NEW.items()}
    last = {**new, "id": 5, "l": [{"a": 1, "c": "z"}]}
    for batch_id in (2, 3):
        renaming.run(store, renaming.batch(batch_id), rows(schema, {**last, "id": 3 + batch_id}))
    found = jvm.sql(f"SELECT id, number, struct.b, l[0].c FROM {name} WHERE id > 1 ORDER BY id")
    assert found == [
        (2, 2**40, "x", "y"),
        (3, None, None, None),
        (4, 2**40, "x", "y"),
        (5, 2**40, "x", "z"),
        (6, 2**40, "x", "z"),
    ]
    jvm.sql(f"DELETE FROM {name} WHERE number = 1")
    assert lake.ids() == [2, 3, 4, 5, 6]


def test_delta_spark_reads_variants(jvm: JvmTables, tmp_path: Path, store: SqlManifestStore) -> None:
    lake, name = DeltaLake(tmp_path / "table"), f"delta.`{tmp_path}/table`"
    jvm.sql(f"CREATE TABLE {name} (id BIGINT, v VARIANT) USING delta")
    jvm.sql(f"INSERT INTO {name} SELECT 1, parse_json('{{\"a\": 5}}')")
    query, schema = Query(lake), pa.schema([("id", pa.int64()), ("v", VARIANT)])
    one = {"value": b"\x02\x01\x00\x00\x02\x0c\x01", "metadata": b"\x01\x01\x00\x01a"}
    for batch_id in range(2):
        table = pa.Table.from_pylist([{"id": 2 + batch_id, "v": one}, {"id": 10 + batch_id}], schema)
        query.run(store, query.batch(batch_id), table)
    found = jvm.sql(f"SELECT id, variant_get(v, '$.a', 'int') FROM {name} ORDER BY id")
    assert found == [(1, 5), (2, 1), (3, 1), (10, None), (11, None)]
    assert jvm.sql(f"SELECT id FROM {name} WHERE v IS NULL ORDER BY id") == [(10,), (11,)]
