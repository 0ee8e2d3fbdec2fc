"""Upserts and deletes by key into Iceberg tables. A dictionary of rows decides; DuckDB and pyiceberg read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import DecimalType, LongType, StringType
from servers.s3 import BUCKET, s3_names, s3_properties
from tests.support.foreign_iceberg import load as load_foreign
from tests.support.iceberg_changes import (
    TABLE,
    UPSERT,
    Changed,
    Place,
    Row,
    Versioned,
    engine,
    foreign_deletes,
    remove,
    row,
    table_of,
    without_column,
)
from tests.support.lakes import IcebergLake

from penstock.committers.contract import (
    AlreadyCommitted,
    Committed,
    Conflict,
    Manifest,
    ManifestState,
    Token,
)
from penstock.committers.errors import SchemaMismatchError, TableNotSupportedError
from penstock.committers.iceberg.committer import IcebergTableCommitter
from penstock.committers.iceberg.expiry import ExpiryPolicy, SnapshotExpiry
from penstock.committers.iceberg.position_deletes import PATH_ID
from penstock.committers.store.sql import SqlManifestStore, open_store_in_memory
from penstock.datasource.destinations import paths_of
from penstock.datasource.stored.stored_table import HasContents, TableContents
from penstock.testing.conformance.query import Query
from penstock.testing.faults import at_point, crash_at, lossy


@pytest.fixture
def store() -> Iterator[SqlManifestStore]:
    with open_store_in_memory() as store:
        yield store


@pytest.fixture
def changed(tmp_path: Path, store: SqlManifestStore) -> Changed:
    """With rows 0 to 9."""
    changed = Changed(tmp_path, store)
    changed.change([row(number, 0) for number in range(10)])
    return changed


def opened_by(act: Callable[[], object]) -> list[object]:
    """The data files that are opened meanwhile."""
    read: list[object] = []
    real = pq.ParquetFile.__init__

    def opened(parquet: pq.ParquetFile, source: object, **options: Any) -> None:
        read.append(source)
        real(parquet, source, **options)

    with mock.patch.object(pq.ParquetFile, "__init__", opened):
        act()
    return read


# The model ----------------------------------------------------------------------------------------------

KEYS = ("k", "s", "d", "s,k", "d,s")
SPECS = ("", "bucket(3, k)", "day(ts)", "s, day(ts)", "truncate(1, d)")


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param(
            kind,
            seed,
            marks=[] if seed < few else [pytest.mark.slow if seed < few + 3 else pytest.mark.campaign],
        )
        for kind, few in ((Changed, 3), (Versioned, 1))
        for seed in range(12)
    ],
)
def test_the_table_equals_the_model(
    kind: type[Changed], tmp_path: Path, store: SqlManifestStore, seed: int
) -> None:
    """Duplicates, late rows, deletes of unknown keys, keys that move between partitions, other writers,
    conflicts, lost responses, crashes and several batches in one delivery.
    """
    rng = random.Random(seed)
    late = rng.choice(["apply", "ignore"]) if kind is Changed else "apply"
    options = {"lateRows": late, "partitionSpec": SPECS[seed % len(SPECS)]}
    if merge := rng.choice(["", "on-read", "on-write"]):
        options["merge"] = merge
    changed = kind(tmp_path, store, KEYS[rng.randrange(len(KEYS))], options)
    clock, crashed = 0, set[str]()
    free = [name for name in ("s", "d", "ts") if name not in changed.keys.split(",")]
    is_partial = rng.random() < 0.6 and kind is Changed
    if is_partial:  # "ts" is kept by some of the rows, too
        options["updateColumns"] = "given"

    def partly(one: Row) -> Row:
        return {**one, **{name: None for name in free if is_partial and rng.random() < 0.4}}

    changed.change([row(number, 0) for number in range(12)])
    for _ in range(8):
        parts: list[list[Row]] = [[], [], []]
        for _ in range(rng.randrange(1, 25)):
            clock += 1
            v = clock if rng.random() < 0.8 else -clock
            one = row(rng.randrange(16), v, op=rng.choice("uuud"), day=rng.randrange(3))
            parts[rng.randrange(3)].append(partly(one))
        event = rng.randrange(8)
        known = (
            30 + clock if is_partial or kind is Versioned else rng.randrange(16)
        )  # two rows of a key have no one value
        if event == 0:
            changed.append(row(known, -1000 - clock), row(50 + clock, 0))
        elif event == 1:
            changed.delete(*rng.sample(range(16), 3))
        if event == 2:
            appended = row(known, 0)
            parts[0].append(partly(row(known, clock + 1)))
            conflict = changed.prepare(*parts)
            with at_point("commit.start", lambda: changed.append(appended)):  # noqa: B023  called here
                assert isinstance(changed.query.target().commit(conflict), Conflict)
            changed.query.recover(store)
            changed.expect([one for part in parts for one in part])
        elif event == 3:
            changed.prepare(*parts)
            with crash_at("commit.landed"):
                changed.query.recover(store)
            crashed |= changed.stored("keys")
            changed.query.recover(store)
            changed.expect([one for part in parts for one in part])
        elif event == 7:
            changed.compact(files_min=4)
            changed.change(*parts)
        elif event == 4:
            manifest = changed.prepare(*parts)
            with lossy(SqlCatalog, "commit_table", "response", ConnectionError("lost")):
                changed.query.target().commit(manifest)
            changed.query.recover(store)
            changed.expect([one for part in parts for one in part])
        else:
            changed.change(*parts)
        changed.check_one_delete_file_each()
    changed.check()
    assert changed.stored("keys") == crashed, "clean-up finds them"


def test_batches_of_a_delivery_are_merged_by_key(changed: Changed) -> None:
    batches = [
        [row(1, 1), row(20, 1)],
        [row(1, 2, op="d"), row(2, 2)],
        [row(20, 3), row(2, 3, op="d"), row(3, 3)],
    ]
    query, manifests = changed.query, []
    for number, rows in enumerate(batches, changed.batches):
        manifests.append(query.build(changed.store, query.batch(number), table_of(rows)))
    target: Any = query.target()
    merged = target.merge(manifests, None).merging(manifests)
    assert isinstance(target.commit(merged), Committed)
    for rows in batches:
        changed.expect(rows)
    changed.check()
    assert isinstance(query.target().commit(manifests[-1]), AlreadyCommitted)


# How rows are masked --------------------------------------------------------------------------------------


def test_a_data_file_has_one_delete_file(changed: Changed) -> None:
    """The second commit replaces it, and removes it in the same snapshot."""
    changed.change([row(1, 1), row(2, 1)])
    first, *_ = changed.deletes()
    changed.change([row(3, 2)])
    second, *others = changed.deletes()
    assert not others
    assert second.record_count == 3
    assert second.file_path != first.file_path
    assert second.lower_bounds[PATH_ID] == second.upper_bounds[PATH_ID]
    summary = changed.lake.head.summary
    assert summary is not None
    assert summary["total-position-deletes"] == "3"
    assert summary["removed-position-delete-files"] == "1"
    changed.check()


def test_rows_of_a_batch_that_lose_are_masked_in_its_own_commit(changed: Changed) -> None:
    changed.change([row(20, 1), row(21, 1)], [row(20, 2), row(22, 2)])
    assert [file.record_count for file in changed.deletes()] == [1]
    changed.check()


def test_a_data_file_without_rows_is_removed(changed: Changed) -> None:
    changed.change([row(number, 1, op="d") for number in range(5)])
    changed.change([row(number, 2, op="d") for number in range(5, 10)])
    assert not changed.data()
    assert not changed.deletes()
    assert changed.lake.head.summary is not None
    assert changed.lake.head.summary.operation is Operation.DELETE
    changed.check()


def test_a_batch_of_new_keys_is_an_append(changed: Changed) -> None:
    """Readers of increments go on."""
    changed.change([row(number, 1) for number in range(20, 25)])
    assert changed.lake.head.summary is not None
    assert changed.lake.head.summary.operation is Operation.APPEND
    changed.check()


def test_delete_files_of_others_count_and_stay(changed: Changed) -> None:
    """Their rows are not masked again, and the file itself may have rows of other data files."""
    changed.append(row(30, 0), row(31, 0))
    changed.delete(1, 2, 30)
    (foreign,) = changed.deletes()
    changed.change([row(1, 1), row(3, 1), row(31, 1)])
    own = [file for file in changed.deletes() if file.file_path != foreign.file_path]
    assert len(changed.deletes()) == len(own) + 1
    assert sum(file.record_count for file in own) == 1, "row 3; the file with 31 has no rows left"
    changed.check()


def test_delete_files_without_their_data_file_are_removed(changed: Changed) -> None:
    """Others rewrite data files and leave them behind."""
    changed.change([row(1, 1)])
    changed.lake.compact()
    (left,) = changed.deletes()
    changed.change([row(2, 2)])
    assert left.file_path not in {file.file_path for file in changed.deletes()}
    changed.check_one_delete_file_each()
    changed.check()


def test_delete_files_do_not_apply_to_a_data_file_that_was_added_again(changed: Changed) -> None:
    """It is newer than they are: the row that they deleted is back, and is found. DuckDB 1.5.5 is wrong."""
    (file,) = changed.data()
    changed.change([row(1, 1, op="d")])
    remove(changed.table(), file)
    table = changed.table()
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(file)
    changed.rows.append(row(1, 0))
    assert changed.table().scan().to_arrow().num_rows == 10
    changed.change([row(1, 2)])
    changed.check()


def test_rows_under_an_older_partitioning_are_found(changed: Changed) -> None:
    with changed.table().update_spec() as update:
        update.add_identity("s")
    changed.change([row(1, 1), row(2, 1, op="d")])
    changed.change([row(1, 2), row(3, 2)])
    assert {file.spec_id for file in changed.deletes()} == {0}
    changed.check()


@pytest.mark.parametrize("when", ["before the plan", "after the plan"])
def test_columns_are_found_by_their_id(changed: Changed, when: str) -> None:
    """The key was renamed, and another column has its old name."""

    def rename() -> None:
        with changed.table().update_schema() as update:
            update.rename_column("k", "number")
        with changed.table().update_schema() as update:
            update.add_column("k", LongType())

    query, rows = changed.query, table_of([row(1, 1), row(2, 1, op="d")])
    if when == "before the plan":
        rename()
        query = query.with_options(keys="number")
        rows = rows.rename_columns(["number", *rows.column_names[1:]])
    manifest = query.prepare(changed.store, query.batch(1), rows)
    if when == "after the plan":
        rename()
    assert isinstance(query.target().commit(manifest), Committed)
    found = changed.table().scan().to_arrow().select(["number", "v"]).to_pylist()
    assert sorted(tuple(one.values()) for one in found) == [(0, 0), (1, 1), *((n, 0) for n in range(3, 10))]


def test_a_key_column_that_others_drop_is_an_error(changed: Changed) -> None:
    manifest = changed.prepare([row(1, 1)])
    with changed.table().update_schema() as update:
        update.delete_column("k")
    with pytest.raises(SchemaMismatchError, match="'k'"):
        changed.query.target().commit(manifest)


def test_keys_in_the_last_positions_of_large_files_are_found(changed: Changed) -> None:
    changed.change([row(number, 1) for number in range(100, 3000)])
    changed.change([row(number, 2, op="d") for number in range(2990, 3000)])
    changed.check()


def test_keys_are_compared_with_wider_columns(tmp_path: Path, store: SqlManifestStore) -> None:
    """The column was widened while the batch waited, and has values now that its old type cannot have."""
    schema = pa.schema([("k", pa.int32()), ("d", pa.decimal128(5, 2)), ("v", pa.int64())])
    lake, query = (
        IcebergLake(tmp_path),
        Query(Place({"warehouse": str(tmp_path), "table": "lake.ids", "writeMode": "upsert", "keys": "k,d"})),
    )
    values = [pa.array([1, 2], pa.int32()), pa.array([1, 2], pa.decimal128(5, 2)), pa.array([0, 0])]
    query.run(store, query.batch(0), pa.table(values, schema=schema))
    manifest = query.prepare(store, query.batch(1), pa.table([*values[:2], pa.array([1, 1])], schema=schema))
    with lake.load().update_schema() as update:
        update.update_column("k", LongType())
        update.update_column("d", DecimalType(9, 2))
    others = Query(Place(lake.options), "others")
    wide = [pa.array([1, 2**40]), pa.array([1, 99999], pa.decimal128(9, 2)), pa.array([5, 6])]
    others.run(store, others.batch(0), pa.table(wide, names=schema.names))
    assert isinstance(query.target().commit(manifest), Committed)
    found = (
        engine().execute(f"SELECT k, v FROM iceberg_scan('{lake.metadata_location}') ORDER BY k").fetchall()
    )
    assert found == [(1, 1), (2, 1), (2**40, 6)]


@pytest.mark.parametrize("option", ["updateColumns", "history"])
def test_rows_are_computed_with_wider_columns(tmp_path: Path, store: SqlManifestStore, option: str) -> None:
    """As above, for the older rows of a key and for the times of its versions."""
    options = {"writeMode": "upsert", "keys": "k", "orderBy": "v"}
    options |= {option: "given" if option == "updateColumns" else "true"}
    lake = IcebergLake(tmp_path)
    query = Query(Place({"warehouse": str(tmp_path), "table": "lake.ids", **options}))
    schema = pa.schema([("k", pa.int32()), ("v", pa.int32()), ("s", pa.string())])

    def rows(*some: tuple[int, int, str | None]) -> pa.Table:
        columns = zip(zip(*some, strict=True), schema, strict=True)
        return pa.table([pa.array(values, column.type) for values, column in columns], schema=schema)

    query.run(store, query.batch(0), rows((1, 1, "a"), (2, 1, "b")))
    manifest = query.prepare(store, query.batch(1), rows((1, 2, "c"), (1, 3, None)), rows((2, 4, None)))
    widened = ["k", "v", *(["valid_from", "valid_to"] if option == "history" else [])]
    with lake.load().update_schema() as update:
        for name in widened:
            update.update_column(name, LongType())
    if option == "history":
        later = pa.table({"k": [1], "v": [2**40], "s": ["d"], "valid_from": [2**40], "is_current": [True]})
        others = Query(Place(lake.options), "others")
        others.run(store, others.batch(0), later)
    assert isinstance(query.target().commit(manifest), Committed)
    names = "k, valid_from, valid_to, s" if option == "history" else "k, v, s"
    scan = f"SELECT {names} FROM iceberg_scan('{lake.metadata_location}') ORDER BY ALL"
    versions = [(1, 1, 2, "a"), (1, 2, 3, "c"), (1, 3, 2**40, None), (1, 2**40, None, "d")]
    versions += [(2, 1, 4, "b"), (2, 4, None, None)]
    expected = versions if option == "history" else [(1, 3, "c"), (2, 4, "b")]
    assert engine().execute(scan).fetchall() == expected


@pytest.mark.parametrize("merge", ["on-read", "on-write"])
def test_values_that_are_only_in_the_metadata_are_keys(
    tmp_path: Path, store: SqlManifestStore, merge: str
) -> None:
    """Files from Hive do not have the columns of their partition."""
    changed = Changed(tmp_path, store, "s,k", {"partitionSpec": "s", "merge": merge})
    changed.change([row(1, 0)])
    table = changed.table()
    without_column(table, [row(1, 0), {**row(2, 0), "s": "s1"}])
    changed.rows += [row(1, 0), {**row(2, 0), "s": "s1"}]
    if merge == "on-write":
        with pytest.raises(TableNotSupportedError, match="does not have the columns s"):
            changed.change([row(1, 1)])
        return
    changed.change([row(1, 1)])
    changed.check()


def test_files_whose_bounds_or_partition_exclude_the_keys_are_not_read(
    tmp_path: Path, store: SqlManifestStore
) -> None:
    changed = Changed(tmp_path, store, "k,s", {"partitionSpec": "s"})
    changed.change([row(number, 0) for number in range(4)])
    changed.change([{**row(number, 1), "s": "s1"} for number in range(100, 104)])
    manifest, target = changed.prepare([row(1, 2), {**row(2, 2), "s": "s1"}]), changed.query.target()
    read = opened_by(lambda: target.commit(manifest))
    assert len(read) == 1, "of the five files, the one with the first row"
    changed.expect([row(1, 2), {**row(2, 2), "s": "s1"}])
    changed.check()


def test_long_strings_are_found_behind_their_truncated_bounds(
    tmp_path: Path, store: SqlManifestStore
) -> None:
    def long(number: int, v: int) -> Row:
        return {**row(number, v), "s": "\U0010ffff" * (number % 3) + "a" * 20 + f"{number:020}"}

    changed = Changed(tmp_path, store, "s")
    for number in range(3):
        changed.change([long(3 * one + number, 0) for one in range(3)])
    changed.change([long(number, 1) for number in range(9)])
    assert len(changed.data()) == 1
    changed.check()


def test_tables_in_an_object_store_take_changes(
    tmp_path: Path, store: SqlManifestStore, s3: dict[str, str]
) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", **s3_properties(s3)}
    options = {
        **{f"catalog.{name}": value for name, value in properties.items()},
        "catalog.warehouse": f"s3://{BUCKET}/{tmp_path.name}",
        "table": "lake.ids",
        "keys": "k",
        **UPSERT,
    }
    model: dict[int, int] = {}
    for batch, merge in enumerate(("on-read", "on-read", "on-write")):
        query = Query(Place({**options, "merge": merge}))
        rows = [row(number, batch) for number in range(batch, 10 - batch)]
        query.run(store, query.batch(batch), table_of(rows[:4]), table_of(rows[4:]))
        model.update({one["k"]: one["v"] for one in rows})
        found = query.sink().open_table()._load_table().scan().to_arrow()  # type: ignore[attr-defined]
        assert dict(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True)) == model
        assert found.num_rows == len(model)
    names = s3_names(s3, tmp_path.name)
    assert [name for name in names if ".deletes." in name]
    assert not [name for name in names if ".keys." in name]


def test_a_branch_has_its_own_changes(changed: Changed) -> None:
    query = Query(changed.query.harness, "audit").with_options(branch="audit")
    query.run(changed.store, query.batch(0), table_of([row(1, 0), row(2, 0, op="d")]))
    query.run(changed.store, query.batch(1), table_of([row(1, 1)]))
    changed.check()
    found = changed.table().scan().use_ref("audit").to_arrow().select(["k", "v"]).to_pylist()
    assert sorted(tuple(one.values()) for one in found) == [(0, 0), (1, 1), *((n, 0) for n in range(3, 10))]


# Which way ------------------------------------------------------------------------------------------------


def test_a_table_of_others_is_rewritten_until_the_option_or_a_property_says_otherwise(
    tmp_path: Path, store: SqlManifestStore
) -> None:
    changed = Changed(tmp_path, store)
    changed.others.run(store, changed.others.batch(0), table_of([row(n, 0) for n in range(9)], TABLE))
    changed.rows, changed.appended = [row(n, 0) for n in range(9)], 1
    changed.change([row(1, 1)])
    assert not changed.deletes()
    changed.lake.set_properties({"write.merge.mode": "merge-on-read"})
    changed.change([row(2, 2)])
    assert len(changed.deletes()) == 1
    changed.lake.set_properties({"write.merge.mode": "copy-on-write"})
    changed.change([row(3, 3)])
    assert len(changed.deletes()) == 1, "readers know delete files already"
    changed.options["merge"] = "on-write"
    changed.change([row(4, 4)])
    assert not changed.deletes(), "its deleted rows went with the file"
    changed.options["merge"] = "on-read"
    changed.change([row(5, 5)])
    assert len(changed.deletes()) == 1
    changed.check()


def test_new_tables_tell_other_writers_to_merge_on_read(changed: Changed, tmp_path: Path) -> None:
    assert changed.table().properties["write.merge.mode"] == "merge-on-read"
    other = Changed(tmp_path / "other", changed.store, options={"formatVersion": "1"})
    other.change([row(1, 0), row(2, 0)])
    assert "write.merge.mode" not in other.table().properties
    other.change([row(1, 1)])
    other.check()
    other.options["merge"] = "on-read"
    with pytest.raises(TableNotSupportedError, match="no delete files"):
        other.change([row(1, 2)])


def test_files_are_written_again_with_the_columns_of_the_table(changed: Changed) -> None:
    """Renamed, widened, dropped and added since; columns that others add while the batch waits keep their
    values.
    """
    changed.options["merge"] = "on-write"
    with changed.table().update_schema() as update:
        update.rename_column("s", "text")
        update.delete_column("d")
    query = Query(Place({**changed.lake.options, **UPSERT, "keys": "k", "merge": "on-write"}))
    rows = table_of([row(1, 1)]).rename_columns(["k", "text", "d", "ts", "v", "op"]).drop_columns("d")
    manifest = query.prepare(changed.store, query.batch(1), rows)
    with changed.table().update_schema() as update:
        update.add_column("more", StringType())
    wider = table_of([row(2, 5)], TABLE).rename_columns(["k", "text", "d", "ts", "v"]).drop_columns("d")
    wider = (
        wider.append_column("more", pa.array(["kept"])).append_column("x", pa.array([1])).drop_columns("x")
    )
    others = Query(Place(changed.lake.options), "others")
    others.run(
        changed.store, others.batch(0), pa.concat_tables([wider, wider.set_column(0, "k", pa.array([1]))])
    )
    assert isinstance(query.target().commit(manifest), Committed)
    location = changed.lake.metadata_location
    found = (
        engine().execute(f"SELECT k, text, v, more FROM iceberg_scan('{location}') ORDER BY ALL").fetchall()
    )
    assert found == [
        (0, "s0", 0, None),
        (1, "s1", 1, None),
        (2, "s2", 0, None),
        (2, "s2", 5, "kept"),
        *((n, f"s{n}", 0, None) for n in range(3, 10)),
    ]


@pytest.mark.parametrize("merge", ["on-read", "on-write"])
def test_kept_values_are_those_of_the_columns_at_the_commit(changed: Changed, merge: str) -> None:
    """Others rename a column that rows keep, and add one, after the batch was planned."""
    changed.options |= {"updateColumns": "given", "merge": merge}
    changed.change([row(1, 1), row(2, 1), row(3, 1)])
    rows = [{**row(1, 2), "s": None}, {**row(1, 3), "d": None}, row(30, 3)]
    manifest = changed.prepare(rows, [{**row(7, 2), "s": None}, {**row(7, 3), "s": None}])
    with changed.table().update_schema() as update:
        update.rename_column("s", "text")
    with changed.table().update_schema() as update:
        update.add_column("s", StringType())
    wider = table_of([row(20, 1), row(7, 1)], TABLE).append_column("text", pa.array(["s20", "s7"]))
    wider = wider.set_column(1, "s", pa.array(["new", "own"])).set_column(0, "k", pa.array([30, 70]))
    others = Query(Place(changed.lake.options), "others")
    others.run(changed.store, others.batch(0), wider)
    assert isinstance(changed.query.target().commit(manifest), Committed)
    location = changed.lake.metadata_location
    where = "WHERE k IN (1, 7, 30, 70) ORDER BY k"
    scan = f"SELECT k, text, s, d, v FROM iceberg_scan('{location}') {where}"
    assert engine().execute(scan).fetchall() == [
        (1, "s1", None, Decimal("0.25"), 3),
        (7, "s7", None, Decimal("1.75"), 3),
        (30, "s30", "new", Decimal("7.5"), 3),
        (70, "s7", "own", Decimal("1.75"), 1),
    ]


# What is refused ------------------------------------------------------------------------------------------


def test_equality_deletes_are_refused_by_name(tmp_path: Path, store: SqlManifestStore) -> None:
    table = load_foreign("equality_deletes", tmp_path)
    options = {
        "warehouse": str(tmp_path),
        "table": "foreign.equality_deletes",
        "writeMode": "upsert",
        "keys": "id",
    }
    query = Query(Place(options))
    schema = table.schema().as_arrow()
    with pytest.raises(TableNotSupportedError, match="equality deletes"):
        query.plan(store, query.batch(0), pa.schema([("id", pa.int64()), ("name", pa.string())]))
    assert schema.names


def test_equality_deletes_of_a_commit_in_between_are_refused(changed: Changed) -> None:
    manifest = changed.prepare([row(1, 1)])
    foreign_deletes(changed.table(), [1], content=2)
    before = changed.stored()
    with pytest.raises(TableNotSupportedError, match="equality deletes"):
        changed.query.target().commit(manifest)
    assert changed.stored() == before


# Conflicts ------------------------------------------------------------------------------------------------


def test_a_conflict_leaves_no_file_and_is_searched_for_new_files_only(changed: Changed) -> None:
    manifest = changed.prepare([row(1, 1), row(2, 1, op="d")])
    target, before = changed.query.target(), changed.stored("deletes")
    with at_point("commit.start", lambda: changed.append(row(1, 0), row(2, 0))):
        assert isinstance(target.commit(manifest), Conflict)
    assert changed.stored("deletes") == before
    outcomes: list[object] = []
    read = opened_by(lambda: outcomes.append(target.commit(manifest)))
    assert isinstance(outcomes[0], Committed)
    assert len(read) == 1, "the file that was appended"
    changed.expect([row(1, 1), row(2, 1, op="d")])
    changed.check()


def test_a_batch_that_another_process_commits_meanwhile_is_a_conflict(changed: Changed) -> None:
    """That process has deleted the key files after its commit."""
    manifest = changed.prepare([row(1, 1), row(2, 1, op="d")])
    target, other = changed.query.target(), changed.query.target()

    def commit_first(_: Token | None) -> None:
        other.commit(manifest)

    assert isinstance(target.commit(manifest, commit_first), Conflict)
    assert isinstance(target.commit(manifest), AlreadyCommitted)
    changed.expect([row(1, 1), row(2, 1, op="d")])
    changed.check()


def test_a_batch_that_another_process_commits_during_recovery_is_not_missing(
    changed: Changed, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That process has deleted the key files after its commit, and has not marked the batch yet."""
    changed.prepare([row(1, 1), row(2, 1, op="d")])
    missing, found = IcebergTableCommitter.missing, list[Sequence[str]]()

    def commit_first(committer: IcebergTableCommitter, manifest: Manifest) -> Sequence[str]:
        changed.query.target().commit(manifest)
        found.append(missing(committer, manifest))
        return found[-1]

    monkeypatch.setattr(IcebergTableCommitter, "missing", commit_first)
    (recovered,) = changed.query.recover(store)
    assert found[0], "the recovery looks for files that are deleted"
    assert recovered.state is ManifestState.COMMITTED
    changed.expect([row(1, 1), row(2, 1, op="d")])
    changed.check()


def test_an_unknown_outcome_keeps_every_file(changed: Changed) -> None:
    """The request may be executed later: its delete files must be there."""
    manifest = changed.prepare([row(1, 1)])
    target: Any = changed.query.target()
    with (
        mock.patch.object(type(target._catalog), "is_embedded", False),
        mock.patch.object(SqlCatalog, "commit_table", side_effect=ConnectionError("lost")),
        pytest.raises(Exception, match="lost"),
    ):
        target.commit(manifest)
    assert len(changed.stored("deletes")) == 1
    assert changed.stored("keys")


@pytest.mark.parametrize("other", ["compacts", "deletes", "upserts"])
def test_what_others_commit_in_between_is_not_lost(changed: Changed, other: str) -> None:
    manifest = changed.prepare([row(1, 1), row(2, 1, op="d"), row(3, 1)])
    twin = Changed(changed.folder, changed.store, rows=changed.rows)

    def act() -> None:
        if other == "compacts":
            changed.lake.compact()
        elif other == "deletes":
            changed.delete(3, 4)
        else:
            upsert = Query(twin.query.harness, "twin")
            upsert.run(changed.store, upsert.batch(0), table_of([row(3, 9), row(5, 9)]))
            twin.expect([row(3, 9), row(5, 9)])
            changed.rows = twin.rows

    target = changed.query.target()
    with at_point("commit.start", act):
        assert isinstance(target.commit(manifest), Conflict)
    assert isinstance(target.commit(manifest), Committed)
    changed.expect([row(1, 1), row(2, 1, op="d"), row(3, 1)])
    changed.check()


# Maintenance ----------------------------------------------------------------------------------------------


def test_compaction_drops_deleted_rows_and_their_delete_files(changed: Changed) -> None:
    changed.change([row(1, 1), row(2, 1), row(3, 1)])
    assert len(changed.deletes()) == 1
    assert changed.compact().sources == 1, "the new file has no deleted rows"
    assert not changed.deletes()
    changed.check()
    assert changed.compact().sources == 0


def test_the_contents_of_a_table_count_its_deleted_rows(changed: Changed) -> None:
    changed.change([row(k, 1) for k in range(100, 120)])
    before = contents_of(changed)
    changed.change([{**row(k, 2), "op": "d"} for k in range(100, 105)])
    after = contents_of(changed)
    assert (len(after.sizes), after.rows) == (len(before.sizes), before.rows)
    assert after.deleted_rows == before.deleted_rows + 5


def contents_of(changed: Changed) -> TableContents:
    stored = changed.query.stored_table()
    assert isinstance(stored, HasContents)
    contents = stored.contents()
    assert contents is not None
    return contents


def test_a_few_deleted_rows_are_left_until_there_are_many(changed: Changed) -> None:
    changed.change([row(1, 1), row(2, 1)])
    assert changed.compact().sources == 0
    changed.change([row(3, 2)])
    assert changed.compact().sources == 1
    changed.check()


def test_compaction_of_small_files_drops_their_deleted_rows(changed: Changed) -> None:
    for number in range(4):
        changed.change([row(number, number + 1)])
    changed.delete(8)
    assert changed.compact(files_min=4).sources >= 4
    changed.check()


@pytest.mark.parametrize("other", ["we", "others"])
def test_rows_that_are_deleted_during_a_compaction_do_not_come_back(changed: Changed, other: str) -> None:
    changed.change([row(1, 1), row(2, 1), row(3, 1)])
    table, left = changed.compactable(), [True]
    replace = table.replace

    def replace_after(*args: Any) -> Any:
        if left:
            left.pop()
            changed.change([row(4, 2, op="d")]) if other == "we" else changed.delete(4)
        return replace(*args)

    table.replace = replace_after  # type: ignore[method-assign, assignment]
    assert changed.compact(table).sources == 0
    changed.check()
    assert changed.compact().sources == 1
    changed.check()


def test_a_commit_after_the_check_of_a_compaction_is_a_conflict(changed: Changed) -> None:
    changed.change([row(1, 1), row(2, 1), row(3, 1)])
    real, left = SqlCatalog.commit_table, [True]

    def commit(catalog: SqlCatalog, *args: Any) -> Any:
        if left:
            left.pop()
            changed.delete(4)
        return real(catalog, *args)

    with mock.patch.object(SqlCatalog, "commit_table", commit):
        compacted = changed.compact()
    assert (compacted.sources, compacted.conflicts) == (0, 1)
    changed.check()


def test_clean_up_keeps_delete_files_and_finds_orphans(changed: Changed) -> None:
    """A replaced delete file stays as long as a snapshot needs it."""
    changed.change([row(1, 1)])
    changed.change([row(2, 2)])
    assert changed.clean_up() == 0
    manifest = changed.prepare([row(3, 3)])
    with crash_at("commit.start"):
        changed.query.target().commit(manifest)
    assert len(changed.stored("deletes")) == 3
    assert changed.clean_up() == 0, "the batch may still be committed"
    with crash_at("commit.landed"):
        changed.query.recover(changed.store)
    changed.query.recover(changed.store)
    changed.expect([row(3, 3)])
    assert changed.stored("keys")
    assert changed.clean_up() == 2, "the delete file of the crashed attempt, and the key file"
    assert not changed.stored("keys")
    changed.check()


@pytest.mark.parametrize("kind", [Changed, Versioned])
def test_rows_that_a_lost_attempt_has_computed_are_orphans(
    kind: type[Changed], tmp_path: Path, store: SqlManifestStore
) -> None:
    """A conflict deletes them, a crash leaves them to clean-up."""
    changed = kind(tmp_path, store, options={} if kind is Versioned else {"updateColumns": "given"})
    changed.change([row(1, 1), row(2, 1)])
    partial = {**row(1, 2), "s": None}
    manifest, before = changed.prepare([partial]), changed.stored(".zstd.")
    with at_point("commit.start", lambda: changed.append(row(9, 1))):
        assert isinstance(changed.query.target().commit(manifest), Conflict)
    assert len(changed.stored(".zstd.") - before) == 1, "the file that was appended"
    with crash_at("commit.start"):
        changed.query.recover(store)
    changed.query.recover(store)
    changed.expect([partial])
    assert len(changed.stored(".zstd.") - before) == 3
    orphans = changed.stored() - {Path(file.file_path).name for file in [*changed.data(), *changed.deletes()]}
    orphans -= {Path(path).name for path in paths_of(manifest)}  # as long as the store has the batch
    assert changed.clean_up() == len(orphans) >= 2
    assert not orphans & changed.stored()
    changed.check()


def test_expiry_deletes_replaced_delete_files(changed: Changed) -> None:
    changed.change([row(1, 1)])
    changed.change([row(2, 2)])
    changed.change([row(3, 3)])
    assert len(changed.stored("deletes")) == 3
    expiry = SnapshotExpiry(
        changed.table,
        changed.store.expiries,
        changed.query.stream.table_uri,
        ExpiryPolicy(1, 0),
        now=lambda: datetime.now(timezone.utc) + timedelta(seconds=1),
    )
    expiry.run()
    expiry.run()
    assert len(changed.stored("deletes")) == 1
    changed.check()
