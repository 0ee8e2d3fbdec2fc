"""The guards of the Paimon committer: tokens, snapshots, other writers, foreign tables."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.paimon_table import IDS, PaimonHarness
from tests.support.race import race

from penstock.committers.contract import BATCH_WRITE_PREFIX, AlreadyCommitted, Committed, Conflict, Manifest
from penstock.committers.errors import (
    ConfigurationError,
    ManifestCorruptError,
    SchemaMismatchError,
    TableChangedError,
    TableNotSupportedError,
)
from penstock.committers.file_tables.manifest import build_manifest, decode
from penstock.committers.paimon import folder
from penstock.committers.paimon.cleanup import PaimonCleanableTable
from penstock.committers.paimon.committer import PaimonTableCommitter
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.paimon.options import PaimonOptions
from penstock.testing.conformance.query import Query, ids
from penstock.testing.faults import at_point, crash_at


@pytest.fixture
def harness(tmp_path: Path) -> PaimonHarness:
    return PaimonHarness(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        yield store


@pytest.fixture
def query(harness: PaimonHarness, store: SqlManifestStore) -> Query:
    return Query(harness, store=store)


def prepared(query: Query, store: SqlManifestStore, batch_id: int, *rows: pa.Table) -> Manifest:
    """A manifest that is not committed yet."""
    return query.manifest(query.write(query.plan(store, query.batch(batch_id), rows[0].schema), rows))


# Two committers ---------------------------------------------------------------------------------------


def test_two_processes_that_race_never_double_a_batch(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    manifests = [prepared(query, store, number, ids(number)) for number in range(30)]
    race(partial(PaimonTableCommitter, str(harness.path)), manifests)

    assert sorted(harness.ids()) == list(range(30))
    assert list(harness.snapshots()) == list(range(1, 31))
    assert harness.problems() == []


def test_a_commit_after_a_snapshot_of_others_is_tried_again(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    query.run(store, query.batch(0), ids(0))
    manifest = prepared(query, store, 1, ids(1))
    with at_point("commit.start", lambda: harness.append(100)):
        assert isinstance(query.target().commit(manifest), Conflict)
    assert sorted(harness.ids()) == [0, 100]
    assert harness.orphan_manifests() == []

    assert isinstance(query.target().commit(manifest), Committed)
    assert sorted(harness.ids()) == [0, 1, 100]
    assert harness.problems() == []


def test_a_snapshot_that_is_there_at_the_last_moment_is_not_replaced(
    query: Query, store: SqlManifestStore, harness: PaimonHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another query commits when the file is ready, and has not its name yet."""
    other = Query(harness, "q2", store=store)
    manifests = [prepared(query, store, 0, ids(0)), prepared(other, store, 0, ids(100))]
    real = folder._temporary
    others: list[Path] = []

    def temporary(target: Path, content: bytes) -> Path:
        ready = real(target, content)
        if target.name == "snapshot-1" and not others:
            others.append(target)
            other.target().commit(manifests[1])
        return ready

    monkeypatch.setattr(folder, "_temporary", temporary)
    assert isinstance(query.target().commit(manifests[0]), Conflict)
    assert harness.ids() == [100]
    assert harness.orphan_manifests() == []
    query.target().commit(manifests[0])
    assert sorted(harness.ids()) == [0, 100]


def test_a_late_batch_that_overwrites_does_not_remove_what_came_after_it(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    """A twin of the driver commits the batch and the next one, while this one is about to commit."""
    manifest = query.manifest(query.write(query.plan(store, query.batch(0), overwrite=True), [ids(0)]))
    following = prepared(query, store, 1, ids(1))

    def commit_both() -> None:
        query.target().commit(manifest)
        query.target().commit(following)

    with at_point("commit.start", commit_both):
        outcome = query.target().commit(manifest)
    assert not isinstance(outcome, Conflict)
    assert sorted(harness.ids()) == [0, 1]


def test_a_snapshot_that_another_writer_has_replaced_is_noticed(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    """Paimon's commit to a file-system catalog renames a file over it, if both commit at once."""
    query.run(store, query.batch(0), ids(0))
    harness.append(100)
    snapshots = harness.path / "snapshot"
    foreign = json.loads((snapshots / "snapshot-2").read_text())
    (snapshots / "snapshot-2").unlink()
    (snapshots / "snapshot-1").write_text(json.dumps({**foreign, "id": 1}))

    with pytest.raises(TableChangedError, match="another writer has replaced the snapshot"):
        query.run(store, query.batch(1), ids(1))


# The token --------------------------------------------------------------------------------------------


def test_the_token_survives_the_expiry_of_its_snapshot(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    manifest = prepared(query, store, 0, ids(0))
    query.target().commit(manifest)
    for row_id in (100, 101):
        harness.append(row_id)
    harness.expire()
    assert isinstance(query.target().commit(manifest), AlreadyCommitted)
    query.run(store, query.batch(1), ids(1))

    assert sorted(harness.ids()) == [0, 1, 100, 101]


@pytest.mark.parametrize("is_new", [True, False], ids=["first batch", "later batch"])
def test_an_interrupted_commit_is_found_unless_its_snapshot_may_have_expired(
    query: Query, store: SqlManifestStore, harness: PaimonHarness, is_new: bool
) -> None:
    """The driver dies between the snapshot and the note."""
    if not is_new:
        query.run(store, query.batch(0), ids(0))
    manifest = prepared(query, store, 1, ids(1))
    with crash_at("commit.landed"):
        query.target().commit(manifest)
    harness.append(100)
    token = query.target().token("q1")
    assert token is not None
    assert token.batch_id == 1

    harness.expire()
    before = sorted(harness.ids())
    for _ in range(2):
        with pytest.raises(TableChangedError, match="unknown whether"):
            query.target().commit(manifest)
    with pytest.raises(TableChangedError, match="unknown whether"):
        query.target().token("q1")
    assert sorted(harness.ids()) == before


def test_an_interrupted_commit_without_its_snapshot_is_made_again(
    query: Query, store: SqlManifestStore, harness: PaimonHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = prepared(query, store, 0, ids(0))

    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", die)
        with pytest.raises(Died):
            query.target().commit(manifest)
    harness.append(100)

    assert isinstance(query.target().commit(manifest), Committed)
    assert sorted(harness.ids()) == [0, 100]


def test_without_its_note_a_batch_is_only_committed_if_no_snapshot_since_its_plan_has_expired(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    manifest = prepared(query, store, 0, ids(0))
    query.target().commit(manifest)
    harness.append(100)
    harness.expire()
    (harness.path / "penstock" / "q1.json").unlink()

    with pytest.raises(TableChangedError, match="unknown whether"):
        query.target().commit(manifest)


def test_a_note_that_was_changed_by_hand_is_reported(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    query.run(store, query.batch(0), ids(0))
    (harness.path / "penstock" / "q1.json").write_text("{}")

    with pytest.raises(TableChangedError, match="is not what Penstock"):
        query.target().token("q1")


def test_notes_of_old_batch_writes_are_deleted(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    write = Query(harness, f"{BATCH_WRITE_PREFIX}1", store=store)
    then = datetime.now(timezone.utc) - timedelta(days=8)
    manifest = prepared(write, store, 0, ids(0))
    PaimonTableCommitter(str(harness.path), now_ms=lambda: int(then.timestamp() * 1000)).commit(manifest)
    young = Query(harness, f"{BATCH_WRITE_PREFIX}2", store=store)
    young.target().commit(prepared(young, store, 0, ids(1)))
    query.run(store, query.batch(0), ids(2))

    notes = {path.name for path in (harness.path / "penstock").iterdir()}
    assert notes == {f"{BATCH_WRITE_PREFIX}2.json", "q1.json"}


def test_a_snapshot_says_what_it_was(query: Query, store: SqlManifestStore, harness: PaimonHarness) -> None:
    query.run(store, query.batch(7), ids(0, 1))

    snapshot = harness.snapshots()[1]
    assert (snapshot["commitUser"], snapshot["commitIdentifier"]) == ("penstock-q1", 7)
    shown = {key: snapshot["properties"][f"penstock.{key}"] for key in ("query-id", "batch-id", "rows")}
    assert shown == {"query-id": "q1", "batch-id": "7", "rows": "2"}


# The table --------------------------------------------------------------------------------------------

REFUSED: dict[str, Mapping[str, Any]] = {
    r"primary key \(id\)": {"primary_keys": ["id"]},
    "bucket=2": {"properties": {"bucket": "2", "bucket-key": "id"}},
    "deletion-vectors.enabled=true": {"properties": {"deletion-vectors.enabled": "true"}},
    "row-tracking.enabled=true": {"properties": {"row-tracking.enabled": "true"}},
    "file.format=orc": {"properties": {"file.format": "orc"}},
    "metadata.iceberg.storage=table-location": {"properties": {"metadata.iceberg.storage": "table-location"}},
    "changelog-producer=input": {"primary_keys": ["id"], "properties": {"changelog-producer": "input"}},
    "file-index.bloom-filter.columns": {"properties": {"file-index.bloom-filter.columns": "id"}},
}


@pytest.mark.parametrize("feature", REFUSED)
def test_a_table_whose_commits_have_more_than_files_is_refused_by_name(
    query: Query, store: SqlManifestStore, harness: PaimonHarness, feature: str
) -> None:
    harness.create(IDS, **REFUSED[feature])
    with pytest.raises(TableNotSupportedError, match=feature):
        query.plan(store, query.batch(0))
    assert harness.snapshots() == {}


def test_a_table_that_gets_such_a_feature_is_not_committed_to(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    manifest = prepared(query, store, 0, ids(0))
    schema = json.loads((harness.path / "schema" / "schema-0").read_text())
    changed = {**schema, "id": 1, "options": {**schema["options"], "deletion-vectors.enabled": "true"}}
    (harness.path / "schema" / "schema-1").write_text(json.dumps(changed))

    with pytest.raises(TableNotSupportedError, match="deletion-vectors"):
        query.target().commit(manifest)
    assert harness.snapshots() == {}


def test_a_branch_is_refused(harness: PaimonHarness, store: SqlManifestStore, query: Query) -> None:
    query.run(store, query.batch(0), ids(0))
    harness.table().create_tag("v1")
    harness.table().branch_manager().create_branch("dev", "v1")
    branch = Query(
        harness, "q2", destination_options={"path": f"{harness.path}/branch/branch-dev"}, store=store
    )
    with pytest.raises(TableNotSupportedError, match="it is a branch of another table"):
        branch.plan(store, branch.batch(0))


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (pa.field("x", pa.time64("ns")), r"x: Paimon has no type for time64\[ns\]"),
        (pa.field("x", pa.struct([("a", pa.duration("us"))])), r"x\.a: Paimon has no type for duration"),
        (pa.field("_ROW_ID", pa.int64()), "_ROW_ID: Paimon reserves this name"),
        (pa.field("ID", pa.int64()), "id: id and ID differ only by case"),
    ],
)
def test_a_new_table_that_would_lose_values_is_refused_by_name(
    query: Query, store: SqlManifestStore, harness: PaimonHarness, column: pa.Field, problem: str
) -> None:
    with pytest.raises(SchemaMismatchError, match=problem):
        query.plan(store, query.batch(0), pa.schema([*IDS, column]))
    assert not harness.path.exists()


DAYS = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("text", pa.string())])
VALUES = [(0, date(2026, 1, 31), "a b/c=%"), (1, None, ""), (2, date(1969, 12, 31), None), (3, None, " ")]


@pytest.mark.parametrize("of_others", [True, False], ids=["of others", "new"])
def test_rows_are_in_the_partitions_where_paimon_finds_them(
    store: SqlManifestStore, harness: PaimonHarness, of_others: bool
) -> None:
    if of_others:
        harness.create(DAYS, partition_by=["day", "text"])
    query = Query(harness, options={"partitionBy": "DAY, text"}, store=store)
    rows = pa.Table.from_pylist([dict(zip(DAYS.names, one, strict=True)) for one in VALUES], schema=DAYS)
    query.run(store, query.batch(0), rows)

    assert sorted(harness.rows("id, day, text")) == VALUES
    table = harness.table()
    for row_id, day, text in VALUES:
        builder = table.new_read_builder()
        is_ = builder.new_predicate_builder()
        found = builder.with_filter(
            is_.and_predicates(
                [
                    is_.is_null("day") if day is None else is_.equal("day", day),
                    is_.is_null("text") if text is None else is_.equal("text", text),
                ]
            )
        )
        plan = found.new_scan().plan()
        assert found.new_read().to_arrow(plan.splits())["id"].to_pylist() == [row_id]


def test_a_batch_that_overwrites_replaces_all_partitions(
    store: SqlManifestStore, harness: PaimonHarness
) -> None:
    query = Query(harness, options={"partitionBy": "day"}, store=store)
    rows = pa.Table.from_pylist([dict(zip(DAYS.names, one, strict=True)) for one in VALUES], schema=DAYS)
    query.run(store, query.batch(0), rows)
    plan = query.plan(store, query.batch(1), DAYS, overwrite=True)
    query.target().commit(query.manifest(query.write(plan, [rows.slice(0, 1)])))

    assert harness.ids() == [0]
    assert harness.problems() == []


def test_a_table_that_is_partitioned_differently_is_not_written(
    store: SqlManifestStore, harness: PaimonHarness
) -> None:
    harness.create(DAYS, partition_by=["day"])
    query = Query(harness, options={"partitionBy": "text"}, store=store)
    with pytest.raises(ConfigurationError, match=r"partitionBy asks for text, but .* has day"):
        query.plan(store, query.batch(0), DAYS)


def test_a_batch_is_committed_after_others_have_added_a_column(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    from pypaimon.schema.data_types import AtomicType
    from pypaimon.schema.schema_change import SchemaChange

    manifest = prepared(query, store, 0, ids(0))
    harness.table().schema_manager.commit_changes([SchemaChange.add_column("x", AtomicType("INT"))])
    query.target().commit(manifest)
    wider = pa.table({"id": pa.array([1], pa.int64()), "x": pa.array([5], pa.int32())})
    query.run(store, query.batch(1), wider)

    builder = harness.table().new_read_builder()
    read = builder.new_read().to_arrow(builder.new_scan().plan().splits()).sort_by("id")
    assert read.to_pydict() == {"id": [0, 1], "x": [None, 5]}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"path": "s3://bucket/table"}, "must be on a disk that driver and executors share"),
        ({"path": "/t", "schemaEvolution": "addColumns"}, "add the columns with Paimon"),
        ({}, "path is missing"),
    ],
)
def test_options_that_are_not_safe_are_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        PaimonOptions.parse({"checkpointLocation": "/checkpoint", **options})


def test_a_location_with_something_else_is_refused(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    (harness.path / "_delta_log").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="'_delta_log'"):
        query.plan(store, query.batch(0))


# Manifests and clean-up ---------------------------------------------------------------------------------


def _with_deletion(message: Any) -> None:
    message.deleted_files = message.new_files


def _of_another_file(message: Any) -> None:
    message.new_files[0].file_name = "other.parquet"


@pytest.mark.parametrize("change", [_with_deletion, _of_another_file, None], ids=str)
def test_a_manifest_that_does_more_than_adding_its_files_is_not_committed(
    query: Query, store: SqlManifestStore, harness: PaimonHarness, change: Callable[[Any], None] | None
) -> None:
    from pypaimon.write.commit_message_serializer import deserialize_commit_message, serialize_commit_message

    manifest = prepared(query, store, 0, ids(0))
    content = decode(manifest)
    statistics = base64.b64encode(b"nonsense").decode()
    if change is not None:
        message = deserialize_commit_message(base64.b64decode(content.files[0].statistics), [])
        change(message)
        statistics = base64.b64encode(serialize_commit_message(message, [])).decode()
    file = replace(content.files[0], statistics=statistics)
    with pytest.raises(ManifestCorruptError, match="no valid commit message"):
        query.target().commit(build_manifest(manifest.batch, content.with_files([file])))
    assert harness.snapshots() == {}


@pytest.mark.parametrize("kept", ["tag", "branch"])
def test_files_of_tags_and_branches_are_listed_for_clean_up(
    query: Query, store: SqlManifestStore, harness: PaimonHarness, kept: str
) -> None:
    query.run(store, query.batch(0), ids(0))
    harness.table().create_tag("v1")
    harness.table().branch_manager().create_branch("dev", "v1")
    files = set(harness.committed())
    for other in {"tag", "branch", "snapshot"} - {kept}:
        shutil.rmtree(harness.path / other)

    assert list(PaimonCleanableTable(str(harness.path)).names()) == [files]
