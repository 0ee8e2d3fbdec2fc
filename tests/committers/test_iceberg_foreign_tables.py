"""Batches into tables of Iceberg's Java library are appended as the properties of the table require.

Each table gets its own rows a second time: every reader has to find them twice, and the partitions and
metrics that Java wrote can be compared.
"""

from __future__ import annotations

import random
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType
from tests.support.catalogs import StoredQuery
from tests.support.foreign_iceberg import NAMES, data_files, exact_doubles, load, partition_rows
from tests.support.iceberg_tables import field_ids
from tests.support.lakes import IcebergLake
from tests.support.query import Query, Written
from tests.support.readers import duckdb_with_iceberg

from penstock.committers.errors import TableNotSupportedError

REFUSED = {
    "format_v3": (TableNotSupportedError, r"format version 3: .*Way out: use a table of format version 2")
}
WRITTEN = [name for name in NAMES if name not in REFUSED]

UNREADABLE = {"equality_deletes"}
"""pyiceberg and polars cannot read them."""
WRONG_IN_PYICEBERG = {"nested"}
"""pyiceberg reads NULL lists and maps of structs as empty ones."""


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb_with_iceberg() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


# The tables and their rows -----------------------------------------------------------------------------


Row = dict[str, Any]


def by_duckdb(
    engine: duckdb.DuckDBPyConnection, table: Table, where: str = "true", *values: Any
) -> list[Row]:
    scan = f"SELECT * FROM iceberg_scan('{table.metadata_location}') WHERE {where}"
    found = engine.execute(scan, values)
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def by_polars(table: Table, *where: pl.Expr) -> list[Row]:
    """By polars's own reader of Parquet, which skips files by their bounds and partitions.

    It has those from pyiceberg, which is kept here from reading doubles as floats.
    """
    frame = pl.scan_iceberg(table, reader_override="native")
    with exact_doubles():
        return (frame.filter(*where) if where else frame).collect().to_dicts()


def by_pyiceberg(table: Table) -> list[Row]:
    return table.scan().to_arrow().to_pylist()


def counted(rows: list[Row], times: int = 1) -> Counter[str]:
    """Independent of how readers represent time zones and maps."""
    texts = Counter(re.sub(r"tzinfo=\S+\)", "UTC)", repr(_plain(row))) for row in rows)
    return Counter({text: count * times for text, count in texts.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"key", "value"}:
            return value["key"], _plain(value["value"])
        return sorted((key, _plain(inner)) for key, inner in value.items())
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def as_spark_has_them(rows: list[Row], table: Table) -> pa.Table:
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)

    def represented(field: pa.Field, value: Any) -> Any:
        return list(value.items()) if pa.types.is_map(field.type) and value is not None else value

    plain = [{field.name: represented(field, row[field.name]) for field in schema} for row in rows]
    return pa.Table.from_pylist(plain, schema=schema)


def query_into(name: str, folder: Path, **options: str) -> StoredQuery:
    lake = IcebergLake(folder, f"foreign.{name}", options.pop("branch", "main"))
    return StoredQuery(Query(lake, "q", options), f"sqlite:///{folder}/store.db")


@dataclass
class Filled:
    """A table whose rows a batch has added a second time."""

    name: str
    before: Table
    after: Table
    rows: list[Row]
    java_files: list[DataFile]
    written: Written

    @cached_property
    def new_files(self) -> list[DataFile]:
        old = {file.file_path for file in self.java_files}
        return [file for file in data_files(self.after) if file.file_path not in old]


@pytest.fixture(scope="module", params=WRITTEN)
def filled(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    engine: duckdb.DuckDBPyConnection,
) -> Filled:
    """Java's manifests are merged with ours: they are written again, and their content must not change."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    table = load(name, folder)
    table.transaction().set_properties({"commit.manifest.min-count-to-merge": "2"}).commit_transaction()
    rows = by_duckdb(engine, table)
    query = query_into(name, folder)
    written = query.run(0, as_spark_has_them(rows, table))
    after = query.catalog_in_use().load_table(table.name())
    return Filled(name, table, after, rows, data_files(table), written)


def test_every_reader_finds_old_and_new_rows(filled: Filled, engine: duckdb.DuckDBPyConnection) -> None:
    expected = counted(filled.rows, times=2)
    assert counted(by_duckdb(engine, filled.after)) == expected
    if filled.name in UNREADABLE:
        with pytest.raises(ValueError, match="equality deletes"):
            by_pyiceberg(filled.after)
        return
    assert counted(by_polars(filled.after)) == expected
    if filled.name not in WRONG_IN_PYICEBERG:
        assert counted(by_pyiceberg(filled.after)) == expected


def test_filters_find_the_old_rows_and_the_new(filled: Filled, engine: duckdb.DuckDBPyConnection) -> None:
    schema = filled.after.schema()
    sources = {schema.find_column_name(part.source_id) for part in filled.after.spec().fields}
    for field in schema_to_pyarrow(schema, include_field_ids=False):
        if pa.types.is_nested(field.type) or (filled.name in TRANSFORMED and field.name not in sources):
            continue
        for value in {row[field.name]: None for row in filled.rows}:
            expected = 2 * sum(row[field.name] == value for row in filled.rows)
            if value is None:
                assert len(by_duckdb(engine, filled.after, f'"{field.name}" IS NULL')) == expected
                continue
            if value != value:  # readers do not agree what equals NaN
                continue
            if not is_wrong_in_duckdb(filled.name, field.name, value):
                assert len(by_duckdb(engine, filled.after, f'"{field.name}" = ?', value)) == expected, value
            if filled.name not in UNREADABLE:
                assert len(by_polars(filled.after, pl.col(field.name) == pl.lit(value))) == expected, value


TRANSFORMED = {"bucket", "truncate", "year", "month", "day", "hour"}
"""All with the same columns."""


WRONG_IN_DUCKDB = [
    ("month", "ts = TIMESTAMP '1969-12-31 23:00:00'"),
    ("day", "ts = TIMESTAMP '1969-12-31 23:00:00'"),
    ("day", "tz = TIMESTAMPTZ '1969-12-31 23:59:59.999999Z'"),
    ("truncate", "d = -1.28"),
    ("truncate", "s = 'e\u0301te\u0301'"),
    ("truncate", "wide = 9999999999999999999999999999.9999999999"),
]


def is_wrong_in_duckdb(table: str, column: str, value: Any) -> bool:
    """Because of its partition pruning."""
    if table in ("month", "day") and isinstance(value, datetime):
        return value.replace(tzinfo=None) < datetime(1970, 1, 1)  # noqa: DTZ001
    if table != "truncate":
        return False
    if column == "s":
        return "\u0301" in value
    return (column == "d" and value < 0) or (column == "wide" and abs(value) > 10**27)


@pytest.mark.parametrize(("name", "where"), WRONG_IN_DUCKDB)
def test_duckdb_misses_the_same_rows_in_javas_own_tables(tmp_path: Path, name: str, where: str) -> None:
    """If it finds them one day, `is_wrong_in_duckdb` can be reduced."""
    table = load(name, tmp_path)
    with duckdb_with_iceberg() as engine:
        try:
            assert by_duckdb(engine, table, where) == []
        except duckdb.InternalException as error:
            assert "Information loss on integer cast" in str(error)  # noqa: PT017


# What the metadata says --------------------------------------------------------------------------------


def test_a_row_is_in_the_partition_that_java_put_it_into(filled: Filled) -> None:
    """For rows that Java wrote with the current partitioning."""
    spec = filled.after.spec()
    javas = {
        repr(row): partition for row, partition, of in partition_rows(filled.before) if of == spec.spec_id
    }
    compared = 0
    for file in filled.new_files:
        partition = tuple(file.partition[at] for at in range(len(spec.fields)))
        for text in content(file):
            assert repr(partition) == repr(javas.get(text, partition)), text
            compared += text in javas
    assert compared
    assert {file.spec_id for file in filled.new_files} == {spec.spec_id}
    voids = [at for at, part in enumerate(spec.fields) if str(part.transform) == "void"]
    assert all(file.partition[at] is None for file in filled.new_files for at in voids)


METRICS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
SPLIT_OTHERWISE = {
    *("equality_deletes", "evolved_schema", "name_mapped", "position_deletes", "upgraded_from_v1"),
}
"""No file of the batch has just the rows of one of Java's."""


def test_metrics_of_a_file_are_those_of_javas_file_with_the_same_rows(filled: Filled) -> None:
    """We also count in lists and maps, and write no upper bound with a NaN, nor one of -0.0, and no number of
    NaNs where no other value is, by which Iceberg would not find them.
    """
    schema = filled.after.schema()
    leaves = {column: schema.find_type(column) for column in schema.field_ids}
    repeated = {
        column
        for column, kind in leaves.items()
        if kind.is_primitive and re.search(r"\.(element|key|value)\b", schema.find_column_name(column) or "")
    }
    negative_zero = {struct.pack("<f", -0.0), struct.pack("<d", -0.0)}
    javas = {content(file): file for file in filled.java_files}
    same = [(file, javas[content(file)]) for file in filled.new_files if content(file) in javas]
    assert bool(same) is (filled.name not in SPLIT_OTHERWISE)
    for ours, java in same:
        for kind in METRICS:
            found, expected = dict(getattr(ours, kind) or {}), dict(getattr(java, kind) or {})
            if kind == "upper_bounds":
                with_nan = {column for column, count in ours.nan_value_counts.items() if count}
                expected = {
                    column: bytes(len(bound))
                    if isinstance(leaves[column], FloatType | DoubleType) and bound in negative_zero
                    else bound
                    for column, bound in expected.items()
                    if column not in with_nan
                }
            if kind == "nan_value_counts":
                values, nulls = java.value_counts, java.null_value_counts
                expected = {
                    column: nans
                    for column, nans in expected.items()
                    if not nans or nans < values[column] - nulls.get(column, 0)
                }
            assert {column: found[column] for column in found if column not in repeated} == expected, kind


def content(file: DataFile) -> tuple[str, ...]:
    rows = pq.read_table(local(file.file_path), partitioning=None).to_pylist()
    return tuple(sorted(map(repr, rows)))


def local(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def test_merging_manifests_changes_nothing_of_javas_files(filled: Filled) -> None:
    """The statistics and partitions of each file are the same."""
    after = {file.file_path: described(file) for file in data_files(filled.after)}
    for file in filled.java_files:
        assert after[file.file_path] == described(file)


def described(file: DataFile) -> tuple[Any, ...]:
    partition = [file.partition[at] for at in range(len(file.partition))]
    metrics = [dict(getattr(file, kind) or {}) for kind in (*METRICS, "column_sizes")]
    size = (file.record_count, file.file_size_in_bytes)
    return repr(partition), metrics, size, file.spec_id, file.split_offsets


def test_files_have_the_tables_field_ids(filled: Filled) -> None:
    expected = field_ids(schema_to_pyarrow(filled.after.schema(), include_field_ids=True))
    for file in filled.new_files:
        assert field_ids(pq.read_schema(local(file.file_path))) == expected


def test_the_table_itself_stays_as_it_is(filled: Filled) -> None:
    before, after = filled.before.metadata, filled.after.metadata
    assert after.format_version == before.format_version
    assert after.schemas == before.schemas
    assert after.current_schema_id == before.current_schema_id
    assert after.partition_specs == before.partition_specs
    assert after.default_spec_id == before.default_spec_id
    assert after.sort_orders == before.sort_orders
    assert {name: value for name, value in after.properties.items() if name != "penstock.q"} == dict(
        before.properties
    )
    others = {name: ref for name, ref in before.refs.items() if name != "main"}
    assert {name: ref for name, ref in after.refs.items() if name != "main"} == others


# Refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_tables_are_refused_by_name(
    tmp_path: Path, engine: duckdb.DuckDBPyConnection, name: str, overwrite: bool
) -> None:
    table = load(name, tmp_path)
    files = set(tmp_path.rglob("*.parquet"))
    kind, message = REFUSED[name]
    rows = as_spark_has_them(by_duckdb(engine, table), table)
    with pytest.raises(kind, match=re.compile(message, re.DOTALL)):
        query_into(name, tmp_path).write(0, rows, overwrite=overwrite)
    assert set(tmp_path.rglob("*.parquet")) == files
    assert reload(table).metadata_location == table.metadata_location


def reload(table: Table) -> Table:
    return table.catalog.load_table(table.name())


# Overwrite ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("branched", "copy_on_write", "evolved_schema", "evolved_spec", "name_mapped", "plain_v1"),
        *("position_deletes", "replaced", "rolled_back", "truncate", "upgraded_from_v1", "void_v1"),
    ],
)
def test_an_overwrite_removes_old_rows(tmp_path: Path, engine: duckdb.DuckDBPyConnection, name: str) -> None:
    """No old row, delete or file of another partitioning is visible. Other branches do not change."""
    table = load(name, tmp_path)
    rows = by_duckdb(engine, table)[:2]
    query_into(name, tmp_path).run(0, as_spark_has_them(rows, table), overwrite=True)
    after = reload(table)
    assert counted(by_duckdb(engine, after)) == counted(rows)
    assert counted(by_polars(after)) == counted(rows)
    for branch in set(table.metadata.refs) - {"main"}:
        snapshot_id = table.metadata.refs[branch].snapshot_id
        scan = "SELECT count(*) FROM iceberg_scan('{}', snapshot_from_id={})"
        counts = [
            engine.execute(scan.format(one.metadata_location, snapshot_id)).fetchall()
            for one in (table, after)
        ]
        assert counts[0] == counts[1] != [(0,)]


def test_equality_deletes_spare_later_overwrites(tmp_path: Path, engine: duckdb.DuckDBPyConnection) -> None:
    """Rows with the value that was deleted may come again."""
    table = load("equality_deletes", tmp_path)
    rows = [{"id": 1, "name": "b"}, {"id": 2, "name": "z"}]
    query_into("equality_deletes", tmp_path).run(0, as_spark_has_them(rows, table), overwrite=True)
    assert counted(by_duckdb(engine, reload(table))) == counted(rows)
    assert counted(by_polars(reload(table))) == counted(rows)


def test_rows_equal_to_deleted_ones_are_appended(tmp_path: Path, engine: duckdb.DuckDBPyConnection) -> None:
    for name, deleted in (
        ("equality_deletes", {"id": 2, "name": "b"}),
        ("position_deletes", {"id": 5, "name": "n"}),
    ):
        table = load(name, tmp_path)
        assert deleted not in by_duckdb(engine, table)
        query_into(name, tmp_path).run(0, as_spark_has_them([deleted], table))
        assert by_duckdb(engine, reload(table)).count(deleted) == 1


# Changes -----------------------------------------------------------------------------------------------


CHANGED = [name for name in WRITTEN if name not in {*UNREADABLE, "all_types", "identity"}]
"""The table `identity` has a double in its partitions, and `all_types` no key."""


@pytest.mark.parametrize("merge", ["on-read", "on-write"])
@pytest.mark.parametrize("name", CHANGED)
def test_rows_of_java_are_replaced_by_key(
    tmp_path: Path, engine: duckdb.DuckDBPyConnection, name: str, merge: str
) -> None:
    """Under all types, partitionings and earlier schemas. The others stay as they are."""
    table = load(name, tmp_path)
    rows = by_duckdb(engine, table)
    given = {row["id"]: row for row in rows if row["id"] is not None and row["id"] % 2}
    query = query_into(name, tmp_path, writeMode="upsert", keys="id", merge=merge)
    if table.format_version == 1 and merge == "on-read":
        with pytest.raises(TableNotSupportedError, match="has no delete files"):
            query.run(0, as_spark_has_them(list(given.values()), table))
        return
    if (name, merge) == ("name_mapped", "on-write"):
        with pytest.raises(TableNotSupportedError, match="has no field ids"):
            query.run(0, as_spark_has_them(list(given.values()), table))
        return
    query.run(0, as_spark_has_them(list(given.values()), table))
    after, kept = reload(table), [row for row in rows if row["id"] not in given]
    assert after.metadata.current_snapshot_id != table.metadata.current_snapshot_id
    assert counted(by_duckdb(engine, after)) == counted([*kept, *given.values()])
    assert counted(by_polars(after)) == counted([*kept, *given.values()])


@pytest.mark.parametrize("name", ["bucket", "truncate"])
@pytest.mark.parametrize("key", ["i", "l", "d", "wide", "s", "bin", "day", "ts", "tz"])
def test_values_of_each_type_are_keys(
    tmp_path: Path, engine: duckdb.DuckDBPyConnection, name: str, key: str
) -> None:
    """The last row of each key by `id` replaces all rows that have it. NULL is no key."""
    table = load(name, tmp_path)
    rows = sorted(by_duckdb(engine, table), key=lambda row: row["id"])
    given = {row[key]: row for row in rows if row[key] is not None}
    query = query_into(name, tmp_path, writeMode="upsert", keys=key, orderBy="id", merge="on-read")
    query.run(0, as_spark_has_them([row for row in rows if row[key] is not None], table))
    expected = [*given.values(), *(row for row in rows if row[key] is None)]
    assert counted(by_duckdb(engine, reload(table))) == counted(expected)


# Branches ----------------------------------------------------------------------------------------------


def test_a_branch_of_java_is_written_without_main(tmp_path: Path, engine: duckdb.DuckDBPyConnection) -> None:
    table = load("branched", tmp_path)
    main = table.metadata.refs["main"]
    row = {"id": 5, "name": "e"}
    query_into("branched", tmp_path, branch="audit").run(0, as_spark_has_them([row], table))
    after = reload(table)
    assert after.metadata.refs["main"] == main
    snapshot_id = after.metadata.refs["audit"].snapshot_id
    scan = (
        f"SELECT id FROM iceberg_scan('{after.metadata_location}', snapshot_from_id={snapshot_id}) ORDER BY 1"
    )
    assert engine.execute(scan).fetchall() == [(1,), (2,), (3,), (4,), (5,)]


# How the files are written -----------------------------------------------------------------------------


def test_rows_are_sorted_within_each_row_group_by_the_sort_order(tmp_path: Path) -> None:
    table = load("sorted", tmp_path)
    generator = random.Random(1)
    names = [None, "", "a", "ab", "b", "ba", "zz"]
    start = datetime(2026, 1, 1, tzinfo=timezone.utc)
    rows = [
        {
            "id": generator.choice([None, *range(5)]),
            "name": generator.choice(names),
            "ts": generator.choice([None, *(start + timedelta(hours=30 * n) for n in range(3))]),
        }
        for _ in range(200)
    ]
    written = query_into("sorted", tmp_path, rowGroupRows="60").run(0, as_spark_has_them(rows, table))

    def key(row: Row) -> tuple[Any, ...]:
        name, identifier, ts = row["name"], row["id"], row["ts"]
        descending = (1,) if name is None else (0, *(-ord(letter) for letter in name[:1]), 1)
        ascending = (identifier is not None, identifier or 0)
        return descending, ascending, (ts is not None, ts and ts.date())

    assert [key(row) for row in rows] != sorted(key(row) for row in rows)
    groups = row_groups(table, written)
    assert len(groups) == 4
    for group in groups:
        assert [key(row) for row in group] == sorted(key(row) for row in group)


def test_rows_are_sorted_within_partitions_by_the_sort_order(tmp_path: Path) -> None:
    table = load("sorted_within_partitions", tmp_path)
    generator = random.Random(1)
    rows = [
        {"id": generator.randrange(20), "name": generator.choice([None, "a", "b", "c"])} for _ in range(100)
    ]
    written = query_into("sorted_within_partitions", tmp_path).run(0, as_spark_has_them(rows, table))
    groups = row_groups(table, written)
    assert len(groups) == 2
    for group in groups:
        keys = [(row["name"] is not None, -ord(row["name"] or " "), row["id"]) for row in group]
        assert keys == sorted(keys)


def row_groups(table: Table, written: Written) -> list[list[Row]]:
    found = []
    for committable in written.committables:
        for file in committable.payload or ():
            parquet = pq.ParquetFile(local(f"{table.location()}/data/{file.path}"))
            found += [parquet.read_row_group(at).to_pylist() for at in range(parquet.num_row_groups)]
    return found


def test_write_properties_are_followed(tmp_path: Path, engine: duckdb.DuckDBPyConnection) -> None:
    """Target size 1 MiB, row groups of 256 KiB, pages of 64 KiB, zstd, and a Bloom filter of `name`."""
    table = load("write_properties", tmp_path)
    generator = random.Random(1)
    names = [generator.randbytes(20).hex() for _ in range(60_000)]
    rows = pa.table({"id": pa.array(range(60_000), pa.int64()), "name": names})
    written = query_into("write_properties", tmp_path).run(0, rows)
    files = written.files
    assert len(files) >= 2
    assert all(file.size_bytes < 1.4 * 2**20 for file in files)
    for file in files[:-1]:
        assert file.size_bytes > 0.8 * 2**20
    path = local(f"{table.location()}/data/{files[0].path}")
    columns = engine.execute(
        "SELECT path_in_schema, row_group_id, compression, total_compressed_size, bloom_filter_offset "
        "FROM parquet_metadata(?)",
        [str(path)],
    ).fetchall()
    assert {compression for _, _, compression, _, _ in columns} == {"ZSTD"}
    sizes: Counter[int] = Counter()
    for _, group, _, size, _ in columns:
        sizes[group] += size
    assert len(sizes) >= 3
    assert max(sizes.values()) < 1.5 * 2**18
    assert {name for name, *_, bloom in columns if bloom is not None} == {"name"}
    probe = "SELECT bool_or(NOT bloom_filter_excludes) FROM parquet_bloom_probe(?, 'name', ?)"
    assert engine.execute(probe, [str(path), names[5]]).fetchall() == [(True,)]
    assert engine.execute(probe, [str(path), "not there"]).fetchall() == [(False,)]
    found = by_duckdb(engine, reload(table), "name = ?", names[-1])
    assert [row["id"] for row in found] == [59_999]


def test_files_follow_the_object_storage_layout(tmp_path: Path) -> None:
    table = load("object_storage", tmp_path)
    rows = [{"id": 7, "name": name} for name in "abcd"]
    written = query_into("object_storage", tmp_path).run(0, as_spark_has_them(rows, table))
    files = written.files
    assert len(files) == 4
    for file in files:
        assert re.fullmatch(r"[01]{4}/[01]{4}/[01]{4}/[01]{8}/name=[abcd]/penstock-[^/]*", file.path)
        assert local(f"{table.location()}/objects/{file.path}").exists()
    assert len({file.path[:23] for file in files}) == 4


# Doubles -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_left", [False, True])
def test_doubles_in_partitions_stay(tmp_path: Path, engine: duckdb.DuckDBPyConnection, is_left: bool) -> None:
    """pyiceberg reads them from manifests as floats: merged manifests would lose rows to pruning.

    Be it the present partitioning that has them or one that the table has left.
    """
    table = load("identity", tmp_path)
    table.transaction().set_properties({"commit.manifest.min-count-to-merge": "2"}).commit_transaction()
    if is_left:
        with table.update_spec() as update:
            update.remove_field("dbl")
    query = query_into("identity", tmp_path)
    for batch_id in range(5):
        query.run(batch_id, pa.table({"id": pa.array([10 + batch_id], pa.int32()), "dbl": [0.1], "s": ["x"]}))
    after = reload(table)
    doubles = [file.partition[4] for file in data_files(after) if file.spec_id == 0]
    assert sorted(map(repr, doubles)) == ["-0.1", *["0.1"] * (0 if is_left else 5), "None", "nan"]
    assert [row["id"] for row in by_duckdb(engine, after, "dbl = -0.1")] == [1]
    assert sorted(row["id"] for row in by_duckdb(engine, after, "dbl = 0.1")) == [10, 11, 12, 13, 14]
    assert len(by_duckdb(engine, after)) == 8
    assert "commit.manifest-merge.enabled" not in after.properties
