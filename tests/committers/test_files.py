"""What a folder of files refuses, and what a process leaves that dies while it publishes."""

from __future__ import annotations

import json
import os
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.file_rows import stage, target_of
from tests.support.files import FilesHarness

from penstock.committers.contract import Batch, Committed, DataFile, Manifest, StreamKey
from penstock.committers.errors import (
    CommitStateUnknownError,
    ConfigurationError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
    TableNotSupportedError,
)
from penstock.committers.files.cleanup import CleanableFolder
from penstock.committers.files.committer import FilesCommitter
from penstock.committers.files.local_folder import LocalFolder
from penstock.committers.files.spark_metadata import take_over
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.files.options import FilesOptions
from penstock.datasource.files.sink import StoredFolder
from penstock.datasource.files.target import CompactableFilesTarget
from penstock.delivery.compaction import DeliveryCompactor
from penstock.delivery.rewriting import GroupRewriter, InlineExecutor
from penstock.delivery.sources import remove_sources
from penstock.destination import is_committed
from penstock.testing.conformance import Query
from penstock.testing.conformance.deliveries import deliver
from penstock.testing.conformance.query import ids

FILE, OTHER_FILE = DataFile("a.parquet", 1, 1), DataFile("b.parquet", 1, 1)
ROWS = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture
def harness(tmp_path: Path) -> FilesHarness:
    return FilesHarness(tmp_path)


def staged(harness: FilesHarness, batch_id: int = 0, **options: str) -> Manifest:
    """A batch of two files, in two partitions."""
    rows = pa.table({"id": [2 * batch_id, 2 * batch_id + 1], "day": ["x", "y"]}, schema=ROWS)
    return stage(target_of(harness, partitionBy="day", **options), rows, batch_id)


@pytest.mark.parametrize("kind", ["markers", "files", "partition"])
@pytest.mark.parametrize("path", ["../outside/it", "day=x/../../outside/it", "%2e%2e/outside/it", "/tmp/it"])
def test_a_journal_that_names_a_path_elsewhere_writes_nothing(
    harness: FilesHarness, tmp_path: Path, kind: str, path: str
) -> None:
    """Who can write to the folder could otherwise let the driver write any file."""
    FilesCommitter(str(harness.folder)).commit(staged(harness))
    (journal,) = harness.staging.glob("*.journal")
    more: dict[str, dict[str, object]] = {
        "markers": {"markers": {path: "x"}},
        "files": {"files": [path]},
        "partition": {"catalog": {"name": "hive", "table": "a.b", "partitions": {path: ["x"]}}},
    }
    journal.write_text(json.dumps({**json.loads(journal.read_text()), "published": False, **more[kind]}))
    (tmp_path / "outside").mkdir()
    with pytest.raises(TableChangedError, match=r"(?s)journal.*names .*not a path below the folder"):
        FilesCommitter(str(harness.folder)).token("q1")
    assert list((tmp_path / "outside").iterdir()) == []


def test_no_data_file_is_written_behind_a_link(harness: FilesHarness, tmp_path: Path) -> None:
    manifest, outside = staged(harness), tmp_path / "outside"
    outside.mkdir()
    (harness.folder / "day=x").symlink_to(outside)
    with pytest.raises(TableChangedError, match=r"(?s)does not write .*does not lie below"):
        FilesCommitter(str(harness.folder)).commit(manifest)
    assert list(outside.iterdir()) == []


def test_no_marker_is_written_elsewhere(harness: FilesHarness, tmp_path: Path) -> None:
    staged(harness)
    with pytest.raises(TableChangedError, match="does not lie below"):
        LocalFolder(str(harness.folder)).mark({"../it": "x"})
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize("name", [".lock", "q1.next"])
def test_no_link_in_the_staging_folder_is_written_through(
    harness: FilesHarness, tmp_path: Path, name: str
) -> None:
    manifest, other = staged(harness), tmp_path / "other"
    other.write_text("kept")
    (harness.staging / name).symlink_to(other)
    with pytest.raises(RetryableError, match="could not be written"):
        FilesCommitter(str(harness.folder)).commit(manifest)
    assert other.read_text() == "kept"


@pytest.mark.parametrize("name", [".lock", "q1.next", "q1.journal"])
def test_a_named_pipe_in_the_staging_folder_does_not_hang(harness: FilesHarness, name: str) -> None:
    manifest = staged(harness)
    os.mkfifo(harness.staging / name)
    with pytest.raises(RetryableError, match=name):
        FilesCommitter(str(harness.folder)).commit(manifest)


@pytest.mark.parametrize("query_id", ["../q", "a/../../q"])
def test_a_query_id_of_the_store_is_no_path(harness: FilesHarness, query_id: str) -> None:
    with pytest.raises(TableChangedError, match="does not lie below"):
        FilesCommitter(str(harness.folder)).token(query_id)


def test_files_that_a_dead_process_has_not_renamed_are_published_with_the_token(
    harness: FilesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, rename = staged(harness), Path.rename
    renamed: list[Path] = []

    def dies_after_one(path: Path, to: Path) -> Path:
        if renamed:
            raise OSError("no more")
        renamed.append(to)
        return rename(path, to)

    committer = FilesCommitter(str(harness.folder))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dies_after_one)
        with pytest.raises(CommitStateUnknownError, match="no more"):
            committer.commit(manifest)
    assert len(harness.ids()) == 1

    token = FilesCommitter(str(harness.folder)).token("q1")
    assert is_committed(manifest, token, "folder")
    assert sorted(harness.ids()) == [0, 1]
    assert not harness.uncommitted()


def test_a_journal_that_lists_a_lost_file_is_an_error(
    harness: FilesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, to: Path) -> Path:
        raise OSError(f"no {to} for {path}")

    manifest, committer = staged(harness), FilesCommitter(str(harness.folder))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fails)
        with pytest.raises(CommitStateUnknownError):
            committer.commit(manifest)
    harness.delete_uncommitted()
    with pytest.raises(TableChangedError, match="is missing"):
        FilesCommitter(str(harness.folder)).token("q1")


@pytest.mark.parametrize(
    ("success", "marked"), [("batch", ["_SUCCESS"]), ("partition", ["day=x/_SUCCESS", "day=y/_SUCCESS"])]
)
def test_a_batch_is_marked_once_all_its_files_are_published(
    harness: FilesHarness, monkeypatch: pytest.MonkeyPatch, success: str, marked: list[str]
) -> None:
    """Processes that commit the batch, or a part of it, need not know the options of the query."""
    committer, options = (
        FilesCommitter(str(harness.folder)),
        {"successFiles": success, "batchManifests": "true"},
    )
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "mark", Mock(side_effect=RetryableError("no more")))
        with pytest.raises(CommitStateUnknownError, match="no more"):
            committer.commit(staged(harness, 0, **options))
    assert list(harness.folder.rglob("_*")) == []
    assert sorted(harness.ids()) == [0, 1]

    committer.token("q1")
    manifest = f"_manifest/q1-{0:020}.manifest"
    found = [path.relative_to(harness.folder).as_posix() for path in harness.folder.rglob("_*/*")]
    found += [path.relative_to(harness.folder).as_posix() for path in harness.folder.rglob("_SUCCESS")]
    assert sorted(set(found)) == sorted([manifest, *marked])
    listed = json.loads((harness.folder / manifest).read_text())
    assert (listed["query_id"], listed["batch_id"]) == ("q1", 0)
    for file in listed["files"]:
        path = harness.folder / file["path"]
        assert (pq.read_metadata(path).num_rows, path.stat().st_size) == (file["rows"], file["size_bytes"])
    assert len(listed["files"]) == len(harness.ids()) == 2
    assert isinstance(committer.commit(staged(harness, 1, **options)), Committed)
    assert len(list((harness.folder / "_manifest").iterdir())) == 2
    assert not harness.uncommitted()


def test_the_file_of_another_writer_is_not_overwritten(harness: FilesHarness) -> None:
    manifest = staged(harness)
    (name, *_) = sorted(harness.uncommitted())
    other = harness.folder / name
    other.parent.mkdir(parents=True)
    other.write_bytes(b"others")
    committer = FilesCommitter(str(harness.folder))
    with pytest.raises(TableChangedError, match="exists already"):
        committer.commit(manifest)
    assert other.read_bytes() == b"others"


def test_published_files_may_be_deleted(harness: FilesHarness) -> None:
    committer = FilesCommitter(str(harness.folder))
    committer.commit(staged(harness))
    for path in harness.folder.rglob("*.parquet"):
        path.unlink()
    assert isinstance(committer.commit(staged(harness, 1)), Committed)
    assert sorted(harness.ids()) == [2, 3]


def test_a_damaged_journal_and_a_missing_folder_are_errors(harness: FilesHarness) -> None:
    committer = FilesCommitter(str(harness.folder))
    committer.commit(staged(harness))
    harness.folder.rename(harness.folder.with_name("moved"))
    with pytest.raises(TableChangedError, match="no longer exists"):
        committer.token("q1")
    harness.folder.with_name("moved").rename(harness.folder)
    (harness.staging / "q1.journal").write_text("{}")
    with pytest.raises(TableChangedError, match="journal"):
        committer.token("q1")


@pytest.mark.parametrize("path", ["_delta_log", "metadata/v1.metadata.json", ".hoodie"])
def test_tables_of_other_formats_are_refused(harness: FilesHarness, path: str) -> None:
    (harness.folder / path).mkdir(parents=True)
    with pytest.raises(TableNotSupportedError, match="is a table of"):
        target_of(harness).plan_batch(ROWS, "append", 0)


# A folder of Spark's own file sink ---------------------------------------------------------------------


def spark_sink(harness: FilesHarness, *batches: list[int]) -> None:
    """Write batches as Spark's file sink does: a file and an entry of the log for each.

    Each third batch has a compact file; before the last batch, the folder gets the file of a failed attempt.
    """
    log = harness.folder / "_spark_metadata"
    log.mkdir(parents=True)
    lines: list[str] = []
    for batch_id, row_ids in enumerate(batches):
        path = harness.folder / "k=a%3A ä" / f"part-{batch_id}.snappy.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(ids(*row_ids), path)
        entry = {"path": f"file://{quote(str(path))}", "size": path.stat().st_size, "action": "add"}
        lines.append(json.dumps(entry))
        is_compact = batch_id % 3 == 2
        content = "\n".join(["v1", *(lines if is_compact else lines[-1:])])
        (log / f"{batch_id}{'.compact' if is_compact else ''}").write_text(content)
    pq.write_table(ids(*batches[-1]), harness.folder / "k=a%3A ä" / "part-failed.snappy.parquet")


KEYED = ids(100).append_column("k", pa.array(["b"]))


def test_a_folder_of_spark_s_file_sink_is_refused(harness: FilesHarness, store: SqlManifestStore) -> None:
    """Its readers would not see the rows."""
    spark_sink(harness, [1], [2])
    query = Query(harness, options={"partitionBy": "k"})
    with pytest.raises(TableNotSupportedError, match=r"_spark_metadata.* sparkMetadata=takeOver"):
        query.run(store, query.batch(0), KEYED)
    assert (harness.folder / "_spark_metadata" / "1").exists()
    with pytest.raises(ConfigurationError, match="only possible on the local disk"):
        FilesOptions.parse({"path": "s3://bucket/folder", "sparkMetadata": "takeOver"})


def test_a_folder_of_spark_s_file_sink_is_taken_over_with_the_files_that_its_readers_saw(
    harness: FilesHarness, store: SqlManifestStore
) -> None:
    spark_sink(harness, *([number] for number in range(5)))
    own = harness.folder / "k=b" / "penstock-of-an-earlier-version.parquet"
    own.parent.mkdir()
    pq.write_table(ids(99), own)
    query = Query(harness, options={"partitionBy": "k", "sparkMetadata": "takeOver"})
    for batch_id in range(2):
        query.run(store, query.batch(batch_id), KEYED)
    assert sorted(harness.ids()) == [0, 1, 2, 3, 4, 99, 100, 100]
    assert not (harness.folder / "_spark_metadata").exists()
    aside = harness.staging / "spark-file-sink"
    assert [path.name for path in aside.rglob("*.parquet")] == ["part-failed.snappy.parquet"]
    assert len(list((aside / "_spark_metadata").iterdir())) == 5

    (harness.folder / "_spark_metadata").mkdir()  # the other query was started again
    for options in ({}, {"sparkMetadata": "refuse"}):
        again = query.with_options(**options)
        with pytest.raises(TableNotSupportedError, match=r"again|has written"):
            again.run(store, again.batch(2), KEYED)
    assert len(harness.ids()) == 8


def test_a_take_over_that_was_interrupted_is_continued(
    harness: FilesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_sink(harness, [1], [2])
    with monkeypatch.context() as patch:
        patch.setattr("penstock.committers.files.spark_metadata.sync", Mock(side_effect=OSError("disk")))
        with pytest.raises(RetryableError, match="disk"):
            take_over(str(harness.folder))
    assert (harness.folder / "_spark_metadata").exists()
    for _ in range(2):
        take_over(str(harness.folder))
    assert sorted(harness.ids()) == [1, 2]
    assert not (harness.folder / "_spark_metadata").exists()


def test_a_folder_of_spark_s_file_sink_behind_a_link_is_taken_over(
    harness: FilesHarness, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    spark_sink(FilesHarness(tmp_path / "link"), [1], [2])
    take_over(str(harness.folder))
    assert sorted(harness.ids()) == [1, 2]


@pytest.mark.parametrize("damage", ["missing", "torn", "elsewhere", "empty"])
def test_a_damaged_log_of_spark_s_file_sink_moves_nothing(harness: FilesHarness, damage: str) -> None:
    spark_sink(harness, *([number] for number in range(5)))
    log = harness.folder / "_spark_metadata"
    if damage == "missing":
        (log / "3").unlink()
    elif damage == "torn":
        (log / "4").write_text('v1\n{"path":')
    elif damage == "elsewhere":
        (log / "4").write_text('v1\n{"path": "file:///elsewhere/part-4.parquet", "action": "add"}')
    else:
        for path in log.iterdir():
            path.unlink()
    before = sorted(harness.folder.rglob("*"))
    with pytest.raises(TableNotSupportedError, match="Nothing was written"):
        take_over(str(harness.folder))
    assert sorted(harness.folder.rglob("*")) == before


# What is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "options", "message"),
    [
        ({"id": ["a"], "day": ["x"]}, {}, "id: .* has string, the rows have int64"),
        ({"id": [1]}, {}, "day: .* has no such column"),
        ({"id": [1], "day": ["x"]}, {"partitionBy": "day"}, "is partitioned by nothing"),
        ({"id": [1], "Day": ["x"]}, {"schemaEvolution": "addColumns"}, "day: .* has Day"),
    ],
)
def test_rows_that_do_not_fit_the_files_are_refused(
    harness: FilesHarness, stored: dict[str, list[object]], options: dict[str, str], message: str
) -> None:
    harness.folder.mkdir()
    pq.write_table(pa.table(stored), harness.folder / "others.parquet")
    with pytest.raises(SchemaMismatchError, match=message):
        target_of(harness, **options).plan_batch(ROWS, "append", 0)
    assert not harness.staging.exists()


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.decimal128(9, 2), pa.float64()])
def test_partitions_that_readers_do_not_read_back_are_refused(
    harness: FilesHarness, kind: pa.DataType
) -> None:
    with pytest.raises(SchemaMismatchError, match="day"):
        target_of(harness, partitionBy="day").plan_batch(pa.schema([ROWS[0], ("day", kind)]), "append", 0)


@pytest.mark.parametrize("name", ["_day", ".day"])
def test_partitions_whose_folders_readers_skip_are_refused(harness: FilesHarness, name: str) -> None:
    rows = pa.schema([ROWS[0], (name, pa.string())])
    with pytest.raises(SchemaMismatchError, match=f"{name}: readers skip folders"):
        target_of(harness, partitionBy=name).plan_batch(rows, "append", 0)
    assert not harness.staging.exists()


@pytest.mark.parametrize("options", [{}, {"partitionBy": "env"}, {"fileFormat": "json"}])
def test_a_folder_above_the_files_with_the_name_of_a_column_is_refused(
    tmp_path: Path, store: SqlManifestStore, options: dict[str, str]
) -> None:
    """duckdb and Polars return the value of the folder for each row."""
    harness = FilesHarness(tmp_path / "Env=prod")
    (tmp_path / "Env=prod").mkdir()
    query = Query(harness, options=options)
    rows = pa.schema([("id", pa.int64()), ("env", pa.string())])
    with pytest.raises(SchemaMismatchError, match=r"take the folder Env=prod of the path .* column 'env'"):
        query.plan(store, query.batch(0), rows)
    other = Query(harness)
    other.run(store, other.batch(0), ids(1))
    assert harness.ids() == [1]


@pytest.mark.parametrize("file_format", ["parquet", "json"])
@pytest.mark.parametrize("value", ["NULL", "null"])
def test_a_partition_value_that_duckdb_reads_as_null_is_refused(
    harness: FilesHarness, store: SqlManifestStore, file_format: str, value: str
) -> None:
    query = Query(harness, options={"partitionBy": "key", "fileFormat": file_format})
    rows = pa.table({"id": [1], "key": [value]})
    with pytest.raises(SchemaMismatchError, match=f"'key' is '{value}', which duckdb reads as NULL"):
        query.run(store, query.batch(0), rows)
    assert harness.ids() == []


def test_each_batch_finds_the_partitions_whatever_their_names_are(harness: FilesHarness) -> None:
    name = 'a="B%/'
    rows = pa.schema([ROWS[0], (name, pa.string())])
    folder = harness.folder / "a%3D%22B%25%2F=x"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), folder / "others.parquet")

    target_of(harness, partitionBy=json.dumps([name.lower()])).plan_batch(rows, "append", 1)


@pytest.mark.parametrize(
    "path",
    [
        *("s3://bucket", "s3://bucket/a/../b", "az://container", "abfss://a@b/rows", "gs://bucket/rows"),
        "abfss://a@evil.example#.dfs.core.windows.net/rows",
        *("/", ""),
    ],
)
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="path") as error:
        FilesOptions.parse({"path": path})
    assert str(error.value).count("  - ") == 1


def test_the_version_that_commands_show_is_the_last_batch_of_the_query(harness: FilesHarness) -> None:
    committed = FilesCommitter(str(harness.folder)).commit(staged(harness, 3))
    assert isinstance(committed, Committed)
    versions = [StoredFolder(str(harness.folder), query_id=query_id).now() for query_id in ("q1", "other")]
    assert [now and now.version for now in versions] == [committed.table_version, -1] == [3, -1]
    assert StoredFolder(f"{harness.folder}-2", query_id="q1").now() is None


# Small files are rewritten before they are visible ----------------------------------------------------

TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(20, 4)),
        ("tags", pa.list_(pa.struct([("name", pa.string()), ("weight", pa.float64())]))),
    ]
)


def typed_rows(batch_id: int) -> pa.Table:
    """Rows of two days."""
    rows = [
        {
            "id": row_id,
            "day": date(2026, 1, 1 + row_id % 2),
            "at": datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=row_id),
            "amount": Decimal(row_id) / 16,
            "tags": [{"name": "é", "weight": -0.0}, None] if row_id % 3 else None,
        }
        for row_id in range(4 * batch_id, 4 * batch_id + 4)
    ]
    return pa.Table.from_pylist(rows, TYPES)


def test_a_delivery_rewrites_small_files_before_they_are_visible(
    harness: FilesHarness, store: SqlManifestStore
) -> None:
    query = Query(harness, options={"delivery": "decoupled", "partitionBy": "day"}, store=store)
    for batch_id in range(6):
        rows = typed_rows(batch_id)
        rows = rows if batch_id < 4 else rows.append_column("more", pa.array(["x"] * 4))
        query.run(store, query.batch(batch_id), rows.slice(0, 2), rows.slice(2))
    small = harness.uncommitted()
    assert len(small) == 24
    deliver(store)

    found = pq.read_table(harness.folder, schema=TYPES).sort_by("id")
    assert found.to_pylist() == [row for batch_id in range(6) for row in typed_rows(batch_id).to_pylist()]
    visible = {path.relative_to(harness.folder).as_posix() for path in harness.folder.rglob("*.parquet")}
    assert sorted(pq.read_metadata(harness.folder / path).num_rows for path in visible) == [4, 4, 8, 8]
    assert visible.isdisjoint(small)
    assert harness.uncommitted() == small, "until the grace period ends"

    def open_folder() -> CleanableFolder:
        return CleanableFolder(FilesCommitter(str(harness.folder)))

    later = datetime.now(timezone.utc) + timedelta(days=1)
    assert remove_sources(store, query.stream, open_folder, later) == 24
    assert not harness.uncommitted()
    assert pq.read_table(harness.folder).num_rows == 24


@pytest.mark.parametrize("options", [{"compactWith": "none"}, {"fileFormat": "json"}])
def test_other_deliveries_publish_the_files_of_the_tasks(
    harness: FilesHarness, store: SqlManifestStore, options: dict[str, str]
) -> None:
    query = Query(harness, options={"delivery": "decoupled", **options}, store=store)
    for batch_id in range(3):
        query.run(store, query.batch(batch_id), ids(batch_id))
    staged_files = harness.uncommitted()
    deliver(store)

    assert {path.name for path in harness.folder.iterdir()} == staged_files
    assert not harness.uncommitted()


@pytest.mark.parametrize(
    ("layout", "warnings"), [("", 0), ("{}", 1), ('{"schema": "AAAA", "partition_by": []}', 1)]
)
def test_batches_whose_layout_is_unknown_are_delivered_as_they_are(
    harness: FilesHarness, caplog: pytest.LogCaptureFixture, layout: str, warnings: int
) -> None:
    """An older version has prepared them, or the layout is damaged."""
    target = target_of(harness)
    assert isinstance(target, CompactableFilesTarget)
    manifest = target.manifest(Batch(StreamKey("q1", "t"), 0, "a" * 64), layout, [(FILE, OTHER_FILE)])
    assert DeliveryCompactor(target, GroupRewriter(InlineExecutor()))(manifest, "delivery-1") is None
    assert len(caplog.records) == warnings


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"fileFormat": "json"}, "files of format json"),
        ({"path": "s3://bucket/folder"}, "files in an object store"),
    ],
)
def test_rewriting_other_files_is_refused(harness: FilesHarness, options: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigurationError, match=f"compactWith=local is not possible for {what}"):
        FilesOptions.parse({**harness.options, "compactWith": "local", **options})
