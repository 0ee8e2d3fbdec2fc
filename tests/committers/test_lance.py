"""The guards of the Lance committer: tokens, versions, other writers, foreign tables."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from servers.s3 import BUCKET
from tests.support.lance_table import IDS, LanceHarness
from tests.support.race import race

from penstock.committers.contract import BATCH_WRITE_PREFIX, Committed, Conflict
from penstock.committers.errors import (
    ConfigurationError,
    ManifestCorruptError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
    TableNotSupportedError,
)
from penstock.committers.file_tables.manifest import build_manifest, decode
from penstock.committers.lance import library, maintenance, plan
from penstock.committers.lance.cleanup import LanceCleanableTable
from penstock.committers.lance.committer import LanceTableCommitter
from penstock.committers.lance.maintenance import clean_up, compact
from penstock.committers.lance.table import TOKEN_PREFIX, table_id_of
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.lance.source import LanceDataSource
from penstock.testing.conformance.query import Query, ids
from penstock.testing.conformance.upserts import OPTIONS, changes
from penstock.testing.faults import at_point

TEXTS = pa.schema([("id", pa.int64()), ("text", pa.string())])


@pytest.fixture
def harness(tmp_path: Path) -> LanceHarness:
    return LanceHarness(tmp_path)


@pytest.fixture
def query(harness: LanceHarness, store: SqlManifestStore) -> Query:
    return Query(harness, store=store)


# Two committers ---------------------------------------------------------------------------------------


def test_two_processes_that_race_never_double_a_batch(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    query = query.with_options(newTarget="allow")  # no batch is prepared before
    manifests = [query.build(store, query.batch(number), ids(number)) for number in range(40)]
    race(partial(LanceTableCommitter, str(harness.path)), manifests)

    assert harness.ids() == list(range(40))
    assert harness.problems() == []


@pytest.mark.slow
def test_two_processes_that_race_in_an_object_store_never_double_a_batch(
    s3: dict[str, str], store: SqlManifestStore, tmp_path: Path
) -> None:
    uri = f"s3://{BUCKET}/race"
    options = {"path": uri, **{f"storage.{key}": value for key, value in s3.items()}}
    options["newTarget"] = "allow"  # no batch is prepared before
    query = Query(LanceHarness(tmp_path), destination_options=options, store=store)
    manifests = [query.build(store, query.batch(number), ids(number)) for number in range(20)]
    assert query.target().missing(manifests[0]) == []
    race(partial(LanceTableCommitter, uri, s3), manifests)

    rows = lance.dataset(uri, storage_options=s3).to_table()
    assert rows["id"].to_pylist() == list(range(20))
    failing = query.write_and_die(query.plan(store, query.batch(20)), ids(20))
    failing.finish()
    files = LanceCleanableTable(uri, s3)
    before = len(list(files.files()))
    failing.abort()
    assert len(list(files.files())) == before - 1
    lost = query.build(store, query.batch(20), ids(20))
    assert query.target().discard([decode(lost).files]) == 1
    assert list(query.target().missing(lost)) == [decode(lost).files[0].path]


def restored(table: lance.LanceDataset) -> None:
    table.checkout_version(table.version - 1).restore()  # type: ignore[no-untyped-call]


CHANGES: dict[str, Callable[[lance.LanceDataset], object]] = {
    "append": lambda table: lance.write_dataset(ids(100), table.uri, mode="append"),
    "delete": lambda table: table.delete("id = 0"),
    "update": lambda table: table.update({"id": "id + 50"}),
    "compact": lambda table: table.optimize.compact_files(),
    "restore": restored,
    "new column": lambda table: table.add_columns({"x": "id + 1"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_commit_on_rows_that_others_have_changed_is_tried_again(
    query: Query, store: SqlManifestStore, harness: LanceHarness, change: str
) -> None:
    for number in range(2):
        query.run(store, query.batch(number), ids(number))
    manifest = query.build(store, query.batch(2), ids(2))
    with at_point("commit.start", lambda: CHANGES[change](harness.table())):
        assert isinstance(query.target().commit(manifest), Conflict)
    assert 2 not in harness.ids()

    assert isinstance(query.target().commit(manifest), Committed)
    assert harness.ids().count(2) == 1


def test_a_batch_that_overwrites_is_based_on_the_newest_version(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    manifest = query.build(store, query.batch(0), ids(0), overwrite=True)
    with at_point("commit.start", lambda: harness.append(100)):
        assert isinstance(query.target().commit(manifest), Conflict)
    assert harness.ids() == [100]

    assert isinstance(query.target().commit(manifest), Committed)
    assert harness.ids() == [0]


@pytest.mark.parametrize("has_table", [False, True], ids=["new", "of others"])
def test_two_drivers_agree_on_the_id_of_a_table(
    query: Query,
    store: SqlManifestStore,
    harness: LanceHarness,
    has_table: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both have found that there is none."""
    if has_table:
        harness.create(IDS.empty_table())
    others: list[str] = []
    found: list[lance.LanceDataset] = []
    real = library.load_if_there

    def load(uri: str, options: Mapping[str, str]) -> lance.LanceDataset | None:
        table = real(uri, options)
        if table is not None and not table_id_of(table):
            found.append(table)
        if len(found) == (2 if has_table else 1) and not others:  # the one that is about to get an id
            monkeypatch.setattr(plan, "load_if_there", real)
            others.append(query.plan(store, query.batch(0)).targets[0].content.table_id)
        return table

    monkeypatch.setattr(plan, "load_if_there", load)
    second = query.plan(store, query.batch(0)).targets[0].content
    assert [second.table_id] == others


def test_a_commit_keeps_an_index_and_a_setting_that_others_make_meanwhile(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    query.run(store, query.batch(0), ids(0))
    manifest = query.build(store, query.batch(1), ids(1))

    def change() -> None:
        harness.table().create_scalar_index("id", "BTREE")
        harness.table().update_config({"key": "value"})

    with at_point("commit.start", change):
        assert isinstance(query.target().commit(manifest), Committed)

    table = harness.table()
    assert [index.name for index in table.describe_indices()] == ["id_idx"]
    assert table.config()["key"] == "value"
    assert table.to_table(filter="id = 1")["id"].to_pylist() == [1]


def test_others_append_while_a_batch_is_committed(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    """Their append was based on the version before the batch."""
    query.run(store, query.batch(0), ids(0))
    before = harness.table()
    query.run(store, query.batch(1), ids(1))
    lance.write_dataset(ids(100), before, mode="append")

    assert sorted(harness.ids()) == [0, 1, 100]
    token = query.target().token("q1")
    assert token is not None
    assert token.batch_id == 1


# The token --------------------------------------------------------------------------------------------


def test_the_token_survives_the_clean_up_of_old_versions_and_other_writers(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    manifest = query.build(store, query.batch(0), ids(0))
    query.target().commit(manifest)
    harness.append(100)
    harness.table().optimize.compact_files()
    harness.table().add_columns({"x": "id + 1"})
    harness.table().drop_columns(["x"])
    harness.table().cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert len(harness.table().versions()) == 1
    query.target().commit(manifest)

    assert sorted(harness.ids()) == [0, 100]


def test_a_table_that_others_have_overwritten_is_not_written(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    query.run(store, query.batch(0), ids(0))
    lance.write_dataset(ids(100), str(harness.path), mode="overwrite")

    with pytest.raises(TableChangedError, match="already committed batch 0"):
        query.run(store, query.batch(1), ids(1))
    assert harness.ids() == [100]


def test_a_table_that_was_restored_from_a_backup_is_not_written(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    query.run(store, query.batch(0), ids(0))
    manifest = query.build(store, query.batch(1), ids(1))
    newest = max((harness.path / "_versions").glob("*.manifest"), key=lambda path: path.stat().st_mtime_ns)
    newest.unlink()

    with pytest.raises(TableChangedError, match="restored from a backup"):
        query.target().commit(manifest)


def test_another_table_with_more_versions_is_not_written(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    manifest = query.build(store, query.batch(0), ids(0))
    files = {path.name: path.read_bytes() for path in harness.path.glob("data/*.lance")}
    harness.recreate()
    for row_id in range(100, 105):
        harness.append(row_id)
    for name, content in files.items():
        (harness.path / "data" / name).write_bytes(content)

    with pytest.raises(TableChangedError, match="dropped and re-created"):
        query.target().commit(manifest)
    with pytest.raises(TableChangedError, match="dropped and re-created"):
        query.target().check_unchanged("q1", decode(manifest).table_id, None)  # type: ignore[attr-defined]


def test_a_token_that_was_changed_by_hand_is_reported(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    query.run(store, query.batch(0), ids(0))
    harness.table().update_schema_metadata({f"{TOKEN_PREFIX}q1": "{}"})

    with pytest.raises(TableChangedError, match="is not what Penstock has written"):
        query.target().token("q1")


def test_tokens_of_old_batch_writes_are_forgotten(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    write = Query(harness, f"{BATCH_WRITE_PREFIX}1", store=store)
    manifest = write.build(store, write.batch(0), ids(0))
    then = datetime.now(timezone.utc) - timedelta(days=8)
    LanceTableCommitter(str(harness.path), now_ms=lambda: int(then.timestamp() * 1000)).commit(manifest)
    young = Query(harness, f"{BATCH_WRITE_PREFIX}2", store=store)
    young.target().commit(young.build(store, young.batch(0), ids(1)))
    query.run(store, query.batch(0), ids(2))

    metadata = harness.table().schema.metadata
    assert {key.decode() for key in metadata} == {f"penstock.{BATCH_WRITE_PREFIX}2", "penstock.q1"}


def test_a_commit_says_what_it_was(query: Query, store: SqlManifestStore, harness: LanceHarness) -> None:
    query.run(store, query.batch(0), ids(0, 1))

    transaction = harness.table().read_transaction(harness.table().version)
    assert transaction is not None
    properties = transaction.transaction_properties or {}
    shown = {key: properties[f"penstock.{key}"] for key in ("query-id", "batch-id", "rows")}
    assert shown == {"query-id": "q1", "batch-id": "0", "rows": "2"}


# Tables of others ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("stable", [False, True])
def test_a_table_of_others_is_appended_to_in_its_own_format(
    query: Query, store: SqlManifestStore, harness: LanceHarness, file_version: str, stable: bool
) -> None:
    """After a column was dropped, field ids are no longer the numbers of the columns."""
    rows = pa.table({"gone": [1], "id": pa.array([100], pa.int64()), "text": ["a"]})
    table = harness.create(rows, data_storage_version=file_version, enable_stable_row_ids=stable)
    table.drop_columns(["gone"])
    query.run(store, query.batch(0), pa.table({"id": [1], "text": ["b"]}, schema=TEXTS))
    query.run(store, query.batch(1), ids(2))

    table = harness.table()
    assert table.to_table().to_pydict() == {"id": [100, 1, 2], "text": ["a", "b", None]}
    assert (table.data_storage_version, table.has_stable_row_ids) == (file_version, stable)
    assert table_id_of(table)
    assert harness.problems() == []


BLOB = {"lance-encoding:blob": "true"}


@pytest.mark.parametrize(
    ("column", "file_version", "problem"),
    [
        (pa.field("x", pa.dictionary(pa.int32(), pa.string())), "2.2", "x: it is dictionary-encoded"),
        (pa.field("x", pa.large_binary(), metadata=BLOB), "2.1", "x: it is stored as blobs"),
        (pa.field("x", pa.struct([("a", pa.int32())])), "2.0", "x: files of version 2.0 do not store"),
        (pa.field("x", pa.string()), "legacy", "has data files of version"),
    ],
)
def test_a_table_that_would_lose_values_is_refused_by_name(
    query: Query,
    store: SqlManifestStore,
    harness: LanceHarness,
    column: pa.Field,
    file_version: str,
    problem: str,
) -> None:
    rows = pa.schema([*IDS, column]).empty_table()
    harness.create(rows, data_storage_version=file_version)
    with pytest.raises(TableNotSupportedError, match=problem):
        query.plan(store, query.batch(0))


def test_a_new_table_with_maps_needs_files_that_have_them(
    harness: LanceHarness, store: SqlManifestStore
) -> None:
    rows = pa.schema([("m", pa.map_(pa.string(), pa.int32()))])
    query = Query(harness, options={"fileVersion": "2.1"})
    with pytest.raises(TableNotSupportedError, match=r"m: files of version 2\.1 have no maps"):
        query.plan(store, query.batch(0), rows)
    assert not harness.exists


@pytest.mark.parametrize("name", ["a.b", "a`b", "_rowid"])
def test_names_that_lance_reads_otherwise_are_refused(
    store: SqlManifestStore, harness: LanceHarness, name: str
) -> None:
    rows = pa.schema([*IDS, (name, pa.int64())])
    query = Query(harness, options={"schemaEvolution": "addColumns"})
    with pytest.raises(SchemaMismatchError, match="Rename them"):
        query.plan(store, query.batch(0), rows)
    assert not harness.exists

    harness.create(IDS.empty_table())
    with pytest.raises(SchemaMismatchError, match="Rename them"):
        query.plan(store, query.batch(0), rows)


def test_a_new_table_is_not_put_into_the_folder_of_another(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    (harness.path / "_delta_log").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="not empty: it has '_delta_log'"):
        query.plan(store, query.batch(0))


def test_a_new_table_has_the_settings_of_the_query(harness: LanceHarness, store: SqlManifestStore) -> None:
    options = {"fileVersion": "2.1", "stableRowIds": "true", "tableProperties": '{"key": "value"}'}
    query = Query(harness, options=options, store=store)
    query.run(store, query.batch(0), ids(0))

    table = harness.table()
    assert (table.data_storage_version, table.has_stable_row_ids) == ("2.1", True)
    assert {"key": "value", "penstock.maintenance": "true"}.items() <= table.config().items()
    assert query.sink().is_maintained()  # type: ignore[attr-defined]


def test_columns_that_change_before_the_commit_are_named(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    rows = pa.table({"id": [1], "text": ["a"]}, schema=TEXTS)
    query.run(store, query.batch(0), rows)
    manifest = query.build(store, query.batch(1), rows)
    harness.table().drop_columns(["text"])
    with pytest.raises(SchemaMismatchError, match="text: it was removed"):
        query.target().commit(manifest)
    harness.table().add_columns(pa.schema([("text", pa.int32())]))
    with pytest.raises(SchemaMismatchError, match="text: it is int32 now, and was string"):
        query.target().commit(manifest)


def test_a_missing_library_is_named(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(ConfigurationError, match=re.escape("pip install 'penstock[lance]'")):
        LanceDataSource(query.harness.options).sink()


def test_a_damaged_schema_of_files_is_reported(query: Query, store: SqlManifestStore) -> None:
    manifest = query.build(store, query.batch(0), ids(0))
    damaged = build_manifest(
        manifest.batch, replace(decode(manifest), schema_json=json.dumps({"schema": "x"}))
    )
    with pytest.raises(ManifestCorruptError, match="no schema of Lance files"):
        query.target().commit(damaged)


# Clean-up and maintenance -------------------------------------------------------------------------------


def test_files_of_branches_and_old_versions_are_listed(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    query.run(store, query.batch(0), ids(0))
    harness.table().create_branch("mine")
    query.run(store, query.batch(1), ids(1), overwrite=True)
    harness.table().cleanup_old_versions(retain_versions=1)
    left = {path.name for path in harness.path.glob("data/*.lance")}
    assert len(left) == 2, "the clean-up of Lance keeps the file of the branch"

    cleanable = LanceCleanableTable(str(harness.path), {})
    assert set().union(*cleanable.names()) == left
    assert list(cleanable.names()) == [], "what was read is not read again"
    query.run(store, query.batch(2), ids(2))
    assert len(set().union(*cleanable.names()) - left) == 1


def test_compaction_keeps_the_rows_and_the_token(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    for number in range(5):
        query.run(store, query.batch(number), ids(number))
    assert compact(str(harness.path), {}, 2**27) == "compacted 5 fragments to 1"
    assert compact(str(harness.path), {}, 2**27) == ""
    query.run(store, query.batch(5), ids(5))

    assert sorted(harness.ids()) == list(range(6))
    assert len(harness.committed()) == 2


def test_fragments_that_are_large_enough_are_not_compacted_again(
    query: Query, store: SqlManifestStore, harness: LanceHarness
) -> None:
    for number in range(4):
        query.run(store, query.batch(number), ids(*range(number * 1024, number * 1024 + 1024)))
    sizes = [path.stat().st_size for path in harness.path.glob("data/*.lance")]
    assert len(set(sizes)) > 1, "the mean differs from each of them"

    assert compact(str(harness.path), {}, max(sizes)) == ""
    assert compact(str(harness.path), {}, 2 * max(sizes)) == "compacted 4 fragments to 2"


def test_a_batch_that_is_committed_during_a_compaction_stays(
    query: Query, store: SqlManifestStore, harness: LanceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        query.run(store, query.batch(number), ids(number))
    manifest = query.build(store, query.batch(3), ids(3))

    def load(uri: str, options: Mapping[str, str]) -> lance.LanceDataset:
        table = lance.dataset(uri)
        query.target().commit(manifest)
        return table

    monkeypatch.setattr(maintenance, "load_if_there", load)
    with pytest.raises(RetryableError, match="could not be compacted"):
        compact(str(harness.path), {}, 2**27)
    assert sorted(harness.ids()) == [0, 1, 2, 3]


def test_old_versions_are_kept_while_a_prepared_batch_is_almost_as_old(
    query: Query, store: SqlManifestStore, harness: LanceHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Lance's clean-up deletes data files that no version lists, once they are 7 days old."""
    query.run(store, query.batch(0), ids(0))
    manifest = query.prepare(store, query.batch(1), ids(1))
    pending = {Path(file.path).name for file in decode(manifest).files}
    now = datetime.now(timezone.utc)
    assert clean_up(str(harness.path), {}, now + timedelta(days=6, minutes=1), pending) == ""
    assert "is not delivered yet" in caplog.text

    caplog.clear()
    clean_up(str(harness.path), {}, now, pending)
    assert not caplog.text
    assert list(query.target().missing(manifest)) == []


# Changes by key ---------------------------------------------------------------------------------------


def test_indexes_find_the_rows_after_changes_and_nothing_that_was_deleted(
    harness: LanceHarness, store: SqlManifestStore
) -> None:
    """Also in a fragment that has no row left, which compaction removes."""
    query = Query(harness, options=OPTIONS)
    query.run(store, query.batch(0), changes(*((key, 1, "old") for key in range(10))))
    query.run(store, query.batch(1), changes(*((key, 1, "old") for key in range(10, 20))))
    harness.table().create_scalar_index("text", "BTREE")
    query.run(store, query.batch(2), changes(*((key, 2, "new") for key in range(8)), (9, 2), (10, 2)))
    query.run(store, query.batch(3), changes((8, 3)))

    def found(text: str) -> list[int]:
        return sorted(harness.table().to_table(filter=f"text = '{text}'").column("id").to_pylist())

    for _ in range(2):
        assert (found("old"), found("new")) == (list(range(11, 20)), list(range(8)))
        compact(str(harness.path), {}, 100_000)
    assert all(fragment.count_rows() for fragment in harness.table().get_fragments())
