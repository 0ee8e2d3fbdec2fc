"""A batch is committed once to an Iceberg table: tokens, overwriting, new columns.

Rows are read back with duckdb.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation
from tests.support.lakes import rows
from tests.support.readers import duckdb_with_iceberg
from tests.support.streams import SCHEMA, IcebergStream

from penstock.committers.contract import BATCH_WRITE_PREFIX, AlreadyCommitted, Committed, Conflict, Outcome
from penstock.committers.errors import (
    ManifestCorruptError,
    SchemaMismatchError,
    TableChangedError,
    TableNotSupportedError,
)
from penstock.committers.file_tables.manifest import build_manifest, decode
from penstock.testing.faults import at_point

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def stream(tmp_path: Path) -> IcebergStream:
    return IcebergStream(tmp_path)


# The token --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("location", ["", "file:///elsewhere", "{}/../elsewhere", "{}2/data", "s3://lake/t"])
def test_a_manifest_with_files_outside_of_the_table_is_refused(stream: IcebergStream, location: str) -> None:
    manifest = stream.prepare(0, [1, 2])
    place = location.format(stream.load().location())
    planted = build_manifest(manifest.batch, replace(decode(manifest), location=place))
    with pytest.raises(ManifestCorruptError, match="not a location of the table"):
        stream.committer().commit(planted)
    with pytest.raises(ManifestCorruptError, match="not a location of the table"):
        stream.committer().missing(planted)
    assert stream.committer().target_of(decode(planted)) is None
    assert isinstance(stream.committer().commit(manifest), Committed)


def test_token_and_summary_come_with_the_snapshot_in_one_metadata_version(stream: IcebergStream) -> None:
    stream.commit(0, [1])
    before = stream.load()
    stream.commit(7, [2, 3])
    now = stream.load()
    assert now.metadata.metadata_log[-1].metadata_file == before.metadata_location
    assert len(now.metadata.snapshots) == 2
    assert json.loads(now.properties["penstock.query-1"]) == {
        "batch_id": 7,
        "digest": stream.batch(7).digest,
        "snapshot_id": stream.head.snapshot_id,
        "sequence_number": 2,
        "timestamp_ms": stream.head.timestamp_ms,
        "origins": [],
    }
    summary = stream.head.summary
    assert summary is not None
    assert summary.operation == Operation.APPEND
    ours = {key: text for key, text in summary.additional_properties.items() if key.startswith("penstock.")}
    assert ours == {
        "penstock.query-id": "query-1",
        "penstock.batch-id": "7",
        "penstock.digest": stream.batch(7).digest,
        "penstock.files": "1",
        "penstock.rows": "2",
    }
    assert summary["total-records"] == "3"


BROKEN = ("", "{}", "[]", "null", "{", '{"batch_id": "one"}', '{"batch_id": 1e999}', "[" * 100_000)


@pytest.mark.parametrize("text", [*BROKEN, "a batch id as text"])
def test_a_token_that_was_changed_is_refused(stream: IcebergStream, text: str) -> None:
    stream.commit(0, [1])
    manifest = stream.prepare(1, [2])
    if text not in BROKEN:
        noted = json.loads(stream.load().properties["penstock.query-1"])
        text = json.dumps({**noted, "batch_id": "one"})
    stream.lake.set_properties({"penstock.query-1": text})
    for attempt in (lambda: stream.committer().token("query-1"), lambda: stream.committer().commit(manifest)):
        with pytest.raises(TableChangedError, match=r"'penstock\.query-1'.* was changed"):
            attempt()
    assert stream.ids() == [1]


def test_tokens_of_batch_writes_are_forgotten_after_a_week(stream: IcebergStream) -> None:
    """Each has a query id of its own: they would pile up. A stream's token stays, however old it is."""
    young, old = (f"{BATCH_WRITE_PREFIX}{uuid.uuid4()}" for _ in range(2))
    for query_id in (young, old, "old-stream"):
        replace(stream, query_id=query_id).commit(0, [1])
    for query_id, days in ((young, 6), (old, 8), ("old-stream", 100)):
        noted = json.loads(stream.load().properties[f"penstock.{query_id}"])
        noted["timestamp_ms"] -= days * DAY_MS
        stream.lake.set_properties({f"penstock.{query_id}": json.dumps(noted)})
    stream.lake.set_properties({f"penstock.{BATCH_WRITE_PREFIX}broken": "by another"})
    assert isinstance(stream.commit(0, [2]), Committed)
    properties = stream.load().properties
    assert f"penstock.{old}" not in properties
    kept = {f"penstock.{query_id}" for query_id in (young, "old-stream", "query-1")}
    assert kept <= set(properties)
    assert properties[f"penstock.{BATCH_WRITE_PREFIX}broken"] == "by another"


@pytest.mark.parametrize("text", [*BROKEN, "by another"])
@pytest.mark.parametrize("query_id", [f"{BATCH_WRITE_PREFIX}x", "query-2"])
def test_invalid_tokens_of_others_are_ignored(stream: IcebergStream, query_id: str, text: str) -> None:
    stream.commit(0, [1])
    stream.lake.set_properties({f"penstock.{query_id}": text})
    assert stream.committer().recorded_origin("query-3", ["checkpoint:x"]) is None
    assert isinstance(stream.commit(1, [2]), Committed)
    assert stream.ids() == [1, 2]
    assert stream.load().properties[f"penstock.{query_id}"] == text


# Overwrite --------------------------------------------------------------------------------------------


def test_overwrite_replaces_all_rows_in_one_snapshot(stream: IcebergStream) -> None:
    """In two, readers between them would find an empty table."""
    stream.commit(0, [1, 2])
    stream.lake.append(100)
    manifest = stream.prepare(1, [3], mode="overwrite")
    before = stream.load()
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.head.parent_snapshot_id == before.metadata.current_snapshot_id
    assert stream.head.summary is not None
    assert stream.head.summary.operation == Operation.OVERWRITE
    assert stream.head.summary["total-records"] == "1"
    assert isinstance(stream.committer().commit(manifest), AlreadyCommitted)
    assert stream.ids() == [3]
    with duckdb_with_iceberg() as connection:
        for snapshot in stream.load().metadata.snapshots:
            scan = f"iceberg_scan('{stream.lake.metadata_location}', snapshot_from_id={snapshot.snapshot_id})"
            found = connection.execute(f"SELECT id FROM {scan} ORDER BY id").fetchall()
            assert found in ([(1,), (2,)], [(1,), (2,), (100,)], [(3,)])


def overwrite_with_nothing(stream: IcebergStream, batch_id: int) -> Outcome:
    content = stream.plan("overwrite").content
    return stream.committer().commit(build_manifest(stream.batch(batch_id), content))


def test_overwriting_with_nothing_empties_the_table_as_often_as_it_is_done(stream: IcebergStream) -> None:
    """Of an empty table too: each batch is one snapshot, with its token."""
    for batch_id in range(0, 6, 3):
        assert isinstance(overwrite_with_nothing(stream, batch_id), Committed)
        assert isinstance(overwrite_with_nothing(stream, batch_id + 1), Committed)
        assert stream.ids() == []
        stream.commit(batch_id + 2, [1], mode="overwrite")
        assert stream.ids() == [1]
    assert stream.lake.versions() == 6


def test_overwrite_of_a_branch_leaves_the_main_branch_alone(stream: IcebergStream) -> None:
    stream.commit(0, [1])
    audit = replace(stream, branch="audit")
    audit.commit(0, [2], mode="overwrite")
    assert (stream.ids(), audit.ids()) == ([1], [2])


# New columns ------------------------------------------------------------------------------------------

WIDER = pa.schema([*SCHEMA, ("note", pa.string())])


def test_new_columns_come_with_the_batch_in_one_metadata_version(stream: IcebergStream) -> None:
    stream.commit(0, [1])
    before = stream.load()
    manifest = stream.evolving.prepare(1, [2], schema=WIDER, note="new")
    assert stream.load().metadata == before.metadata, "planning adds nothing"
    assert isinstance(stream.committer().commit(manifest), Committed)
    now = stream.load()
    assert now.metadata.metadata_log[-1].metadata_file == before.metadata_location
    assert len(now.metadata.snapshots) == 2
    assert stream.head.schema_id == now.metadata.current_schema_id == 1
    assert rows(stream.lake, "id, note") == [(1, None), (2, "new")]


def test_an_uncommitted_batch_with_a_new_column_leaves_the_schema_alone(stream: IcebergStream) -> None:
    stream.commit(0, [1])
    manifest = stream.evolving.prepare(1, [2], schema=WIDER, note="new")
    with at_point("commit.start", lambda: stream.lake.append(100)):
        assert isinstance(stream.committer().commit(manifest), Conflict)
    assert stream.load().schema().column_names == ["id", "name"]
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert rows(stream.lake, "id, note") == [(1, None), (2, "new"), (100, None)]


def test_another_query_that_added_the_same_column_first_is_followed(stream: IcebergStream) -> None:
    stream.commit(0, [1])
    ours = stream.evolving.prepare(1, [2], schema=WIDER, note="ours")
    replace(stream.evolving, query_id="query-2").commit(0, [3], schema=WIDER, note="theirs")
    assert isinstance(stream.committer().commit(ours), Committed)
    assert rows(stream.lake, "id, note") == [(1, None), (2, "ours"), (3, "theirs")]


def test_a_new_column_with_another_field_id_than_in_the_files_is_refused(stream: IcebergStream) -> None:
    stream.commit(0, [1])
    manifest = stream.evolving.prepare(1, [2], schema=WIDER, note="new")
    content = decode(manifest)
    schema = json.loads(content.schema_json)
    schema["fields"][-1]["id"] = 9
    manifest = build_manifest(manifest.batch, replace(content, schema_json=json.dumps(schema)))
    with pytest.raises(
        SchemaMismatchError, match=r"'note' would get a field id other than the one in the files"
    ):
        stream.committer().commit(manifest)
    assert stream.lake.versions() == 1
    assert stream.lake.orphan_manifests() == set()


def test_new_fields_of_structs_come_with_the_batch(stream: IcebergStream) -> None:
    narrow = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64())]))])
    stream.commit(0, [1], schema=narrow, s={"a": 1})
    wide = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])
    more = pa.schema([("id", pa.int64()), ("s", wide), ("l", pa.list_(pa.struct([("x", pa.int64())])))])
    stream.evolving.commit(1, [2], schema=more, s={"a": 2, "b": {"c": "x"}}, l=[{"x": 5}])
    assert rows(stream.lake, "id, s.a, s.b.c, l[1].x") == [(1, 1, None, None), (2, 2, "x", 5)]


# Files ------------------------------------------------------------------------------------------------


def test_without_a_table_all_files_are_missing_and_none_is_deleted(stream: IcebergStream) -> None:
    manifest = stream.prepare(0, [1])
    stream.lake.sql_catalog.drop_table(stream.name)
    committer = stream.committer()
    assert len(committer.missing(manifest)) == 1
    assert committer.delete_files(committer.missing(manifest)) == 0


@pytest.mark.slow
def test_150_commits_keep_manifests_and_metadata_files_few(stream: IcebergStream) -> None:
    """By the properties of new tables. Expiry removes snapshots."""
    planned = stream.plan()
    for batch_id in range(150):
        files = stream.write(planned, batch_id, [batch_id])
        manifest = build_manifest(stream.batch(batch_id), planned.content.with_files(files))
        stream.committer().commit(manifest)
        if batch_id % 25 == 24:
            stream.lake.expire()
    assert len(stream.head.manifests(stream.load().io)) <= 100
    assert len(list(stream.lake.folder.rglob("*.metadata.json"))) <= 11
    assert stream.ids() == list(range(150))


def test_a_merge_leaves_no_manifest_that_no_snapshot_names(stream: IcebergStream) -> None:
    """The new files' own manifest is merged at once: pyiceberg would leave it for good."""
    stream = stream.with_options(table_properties={"commit.manifest.min-count-to-merge": "2"})
    for batch_id in range(4):
        stream.commit(batch_id, [batch_id])
    table = stream.load()
    named = {
        Path(manifest.manifest_path).name
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
    }
    there = {path.name for path in stream.lake.folder.rglob("*.avro")}
    assert {name for name in there if not name.startswith("snap-")} == named
    assert stream.ids() == [0, 1, 2, 3]


def test_manifests_are_merged_in_tables_without_the_property(stream: IcebergStream) -> None:
    """Iceberg merges by default, pyiceberg does not. The table's properties stay as they are."""
    table_properties = {"commit.manifest.min-count-to-merge": "3"}
    stream = stream.with_options(table_properties=table_properties)
    stream.plan()
    with stream.load().transaction() as transaction:
        transaction.remove_properties("commit.manifest-merge.enabled")
    for batch_id in range(10):
        stream.commit(batch_id, [batch_id])
    table = stream.load()
    assert len(stream.head.manifests(table.io)) <= 3
    assert "commit.manifest-merge.enabled" not in table.properties
    stream.lake.set_properties({"commit.manifest-merge.enabled": "false"})
    for batch_id in range(10, 15):
        stream.commit(batch_id, [batch_id])
    assert len(stream.head.manifests(stream.load().io)) >= 5
    assert stream.ids() == list(range(15))


def test_a_property_that_forbids_direct_commits_and_was_set_meanwhile_is_named(stream: IcebergStream) -> None:
    stream.commit(0, [1])
    manifest = stream.prepare(1, [2])
    stream.lake.set_properties({"write.format.default": "orc"})
    with pytest.raises(TableNotSupportedError, match=r"write\.format\.default = orc"):
        stream.committer().commit(manifest)
    assert stream.ids() == [1]
