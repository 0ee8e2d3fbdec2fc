"""Partitioned tables of a DuckLake: values in folders, pruning, and what is refused."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.ducklakes import DuckLake, sqlite_lake
from tests.support.lakes import ids

from penstock.committers.ducklake.address import DuckLakeAddress, DuckLakeCatalog
from penstock.committers.ducklake.connection import LakeServer
from penstock.committers.ducklake.maintenance import merge_files
from penstock.committers.errors import ConfigurationError, SchemaMismatchError, TableNotSupportedError
from penstock.committers.file_tables.manifest import decode
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.ducklake.target import DuckLakeTarget
from penstock.testing.conformance import Query
from penstock.writers.ducklake import table_format
from penstock.writers.parquet.compaction import choose_groups, rewrite_group
from penstock.writers.parquet.file_names import FileNames

UTC = dt.timezone.utc


@pytest.fixture
def lake(tmp_path: Path) -> DuckLake:
    return sqlite_lake(tmp_path)


def by(lake: DuckLake, *columns: str) -> Query:
    return Query(lake, options={"partitionBy": ", ".join(columns)})


def rows(*keys: object, kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"id": pa.array(range(len(keys)), pa.int64()), "key": pa.array(keys, kind)})


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "VARCHAR": (
        pa.string(),
        [
            *("", " ", "a/b", "%41", "+", "*", "[x]", "ä😀", "a\nb", ".", "..", "a=b"),
            *("it's", '"', "\\", "nan", "A", "a"),
        ],
    ),
    "DATE": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "BOOLEAN": (pa.bool_(), [True, False]),
    "BIGINT": (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    "DECIMAL(38,10)": (
        pa.decimal128(38, 10),
        [decimal.Decimal("1234567890123456789012345678.1234567890"), decimal.Decimal("-1.5000000000")],
    ),
    "TIMESTAMP": (
        pa.timestamp("us"),
        [dt.datetime.fromisoformat(one) for one in ("0001-01-02 00:00:00", "9999-12-31 23:59:59.999999")],
    ),
    "TIMESTAMPTZ": (
        pa.timestamp("us", "Europe/Berlin"),
        [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), dt.datetime(2026, 3, 29, 1, 30, 0, 1, UTC)],
    ),
}


@pytest.mark.parametrize("kind", sorted(VALUES))
def test_each_value_is_read_back_and_found_by_its_partition(
    lake: DuckLake, store: SqlManifestStore, kind: str
) -> None:
    arrow, values = VALUES[kind]
    query = by(lake, "key")
    query.run(store, query.batch(0), rows(*values, None, kind=arrow))

    read = lake.sql("SET TimeZone = 'UTC'", "SELECT id, key FROM events ORDER BY id")
    assert read == [(number, value) for number, value in enumerate([*values, None])]
    literals = [str(value).replace("'", "''") for value in values]
    filters = [f"key = '{text}'::{kind}" for text in literals] + ["key IS NULL"]
    selects = [f"SELECT {number}, id FROM events WHERE {one}" for number, one in enumerate(filters)]
    found = lake.sql("SET TimeZone = 'UTC'", " UNION ALL ".join(selects) + " ORDER BY 1")
    assert found == [(number, number) for number in range(len(filters))]


def test_a_filter_reads_the_files_of_its_partition_only(lake: DuckLake, store: SqlManifestStore) -> None:
    query = by(lake, "key")
    query.run(store, query.batch(0), rows("a", "b", "c"))
    query.run(store, query.batch(1), rows("a", "b", "c"))
    plan = lake.sql("EXPLAIN ANALYZE SELECT * FROM events WHERE key = 'b'")[0][1]
    assert "Total Files Read: 2" in plan
    folders = lake.sql("SELECT data_file FROM ducklake_list_files('lake', 'events')")
    assert {Path(path).parent.name for (path,) in folders} == {"key=a", "key=b", "key=c"}


def test_a_value_that_duckdb_would_read_as_null_is_refused(lake: DuckLake, store: SqlManifestStore) -> None:
    query = by(lake, "key")
    for value, names in (
        ("Null", "reads as NULL"),
        ("__HIVE_DEFAULT_PARTITION__", "interpret as NULL"),
        ("a\0b", "NUL character"),
    ):
        with pytest.raises(SchemaMismatchError, match=names):
            query.run(store, query.batch(0), rows(value))


BEFORE_DUCKDB = pa.array([None, -9223372022400000001], pa.int64()).cast(pa.timestamp("us", "UTC"))


@pytest.mark.parametrize("column", ["key", "instants"])
def test_a_value_that_an_earlier_release_let_pass_is_refused_in_the_commit(
    lake: DuckLake, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """It is not retried. A coupled query writes the batch again, with the value in its dead letters."""
    query = by(lake, "key")
    good, bad = rows("a", "a"), rows("a", "a\0b" if column == "key" else "b")
    instants = pa.ListArray.from_arrays([0, 1, 2], BEFORE_DUCKDB)
    good = good.append_column("instants", pa.nulls(2, instants.type))
    bad = bad.append_column("instants", pa.nulls(2, instants.type) if column == "key" else instants)
    query.run(store, query.batch(0), good)
    with monkeypatch.context() as earlier:
        earlier.setattr(table_format, "partition_value_problem", lambda _: None)
        earlier.setattr(table_format.DuckLakeFormat, "check_values", lambda *_: None)
        manifest = query.prepare(store, query.batch(1), bad)
    with pytest.raises(
        SchemaMismatchError, match="NUL character" if column == "key" else "duckdb cannot read"
    ):
        query.target().commit(manifest)

    with pytest.raises(SchemaMismatchError, match=column):
        query.run(store, query.batch(1), bad, run_id="r2")
    query.with_options(badRows="drop").run(store, query.batch(1), bad, run_id="r3")
    assert lake.sql("SELECT count(*) FROM events") == [(3,)]


def test_tables_of_others_keep_their_partitioning(lake: DuckLake, store: SqlManifestStore) -> None:
    lake.sql(
        'CREATE TABLE events (id BIGINT, "Key" VARCHAR, more INTEGER)',
        'ALTER TABLE events SET PARTITIONED BY ("Key")',
        "INSERT INTO events VALUES (0, 'x', 1)",
    )
    query = Query(lake, options={"schemaEvolution": "addColumns"})
    query.run(store, query.batch(0), rows("x", "y"))
    query.run(store, query.batch(1), rows("z").append_column("new", pa.array([1.5])))
    assert lake.sql('SELECT "Key", count(*), max(new) FROM events GROUP BY ALL ORDER BY 1') == [
        ("x", 2, None), ("y", 1, None), ("z", 1, 1.5)
    ]  # fmt: skip
    assert lake.sql(
        "SELECT count(DISTINCT partition_id) FROM __ducklake_metadata_lake.ducklake_data_file"
    ) == [(1,)]

    lake.sql("ALTER TABLE events RESET PARTITIONED BY")
    query.run(store, query.batch(2), rows("x").append_column("new", pa.array([2.5])))
    assert lake.sql("SELECT max(new) FROM events WHERE \"Key\" = 'x'") == [(2.5,)]


@pytest.mark.parametrize(
    ("partitioning", "error", "names"),
    [
        ("year(day)", TableNotSupportedError, r"partitioned by year\(day\)"),
        ("bucket(4, id), text", TableNotSupportedError, r"partitioned by bucket.*\(id\), text"),
        ("real", SchemaMismatchError, "'real' is double"),
        ("other", SchemaMismatchError, "no column 'other'"),
    ],
)
def test_partitions_that_cannot_be_written_are_refused(
    lake: DuckLake, store: SqlManifestStore, partitioning: str, error: type[Exception], names: str
) -> None:
    lake.sql(
        "CREATE TABLE events (id BIGINT, day DATE, text VARCHAR, real DOUBLE, other VARCHAR)",
        f"ALTER TABLE events SET PARTITIONED BY ({partitioning})",
    )
    query = Query(lake)
    with pytest.raises(error, match=names):
        query.prepare(
            store,
            query.batch(0),
            pa.table({"id": [1], "day": [dt.date(2026, 1, 1)], "text": ["a"], "real": [0.5]}),
        )
    assert not lake.files.exists()


@pytest.mark.parametrize("is_new", [True, False])
def test_partition_columns_that_duckdb_would_not_find_in_the_folders_are_refused(
    lake: DuckLake, store: SqlManifestStore, is_new: bool
) -> None:
    if not is_new:
        lake.sql(
            'CREATE TABLE events (id BIGINT, "a:b" VARCHAR)', 'ALTER TABLE events SET PARTITIONED BY ("a:b")'
        )
    query = Query(lake, options={"partitionBy": "a:b"} if is_new else {})
    with pytest.raises(SchemaMismatchError, match="Cannot partition by 'a:b'"):
        query.prepare(store, query.batch(0), pa.table({"id": [1], "a:b": ["a"]}))
    assert not lake.files.exists()
    assert lake.exists is not is_new


def test_other_partitions_than_those_of_the_table_are_refused(
    lake: DuckLake, store: SqlManifestStore
) -> None:
    query = by(lake, "KEY")
    query.run(store, query.batch(0), rows("a"))
    other = by(lake, "id")
    with pytest.raises(ConfigurationError, match="is partitioned by key"):
        other.plan(store, other.batch(1), rows("a").schema)
    with pytest.raises(ConfigurationError, match="sortWithin"):
        Query(lake, options={"partitionBy": "key", "sortWithin": "key"}).sink()


def test_a_folder_of_the_data_path_with_the_name_of_a_column_is_refused(
    tmp_path: Path, store: SqlManifestStore
) -> None:
    """DuckLake would read the value of the first folder `key=...` of the path."""
    lake = replace(sqlite_lake(tmp_path), folder=tmp_path / "Key=x")
    query = by(lake, "key")
    with pytest.raises(TableNotSupportedError, match="take the folder Key=x of the path"):
        query.run(store, query.batch(0), rows("a"))
    plain = Query(lake, options={"table": "main.plain"})
    plain.run(store, plain.batch(0), rows("a"))
    assert lake.sql("SELECT key FROM plain") == [("a",)]

    other = Query(lake, options={"partitionBy": "day", "schemaEvolution": "addColumns"})
    other.run(store, other.batch(0), ids(1).append_column("day", pa.array([2])))
    with pytest.raises(TableNotSupportedError, match="take the folder Key=x of the path"):
        other.plan(store, other.batch(1), rows("a").append_column("day", pa.array([2])).schema)
    assert lake.sql("SELECT id, day FROM events") == [(1, 2)]


def test_small_files_are_rewritten_within_their_partition(lake: DuckLake, store: SqlManifestStore) -> None:
    query = by(lake, "key")
    manifest = query.prepare(store, query.batch(0), rows("a", "b"), rows("a", "b"))
    content, target = decode(manifest), query.target()
    assert isinstance(target, DuckLakeTarget)
    config = target.rewrite_config(content)
    assert config is not None
    groups = choose_groups(content.files, config.target_file_bytes)
    assert [len(group.sources) for group in groups] == [2, 2]
    (file,) = rewrite_group(config, FileNames("q1", "r", 0, 0, 0), groups[0])
    assert (file.partition_values, file.rows) == (groups[0].partition, 2)
    assert file.path.startswith("key=a/")


def test_maintenance_does_not_merge_files_with_partitions(lake: DuckLake, store: SqlManifestStore) -> None:
    """duckdb merges them once, and then fails on its own merged file."""
    query = by(lake, "key")
    for number in range(3):
        query.run(store, query.batch(number), rows("a"))
    server = LakeServer(DuckLakeAddress(DuckLakeCatalog.parse(lake.catalog), "main", "events"))
    assert merge_files(server) == 0
    assert len(lake.named()) == 3
