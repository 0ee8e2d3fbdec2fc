"""The MERGE of Delta's and Iceberg's own connectors, on the same changes, makes the same table."""

from __future__ import annotations

import itertools
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
def iceberg_pair(jvm: JvmTables, warehouse: Path, tmp_path: Path, store: SqlManifestStore) -> Iterator[Pair]:
    harness, other = IcebergHarness(warehouse), "penstock.lake.other"
    harness.sql_catalog.create_namespace_if_not_exists("lake")
    properties = ", ".join(f"'{name}' = '{value}'" for name, value in MASKING.items())
    columns = "(id BIGINT, n BIGINT, text STRING)"
    jvm.sql(f"CREATE TABLE {other} {columns} USING iceberg TBLPROPERTIES ({properties})")
    yield Pair(tmp_path, jvm, harness, store, "penstock.lake.ids", other)
    for table in ("ids", "other"):
        jvm.sql(f"DROP TABLE penstock.lake.{table} PURGE")


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


# The changes read again -------------------------------------------------------------------------------

Rows = dict[int, tuple[Any, ...]]
"""By key."""

DELTA_KINDS = ("delete", "insert", "update_preimage", "update_postimage")
ICEBERG_KINDS = ("DELETE", "INSERT", "UPDATE_BEFORE", "UPDATE_AFTER")
VIEW = """CALL penstock.system.create_changelog_view(table => 'lake.ids', changelog_view => 'changelog',
    options => map('start-snapshot-id', '{after}', 'end-snapshot-id', '{last}'),
    identifier_columns => array('id'), compute_updates => true)"""


def changes_between(tables: dict[int, Rows], kinds: tuple[str, str, str, str]) -> list[tuple[Any, ...]]:
    """Version, kind and row of each change that leads from one version to the next."""
    deleted, inserted, before, after = kinds
    expected: list[tuple[Any, ...]] = []
    for (_, old), (version, new) in itertools.pairwise(tables.items()):
        for key in old.keys() | new.keys():
            if old.get(key) != new.get(key):
                if key in old:
                    expected.append((version, before if key in new else deleted, *old[key]))
                if key in new:
                    expected.append((version, after if key in old else inserted, *new[key]))
    assert {kind for _, kind, *_ in expected} == set(kinds)
    return sorted(expected)


def test_the_changelog_view_of_iceberg_has_the_changes_of_each_batch(iceberg_pair: Pair) -> None:
    """If a later release of Iceberg knows position deletes here, so can the documentation."""
    pair, tables = iceberg_pair, dict[int, Rows]()
    query = Query(pair.harness, "changelog", {**OPTIONS, "merge": "on-write"})
    *batches, last = RandomChanges(5, 300, 200).batches()
    for number, rows in enumerate(batches):
        query.run(pair.store, query.batch(number), *pair.parts(rows))
        tables[pair.harness.version()] = {row[0]: row for row in pair.rows(pair.name)}
    pair.jvm.sql(VIEW.format(after=next(iter(tables)), last=pair.harness.version()))
    changes = "SELECT _commit_snapshot_id, _change_type, id, n, text FROM changelog"
    assert sorted(pair.jvm.sql(changes)) == changes_between(tables, ICEBERG_KINDS)

    before, query = pair.harness.version(), query.with_options(merge="on-read")
    query.run(pair.store, query.batch(len(batches)), *pair.parts(last))
    pair.jvm.sql(VIEW.format(after=before, last=pair.harness.version()))
    with pytest.raises(AssertionError, match="Delete files are currently not supported in changelog"):
        pair.jvm.sql(changes)


@pytest.mark.parametrize("options", [{"merge": "on-read"}, {"merge": "on-write"}, {"partitionBy": "text"}])
def test_delta_spark_reads_the_change_data_feed_of_each_batch(
    delta_pair: Pair, options: dict[str, str]
) -> None:
    """It deletes between the batches, and adds to the feed."""
    pair, tables = delta_pair, dict[int, Rows]()
    feed = json.dumps({"delta.enableChangeDataFeed": "true"})
    query = Query(pair.harness, options={**OPTIONS, "tableProperties": feed, **options})
    for number, rows in enumerate(RandomChanges(4, 40, 30).batches()):
        query.run(pair.store, query.batch(number), *pair.parts(rows))
        tables[pair.harness.version()] = {row[0]: row for row in pair.rows(pair.name)}
        if number == 1:
            pair.jvm.sql(f"DELETE FROM {pair.name} WHERE id % 3 = 0")
            tables[pair.harness.version()] = {row[0]: row for row in pair.rows(pair.name)}
    columns, first = "_commit_version, _change_type, id, n, text", next(iter(tables)) + 1
    feed_of = f"table_changes_by_path('{pair.name.removeprefix('delta.').strip('`')}', {first})"
    found = pair.jvm.sql(f"SELECT {columns} FROM {feed_of}")
    assert sorted(found) == changes_between(tables, DELTA_KINDS)
