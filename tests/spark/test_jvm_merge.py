"""The MERGE of Delta's and Iceberg's own connectors, on the same changes, makes the same table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conformance.harnesses import DeltaHarness, IcebergHarness
from tests.support.jvm_tables import JvmTables, catalog_settings, jvm_tables
from tests.support.random_changes import RandomChanges
from tests.support.unreachable import skipped_if_unreachable

from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import Query
from penstock.testing.conformance.upserts import OPTIONS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LAST = "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY n DESC) AS place FROM {rows})"
MERGE = f"""
    MERGE INTO {{table}} t USING ({LAST} WHERE place = 1) s ON t.id = s.id
    WHEN MATCHED AND s.op = 'd' THEN DELETE
    WHEN MATCHED THEN UPDATE SET n = s.n, text = s.text
    WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT (id, n, text) VALUES (s.id, s.n, s.text)
"""
MASKING = {"write.merge.mode": "merge-on-read", "write.delete.mode": "merge-on-read"}
"""Properties of an Iceberg table: its connector writes position deletes, too."""


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("iceberg")


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory, warehouse: Path) -> Iterator[JvmTables]:
    settings = catalog_settings(warehouse / "warehouse")
    with skipped_if_unreachable(), jvm_tables(tmp_path_factory.mktemp("jvm"), settings) as tables:
        yield tables


@dataclass
class Pair:
    """A table that Penstock changes, and one that a connector changes in the same way."""

    folder: Path
    jvm: JvmTables
    harness: DeltaHarness | IcebergHarness
    store: SqlManifestStore
    name: str
    """In SQL."""
    other: str
    batches: int = 0
    versions: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    """What the connector's table had when the other one was at this version."""

    @property
    def query(self) -> Query:
        properties = {} if isinstance(self.harness, DeltaHarness) else MASKING
        options = {**OPTIONS, "tableProperties": json.dumps(properties)}
        return Query(self.harness, options=options)

    def parts(self, rows: pa.Table) -> list[pa.Table]:
        """The rows of three tasks."""
        return [rows.take(list(range(i, rows.num_rows, 3))) for i in range(3)]

    def change(self, rows: pa.Table) -> None:
        self.query.run(self.store, self.query.batch(self.batches), *self.parts(rows))
        self.batches += 1
        self.merge(rows, self.other)

    def merge(self, rows: pa.Table, *tables: str) -> None:
        path = self.folder / "changes.parquet"
        pq.write_table(rows, path)
        for table in tables:
            self.jvm.sql(MERGE.format(table=table, rows=f"parquet.`{path}`"))

    def both(self, statement: str) -> None:
        """Another writer changes both tables."""
        for table in (self.name, self.other):
            self.jvm.sql(statement.format(table=table))

    def check(self) -> None:
        """The connector and DuckDB read the rows of the connector's table."""
        expected = self.rows(self.other)
        assert expected
        assert self.rows(self.name) == expected
        assert sorted(self.harness.changed_rows()) == expected
        self.versions[self.harness.version()] = expected

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return self.jvm.sql(f"SELECT id, n, text FROM {table} ORDER BY id")


@pytest.fixture
def delta_pair(jvm: JvmTables, tmp_path: Path, store: SqlManifestStore) -> Pair:
    harness, other = DeltaHarness(tmp_path), f"delta.`{tmp_path}/other`"
    vectors = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    jvm.sql(f"CREATE TABLE {other} (id BIGINT, n BIGINT, text STRING) USING delta {vectors}")
    return Pair(tmp_path, jvm, harness, store, f"delta.`{harness.path}`", other)


@pytest.fixture
def iceberg_pair(jvm: JvmTables, warehouse: Path, tmp_path: Path, store: SqlManifestStore) -> Pair:
    harness, other = IcebergHarness(warehouse), "penstock.lake.other"
    harness.sql_catalog.create_namespace_if_not_exists("lake")
    properties = ", ".join(f"'{name}' = '{value}'" for name, value in MASKING.items())
    columns = "(id BIGINT, n BIGINT, text STRING)"
    jvm.sql(f"CREATE TABLE {other} {columns} USING iceberg TBLPROPERTIES ({properties})")
    return Pair(tmp_path, jvm, harness, store, "penstock.lake.ids", other)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_merge_of_a_connector_makes_the_same_table(kind: str, request: pytest.FixtureRequest) -> None:
    """It reads each version of ours, and changes our table between batches, and between the phases of one."""
    pair: Pair = request.getfixturevalue(f"{kind}_pair")
    changes = iter(RandomChanges(6, 300, 200).batches())
    for _ in range(3):
        pair.change(next(changes))
        pair.check()

    pair.both("DELETE FROM {table} WHERE id % 7 = 0")
    pair.merge(next(changes), pair.name, pair.other)
    pair.check()
    pair.change(next(changes))
    pair.check()

    rows = next(changes)
    pair.query.prepare(pair.store, pair.query.batch(pair.batches), *pair.parts(rows))
    pair.both("UPDATE {table} SET text = 'other' WHERE id % 5 = 0")
    pair.both("DELETE FROM {table} WHERE id % 11 = 0")
    pair.query.recover(pair.store)
    pair.merge(rows, pair.other)
    pair.check()

    for version, expected in pair.versions.items():
        assert pair.rows(f"{pair.name} VERSION AS OF {version}") == expected
