"""Paimon tables of others and new ones: what is refused, partitions, columns, and clean-up."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from tests.support.paimon_table import IDS, PaimonHarness

from penstock.committers.errors import (
    ConfigurationError,
    ManifestCorruptError,
    SchemaMismatchError,
    TableNotSupportedError,
)
from penstock.committers.file_tables.manifest import build_manifest, decode
from penstock.committers.paimon.cleanup import PaimonCleanableTable
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.paimon.options import PaimonOptions
from penstock.testing.conformance.query import Query, ids

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
    manifest = query.build(store, query.batch(0), ids(0))
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
        (pa.field("_ROW_ID", pa.int64()), "_ROW_ID: Paimon and its connector for Spark"),
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

    manifest = query.build(store, query.batch(0), ids(0))
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


@pytest.mark.parametrize("change", [_with_deletion, _of_another_file, None])
def test_a_manifest_that_does_more_than_adding_its_files_is_not_committed(
    query: Query, store: SqlManifestStore, harness: PaimonHarness, change: Callable[[Any], None] | None
) -> None:
    from pypaimon.write.commit_message_serializer import deserialize_commit_message, serialize_commit_message

    manifest = query.build(store, query.batch(0), ids(0))
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

    assert list(PaimonCleanableTable(harness.in_catalog()).names()) == [files]
