"""Other jobs append, compact, alter, vacuum, restore and drop the table while a stream writes it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from tests.support.streams import SCHEMA, VIEWS, DeltaStream, clean_up_log, edit_log_entry, stream_in

from penstock.committers.contract import AlreadyCommitted, Committed
from penstock.committers.errors import (
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
    TableNotSupportedError,
)
from penstock.testing.faults import at_point


@pytest.fixture(params=sorted(VIEWS))
def stream(tmp_path: Path, request: pytest.FixtureRequest) -> DeltaStream:
    """With batch 0 in version 1."""
    stream = stream_in(tmp_path, snapshot_cache=VIEWS[request.param]())
    assert stream.commit(0, [1]) == Committed(1)
    return stream


def overwrite_schema(stream: DeltaStream, schema: pa.Schema, partition_by: list[str] | None = None) -> None:
    write_deltalake(
        stream.uri, schema.empty_table(), mode="overwrite", schema_mode="overwrite", partition_by=partition_by
    )


def table_id(stream: DeltaStream) -> str:
    return str(stream.lake.load().metadata().id)


# What a commit is rebased over -------------------------------------------------------------------------


def add_column(stream: DeltaStream) -> None:
    stream.lake.load().alter.add_columns([Field("added", PrimitiveType("string"))])


def set_property(stream: DeltaStream) -> None:
    stream.lake.load().alter.set_table_properties({"delta.logRetentionDuration": "interval 1 day"})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda stream: stream.lake.append(100), [1, 2, 100]),
        (lambda stream: stream.lake.compact(), [1, 2]),
        (lambda stream: stream.lake.load().delete("id = 1"), [2]),
        (add_column, [1, 2]),
        (set_property, [1, 2]),
        (lambda stream: stream.lake.load().vacuum(dry_run=False), [1, 2]),
    ],
)
def test_a_commit_is_rebased_over_harmless_changes(
    stream: DeltaStream, change: Callable[[DeltaStream], object], expected: list[int]
) -> None:
    manifest = stream.prepare(1, [2])
    change(stream)
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == expected


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_vacuum_of_uncommitted_files_stops_the_commit(stream: DeltaStream, is_noted: bool) -> None:
    """Also if a log clean-up has removed its entry."""
    manifest = stream.prepare(1, [2])
    stream.lake.vacuum()
    if not is_noted:
        set_property(stream)
        clean_up_log(stream)
    with pytest.raises(RetryableError, match=r"vacuumed while batch 1 .*1 of its 1 files"):
        stream.committer().commit(manifest)
    assert stream.ids() == [1]
    assert isinstance(stream.committer().commit(stream.prepare(1, [2])), Committed)
    assert stream.ids() == [1, 2]


# What stops it -----------------------------------------------------------------------------------------


ID, NAME = SCHEMA


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([ID], r"'name' is no longer in the table"),
        ([ID.with_type(pa.string()), NAME], r"'id' is now string; the files have long"),
        ([ID.with_nullable(False), NAME], r"'id' is now NOT NULL"),
        ([ID, NAME, pa.field("must", pa.int64(), False)], r"'must' is NOT NULL in the table"),
    ],
    ids=["dropped column", "other type", "not null", "new not null column"],
)
def test_an_incompatible_schema_is_refused(stream: DeltaStream, columns: list[pa.Field], says: str) -> None:
    manifest = stream.prepare(1, [2])
    overwrite_schema(stream, pa.schema(columns))
    version = stream.lake.load().version()
    with pytest.raises(SchemaMismatchError, match=says) as caught:
        stream.committer().commit(manifest)
    assert "The files have:\n    id: long" in str(caught.value)
    assert stream.lake.load().version() == version


def test_a_new_column_that_another_adds_in_other_case_is_refused(stream: DeltaStream) -> None:
    """Names in Delta ignore case. The next start plans for the column of the table."""
    wider = pa.schema([*SCHEMA, ("Added", pa.string())])
    manifest = stream.prepare(1, [2], schema=wider, evolve=True)
    add_column(stream)
    with pytest.raises(SchemaMismatchError, match="'Added' is now 'added' in the table"):
        stream.committer().commit(manifest)
    assert isinstance(stream.commit(1, [2], schema=wider, evolve=True), Committed)
    assert stream.ids() == [1, 2]


def test_a_new_column_that_another_adds_with_the_same_name_and_type_is_used(stream: DeltaStream) -> None:
    manifest = stream.prepare(1, [2], schema=pa.schema([*SCHEMA, ("added", pa.string())]), evolve=True)
    add_column(stream)
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == [1, 2]


def test_a_table_that_is_now_partitioned_otherwise_is_refused(stream: DeltaStream) -> None:
    manifest = stream.prepare(1, [2])
    overwrite_schema(stream, SCHEMA, ["name"])
    with pytest.raises((SchemaMismatchError, TableChangedError)):
        stream.committer().commit(manifest)


def test_a_constraint_added_meanwhile_is_refused_and_nothing_is_committed(stream: DeltaStream) -> None:
    manifest = stream.prepare(1, [-2])
    stream.lake.load().alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(TableNotSupportedError, match=r"CHECK constraint 'positive' \(id > 0\)"):
        stream.committer().commit(manifest)
    assert stream.ids() == [1]


def test_a_committed_batch_counts_even_if_the_table_accepts_no_more_batches(stream: DeltaStream) -> None:
    manifest = stream.prepare(1, [2])
    stream.committer().commit(manifest)
    stream.lake.load().alter.add_constraint({"positive": "id > 0"})
    assert stream.committer().commit(manifest) == AlreadyCommitted(2)


# Dropped, re-created, restored -------------------------------------------------------------------------


def test_a_table_dropped_between_load_and_commit_stops_the_stream(stream: DeltaStream) -> None:
    manifest = stream.prepare(1, [2])
    with (
        at_point("commit.start", lambda: shutil.rmtree(stream.uri)),
        pytest.raises(TableChangedError, match="dropped"),
    ):
        stream.committer().commit(manifest)


def test_a_log_put_back_from_a_copy_stops_the_stream(stream: DeltaStream) -> None:
    stream.commit(1, [2])
    (Path(stream.uri) / "_delta_log" / f"{2:020}.json").unlink()
    with pytest.raises(TableChangedError, match="at version 1"):
        stream.committer().check_unchanged(stream.query_id, table_id(stream), 2)


def by_time(stream: DeltaStream, version: int) -> None:
    """A version's time is its log file's: one minute between two of them, so that there is no doubt."""
    for file in (Path(stream.uri) / "_delta_log").glob("*.json"):
        os.utime(file, (int(file.stem) * 60, int(file.stem) * 60))
    stream.lake.load().restore(datetime.fromtimestamp(version * 60 + 30, timezone.utc))


@pytest.mark.parametrize("restore", [lambda stream, version: stream.lake.go_back(version), by_time])
def test_a_restore_that_removes_a_batch_stops_the_stream(
    stream: DeltaStream, restore: Callable[[DeltaStream, int], None]
) -> None:
    """RESTORE removes rows but no tokens: a replay would add nothing, a later batch would leave a gap."""
    replayed = stream.prepare(1, [2])
    stream.committer().commit(replayed)
    following = stream.prepare(2, [3])
    restore(stream, 1)
    assert stream.ids() == [1]
    assert stream.last_batch() == 1
    for attempt in (
        lambda: stream.committer().commit(replayed),
        lambda: stream.committer().commit(following),
        lambda: stream.committer().check_unchanged(stream.query_id, table_id(stream), 2),
    ):
        with pytest.raises(TableChangedError, match=r"(?s)restored in version 3 .*TO VERSION AS OF 2"):
            attempt()
    assert stream.ids() == [1]


def test_an_unreadable_restore_is_retryable(stream: DeltaStream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.lake.append(100)
    by_time(stream, 1)

    def unreachable(_table: DeltaTable, _moment: datetime) -> None:
        raise OSError("Generic S3 error: connection refused")

    with monkeypatch.context() as outage:
        outage.setattr(DeltaTable, "load_as_version", unreachable)
        with pytest.raises(RetryableError, match="connection refused"):
            stream.committer().check_unchanged(stream.query_id, table_id(stream), 1)
    stream.committer().check_unchanged(stream.query_id, table_id(stream), 1)


def test_a_restore_is_noticed_although_others_commit_after_the_load(stream: DeltaStream) -> None:
    """The library numbers the history of a handle that others have overtaken wrongly."""
    stream.lake.append(100)
    stream.lake.go_back(0)
    committer = stream.committer()
    assert committer.token("query-1") is not None
    stream.lake.append(101)
    stream.lake.append(102)
    with pytest.raises(TableChangedError, match="restored in version 3"):
        committer.check_unchanged(stream.query_id, table_id(stream), 1)


def restore_to(stream: DeltaStream, version: int, **time: str) -> None:
    """Let the RESTORE in this version be one to a time."""

    def change(action: dict[str, Any]) -> None:
        if "commitInfo" in action:
            action["commitInfo"]["operationParameters"] = {"version": None, **time}

    edit_log_entry(stream, version, change)


def test_a_restore_to_a_time_before_the_log_that_is_left_stops_the_stream(stream: DeltaStream) -> None:
    """The library takes the oldest version that is left for that of the time."""
    stream.commit(1, [2])
    stream.lake.load().create_checkpoint()
    stream.commit(2, [3])
    stream.lake.go_back(2)
    restore_to(stream, 4, datetime="30000")
    for version in range(3):
        (Path(stream.uri) / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(TableChangedError, match="restored in version 4"):
        stream.committer().check_unchanged(stream.query_id, table_id(stream), 3)


def test_a_restore_that_was_undone_is_ignored(stream: DeltaStream) -> None:
    stream.commit(1, [2])
    manifest = stream.prepare(2, [3])
    stream.lake.go_back(1)
    stream.lake.go_back(2)
    stream.committer().check_unchanged(stream.query_id, table_id(stream), 2)
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == [1, 2, 3]


def test_a_restore_back_into_a_restored_state_stops_the_stream(stream: DeltaStream) -> None:
    stream.commit(1, [2])
    stream.lake.go_back(1)
    stream.lake.append(100)
    stream.lake.go_back(2)
    stream.lake.go_back(4)
    with pytest.raises(TableChangedError):
        stream.committer().check_unchanged(stream.query_id, table_id(stream), 2)


def test_a_restore_that_removes_only_rows_of_others_is_ignored(stream: DeltaStream) -> None:
    stream.lake.append(100)
    manifest = stream.prepare(1, [2])
    stream.lake.go_back(1)
    stream.committer().check_unchanged(stream.query_id, table_id(stream), 1)
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == [1, 2]


def test_a_restore_by_spark_to_a_time_stops_the_stream(stream: DeltaStream) -> None:
    """Spark logs the time without its zone: the restored version is unknown."""
    stream.lake.append(100)
    stream.lake.go_back(1)
    stream.committer().check_unchanged(stream.query_id, table_id(stream), 1)
    restore_to(stream, 3, timestamp="2026-01-01 00:00:00")
    with pytest.raises(TableChangedError):
        stream.committer().check_unchanged(stream.query_id, table_id(stream), 1)
