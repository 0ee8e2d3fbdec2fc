"""`check` on real tables that were broken on purpose, each in one way, and on unusual but sound ones."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from tests.support.lakes import LAKES, DeltaLake, IcebergLake, LakeTable, delta_lake, iceberg_lake
from tests.support.query import Query

from penstock import ConfigurationError, testing
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.spark.checkpoint import STORE_FILE
from penstock.testing.faults import crash_at

FIXTURES = Path(__file__).parents[1] / "fixtures" / "delta"
IDS = "(SELECT unnest([1, 2, 3, 4, 5, 6]::BIGINT[]) AS id)"
BATCHES = ([1, 2], [3, 4], [5, 6])
LakeT = TypeVar("LakeT", bound=LakeTable)


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    """Three batches, two rows and one data file each."""
    return _written(LAKES[request.param](tmp_path))


@pytest.fixture
def delta(tmp_path: Path) -> DeltaLake:
    return _written(delta_lake(tmp_path))


@pytest.fixture
def iceberg(tmp_path: Path) -> IcebergLake:
    return _written(iceberg_lake(tmp_path))


def _written(lake: LakeT) -> LakeT:
    query = Query(lake)
    with open_store(_store(lake)) as store:
        for batch_id, ids in enumerate(BATCHES):
            query.run(store, query.batch(batch_id), ids, run_id=f"run-{batch_id}")
    return lake


def _store(lake: LakeTable) -> str:
    return f"sqlite:///{_checkpoint(lake)}/{STORE_FILE}"


def _checkpoint(lake: LakeTable) -> Path:
    folder = lake.folder
    root = folder.parent if isinstance(lake, DeltaLake) else folder.parents[2]
    return root / "checkpoint"


def _check(lake: LakeTable, source: str = IDS, **more: Any) -> testing.Observation:
    return testing.check(lake, source, **more)


def _problem(lake: LakeTable, source: str = IDS, **more: Any) -> str:
    (problem,) = _check(lake, source, **more).problems
    return problem


# Sound tables -------------------------------------------------------------------------------------------


def test_a_sound_table_has_no_problems(lake: LakeTable) -> None:
    found = _check(lake, store=_store(lake))
    assert found.problems == []
    assert (found.rows, len(found.added), found.orphans, found.missing) == (6, 3, 0, [])
    assert [(query_id, batch_id) for query_id, batch_id, _ in found.tokens] == [
        ("q1", 0),
        ("q1", 1),
        ("q1", 2),
    ]


def test_a_table_that_is_new_has_no_problems(tmp_path: Path, lake: LakeTable) -> None:
    new = LAKES[lake.kind](tmp_path / "new")
    Query(new).plan_of(0)
    found = _check(new, "(SELECT 1 AS id WHERE false)")
    assert (found.rows, found.problems) == (0, [])


def test_rows_without_an_id_count_too(lake: LakeTable) -> None:
    """SQL says that NULL is not equal to NULL."""
    query = Query(lake)
    with open_store(_store(lake)) as store:
        query.run(store, query.batch(3), [None, None], run_id="run-3")
    source = f"(FROM {IDS} UNION ALL SELECT NULL UNION ALL SELECT NULL)"
    assert _check(lake, source).problems == []
    assert _check(lake).doubled == 2


def test_orphans_are_counted_and_are_no_problem(lake: LakeTable) -> None:
    (lake.data_folder / "left-behind.parquet").write_bytes(b"PAR1")
    found = _check(lake)
    assert (found.orphans, found.problems) == (1, [])


def test_a_table_that_others_compacted_has_no_problems(lake: LakeTable) -> None:
    lake.compact()
    assert _check(lake).problems == []


@pytest.mark.parametrize(
    "name",
    ["change_data_feed", "deletion_vectors", "log_checkpoint", "partitioned", "restored", "v2_checkpoint"],
)
def test_a_delta_table_of_spark_has_no_problems(name: str) -> None:
    """A restore, and deleting rows of a file, name a file again."""
    found = testing.check(
        testing.DeltaTable(FIXTURES / name), f"delta_scan('{FIXTURES / name}')", columns="*"
    )
    assert found.rows > 0
    assert found.problems == []


def test_change_data_are_no_orphans() -> None:
    found = testing.check(testing.DeltaTable(FIXTURES / "change_data_feed"), "(SELECT 1 AS id)")
    assert found.orphans == 0


def test_a_delta_log_that_was_cleaned_up_has_no_problems(delta: DeltaLake) -> None:
    delta.load().create_checkpoint()
    for commit in (delta.folder / "_delta_log").glob("0*[0-2].json"):
        commit.unlink()
    found = _check(delta)
    assert (found.problems, len(found.added), found.orphans) == ([], 3, 0)


def test_other_programs_transactions_are_no_tokens(delta: DeltaLake) -> None:
    _commit_to_delta(delta, {"txn": {"appId": "somebody:q1", "version": 0}})
    _commit_to_delta(delta, {"txn": {"appId": "penstock:q1:digest", "version": 0}})
    assert _check(delta).problems == []


def test_partition_folders_with_odd_names_are_found(tmp_path: Path) -> None:
    """The log has them encoded twice, the disk once."""
    days = ["a b", "50%", "ö", "x/y", "q'q", "[x]", "*"]
    table = tmp_path / "it's"
    write_deltalake(str(table), pa.table({"id": range(len(days)), "day": days}), partition_by=["day"])
    found = testing.check(testing.DeltaTable(table), f"range({len(days)}) t(id)")
    assert (found.rows, len(found.added), found.orphans, found.problems) == (len(days), len(days), 0, [])


def test_a_branch_is_checked_by_its_own_rows_and_tokens(iceberg: IcebergLake) -> None:
    table = iceberg.load()
    table.manage_snapshots().create_branch(table.metadata.snapshots[0].snapshot_id, "audit").commit()
    audit = testing.IcebergTable(iceberg.table, iceberg.warehouse, branch="audit")
    found = testing.check(audit, "(SELECT unnest([1, 2]) AS id)")
    assert (found.rows, len(found.tokens), found.problems) == (2, 1, [])


def test_a_catalog_is_asked_for_a_table_that_is_not_in_the_embedded_one(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/wh"}
    catalog = SqlCatalog("prod", **properties)
    catalog.create_namespace("sales")
    catalog.create_table("sales.ids", pa.schema([("id", pa.int64())])).append(pa.table({"id": [1, 2]}))
    table = testing.IcebergTable("sales.ids", catalog="prod", catalog_properties=properties)
    found = testing.check(table, "(SELECT unnest([1, 2, 3]) AS id)")
    assert (found.rows, found.lost, found.doubled) == (2, 1, 0)
    assert "c.db" not in repr(table)


def test_metadata_that_is_compressed_is_read(iceberg: IcebergLake) -> None:
    """As other engines write it."""
    plain = Path(iceberg.metadata_location.removeprefix("file://"))
    compressed = plain.with_name(plain.name.replace(".metadata.json", ".gz.metadata.json"))
    compressed.write_bytes(gzip.compress(plain.read_bytes()))
    with closing(sqlite3.connect(str(iceberg.warehouse) + "/catalog.sqlite")) as catalog, catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", (f"file://{compressed}",))
    assert _check(iceberg).problems == []


# Broken tables ------------------------------------------------------------------------------------------


def test_a_lost_row_is_found(lake: LakeTable) -> None:
    source = f"(FROM {IDS} UNION ALL SELECT 7)"
    assert _problem(lake, source) == "1 row of the source lost: not in the table"


def test_a_doubled_row_is_found(lake: LakeTable) -> None:
    lake.append(3)
    assert _problem(lake) == "1 row doubled: in the table more often than in the source"


def test_a_lost_and_a_doubled_row_do_not_outweigh_each_other(lake: LakeTable) -> None:
    found = _check(lake, "(SELECT unnest([1, 2, 3, 4, 5, 5, 6]) AS id)")
    assert (found.lost, found.doubled) == (1, 0)
    lake.append(3)
    found = _check(lake, "(SELECT unnest([1, 2, 3, 4, 5, 5, 6]) AS id)")
    assert (found.rows, found.lost, found.doubled) == (7, 1, 1)


def test_rows_are_distinguished_by_all_given_columns_and_expressions(lake: LakeTable) -> None:
    source = "(SELECT unnest([1, 2, 3, 4, 5, 16]) AS id)"
    assert _check(lake, source, columns="id % 10").problems == []
    assert (_check(lake, source, columns="id % 10, id > 10").lost) == 1


def test_a_deleted_data_file_is_found(lake: LakeTable) -> None:
    """No engine reads the table any more: all rows are lost."""
    missing = _a_data_file(lake)
    missing.unlink()
    found = _check(lake)
    assert list(found.missing) == [str(missing)]
    assert found.lost == 6
    assert (
        f"1 data file named by the table but missing from storage, so that it cannot be read, first {missing}"
        in (found.problems)
    )


def test_a_file_named_twice_is_found_in_delta(delta: DeltaLake) -> None:
    """Its readers see the rows once all the same."""
    add = next(action for action in _delta_actions(delta) if "add" in action)
    _commit_to_delta(delta, add)
    problem = _problem(delta)
    assert problem.startswith("1 data file named more than once by the table, first ")
    assert problem.endswith(f"{add['add']['path']} (2 times)")


def test_a_file_named_twice_is_found_in_iceberg(iceberg: IcebergLake) -> None:
    table = iceberg.load()
    (file, *_) = [task.file for task in table.scan().plan_files()]
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(file)
    found = _check(iceberg)
    assert found.doubled == 2
    assert f"first {file.file_path.removeprefix('file://')} (2 times)" in str(found)


def test_a_token_that_goes_back_is_found_in_delta(delta: DeltaLake) -> None:
    _commit_to_delta(delta, {"txn": {"appId": "penstock:q1", "version": 1}})
    expected = "the token of query q1 does not ascend: batch 1 follows batch 2 in version 4 of the table"
    assert _problem(delta) == expected


def test_a_token_that_comes_twice_is_found_in_iceberg(iceberg: IcebergLake) -> None:
    token = {"penstock.query-id": "q1", "penstock.batch-id": "2"}
    table = iceberg.load()
    table.append(pa.table({"id": pa.array([], pa.int64())}), snapshot_properties=token)
    expected = "the token of query q1 does not ascend: batch 2 follows batch 2 in version"
    assert _problem(iceberg).startswith(expected)


@pytest.mark.parametrize("named_by", ["url", "checkpoint"])
def test_a_pending_batch_is_found(lake: LakeTable, named_by: str) -> None:
    _leave_pending(lake, "q1")
    store = _store(lake) if named_by == "url" else _checkpoint(lake)
    expected = "1 batch still PREPARED in the store after recovery, first batch 3 of query q1"
    assert _problem(lake, store=store) == expected
    assert _check(lake).problems == []


def test_pending_batches_of_other_tables_do_not_count(lake: LakeTable, tmp_path: Path) -> None:
    """A store on a server has the streams of many tables."""
    other = type(lake)(tmp_path / "other")
    with open_store(_store(lake)) as store:
        _prepare(other, "q2", store)
    assert _check(lake, store=_store(lake)).problems == []


def _leave_pending(lake: LakeTable, query_id: str) -> None:
    with open_store(_store(lake)) as store:
        _prepare(lake, query_id, store)


def _prepare(lake: LakeTable, query_id: str, store: SqlManifestStore) -> None:
    query = Query(lake, query_id).with_options(newTarget="allow")
    with crash_at("prepare.done"):
        query.run(store, query.batch(3), [7], run_id="dead")


def _a_data_file(lake: LakeTable) -> Path:
    return lake.folder / min(lake.data_files())


def _delta_actions(lake: DeltaLake) -> Iterator[dict[str, Any]]:
    for commit in sorted((lake.folder / "_delta_log").glob("*.json")):
        yield from map(json.loads, commit.read_text().splitlines())


def _commit_to_delta(lake: DeltaLake, action: dict[str, Any]) -> None:
    version = DeltaTable(str(lake.folder)).version() + 1
    (lake.folder / "_delta_log" / f"{version:020}.json").write_text(json.dumps(action) + "\n")


# Errors -----------------------------------------------------------------------------------------------


def test_a_missing_table_is_an_error(tmp_path: Path, lake: LakeTable) -> None:
    elsewhere = type(lake)(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match=r"The (Delta|Iceberg) table .*elsewhere.* does not exist"):
        _check(elsewhere)
    assert not (tmp_path / "elsewhere").exists(), "reading created it"


def test_a_catalog_file_without_tables_has_no_table(tmp_path: Path) -> None:
    """Such as one that is just being made."""
    sqlite3.connect(tmp_path / "catalog.sqlite").close()
    with pytest.raises(ConfigurationError, match=r"The Iceberg table .* does not exist"):
        testing.check(testing.IcebergTable("lake.ids", tmp_path), IDS)


def test_a_missing_branch_is_an_error(iceberg: IcebergLake) -> None:
    table = testing.IcebergTable(iceberg.table, iceberg.warehouse, branch="nope")
    with pytest.raises(ConfigurationError, match=r"The branch .*lake\.ids@nope does not exist"):
        testing.check(table, IDS)


@pytest.mark.parametrize(
    ("source", "columns", "where"),
    [
        (IDS, "nope", 'from the source .*Referenced column "nope" not found'),
        ("(SELECT 1 AS key)", "id", 'from the source .*Referenced column "id" not found'),
        ("(SELECT 1 AS id, 2 AS more)", "more", 'from the table: .*Referenced column "more" not found'),
        ("read_parquet('/nowhere/*.parquet')", "id", "from the source .*No files found"),
        ("(SELECT 1 AS id, 2 AS more, 3 AS yet_more)", "*", "cannot be compared by .*same number of result"),
        ("(SELECT 'x' AS id)", "id::BIGINT", "cannot be compared by .*Could not convert"),
    ],
)
def test_wrong_columns_are_an_error_with_their_place(
    delta: DeltaLake, source: str, columns: str, where: str
) -> None:
    with pytest.raises(ConfigurationError, match=where):
        _check(delta, source, columns=columns)


def test_a_store_that_does_not_know_the_table_is_an_error(lake: LakeTable, tmp_path: Path) -> None:
    """Or nothing would ever be pending."""
    open_store(f"sqlite:///{tmp_path}/empty.db").close()
    with pytest.raises(ConfigurationError, match=r"has no stream into .*: none"):
        _check(lake, store=f"sqlite:///{tmp_path}/empty.db")


@pytest.mark.parametrize("store", ["{folder}", "sqlite:///{folder}/nope.db"])
def test_a_missing_store_is_an_error(lake: LakeTable, tmp_path: Path, store: str) -> None:
    with pytest.raises(ConfigurationError):
        _check(lake, store=store.format(folder=tmp_path))
    assert not (tmp_path / "nope.db").exists(), "reading created it"


# duckdb -------------------------------------------------------------------------------------------------


def test_a_given_connection_is_used_and_stays_open(lake: LakeTable) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE given AS FROM {IDS}")
        assert _check(lake, "given", connection=connection).problems == []
        assert _check(lake, "given", connection=connection).problems == []


def test_a_replaced_table_is_read_again(tmp_path: Path) -> None:
    """Connections of `check` share a database, which must not cache files."""
    for ids in ([1, 2, 3], [4, 5, 6]):
        shutil.rmtree(tmp_path / "table", ignore_errors=True)
        write_deltalake(tmp_path / "table", pa.table({"id": ids}))
        written = f"(SELECT unnest({ids}::BIGINT[]) AS id)"
        assert testing.check(testing.DeltaTable(tmp_path / "table"), written).problems == []


@pytest.mark.parametrize(
    ("module", "act"),
    [
        ("duckdb", lambda: testing.check(testing.DeltaTable("/nowhere"), IDS)),
        ("psutil", lambda: testing.Job(["true"], log="/dev/null").run()),
    ],
)
def test_a_missing_package_is_an_error_that_names_the_extra(
    module: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ConfigurationError, match=rf"(?s)package {module},.*pip install 'penstock\[testing\]'"
    ):
        act()


def test_an_extension_that_is_not_for_this_duckdb_is_an_error(
    lake: LakeTable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binary = tmp_path / "other.duckdb_extension"
    binary.write_bytes(b"\0" * 1024)

    class OtherPackage:
        files = (binary,)

        def locate_file(self, path: Path) -> Path:
            return path

    monkeypatch.setattr("penstock.testing.duckdb_reader.distribution", lambda _name: OtherPackage())
    with (
        duckdb.connect() as connection,
        pytest.raises(ConfigurationError, match=r"(?s)cannot load its extension .*penstock\[testing\]"),
    ):
        _check(lake, connection=connection)


def test_a_missing_extension_is_an_error_that_names_the_extra(
    lake: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("penstock.testing.duckdb_reader.distribution", absent)
    with (
        duckdb.connect() as connection,
        pytest.raises(ConfigurationError, match=r"(?s)duckdb-extension-.*penstock\[testing\]"),
    ):
        _check(lake, connection=connection)
