"""Log checkpoints, log clean-up and the removal of files that a Delta table has removed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars as pl
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.transaction import RemoveAction
from tests.support.streams import DeltaStream, edit_log_entry, stream_in

from penstock.committers.delta import log_checkpoints
from penstock.committers.delta.intervals import FILES, LOG
from penstock.committers.delta.log_checkpoints import LogCheckpoints
from penstock.committers.delta.maintenance import (
    COMMITS_PER_CHECKPOINT,
    MAINTENANCE_PROPERTY,
    checkpoint_log,
    is_maintained,
    vacuum,
)
from penstock.committers.errors import RetryableError

NOW = datetime.now(timezone.utc)
DAY = timedelta(days=1)


@pytest.fixture
def stream(tmp_path: Path) -> DeltaStream:
    return stream_in(tmp_path)


def remove(stream: DeltaStream, paths: Sequence[str], age: timedelta) -> None:
    """Remove files in a commit with this age."""
    table = DeltaTable(stream.uri)
    removed_at = int((NOW - age).timestamp() * 1000)
    table.create_write_transaction(
        [RemoveAction(path, False, removed_at, 1, {}) for path in paths],
        mode="append",
        schema=table.schema(),
        commit_properties=CommitProperties(max_commit_retries=0),
    )

    def change(action: dict[str, Any]) -> None:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] = removed_at

    entry = edit_log_entry(stream, table.version() + 1, change)
    os.utime(entry, 2 * ((NOW - age).timestamp(),))


def age_log(stream: DeltaStream, age: timedelta) -> None:
    for entry in Path(stream.uri, "_delta_log").iterdir():
        os.utime(entry, 2 * ((NOW - age).timestamp(),))


def paths(stream: DeltaStream) -> list[str]:
    actions = pa.table(DeltaTable(stream.uri).get_add_actions())
    return sorted(map(str, actions.column("path").to_pylist()))


def on_disk(stream: DeltaStream) -> set[str]:
    return {path.name for path in Path(stream.uri).glob("*.parquet")}


def run_vacuum(stream: DeltaStream, protected: Sequence[str] = ()) -> int:
    return vacuum(stream.uri, {}, NOW, lambda: protected)


# Whose table --------------------------------------------------------------------------------------


def test_a_table_that_penstock_created_is_maintained_and_other_readers_read_it(stream: DeltaStream) -> None:
    stream.commit(0, [1, 2])
    assert is_maintained(stream.uri, {})
    assert stream.ids() == [1, 2]
    assert pl.read_delta(stream.uri).height == 2
    write_deltalake(stream.uri, pa.table({"id": pa.array([3], pa.int64()), "name": ["x"]}), mode="append")
    assert is_maintained(stream.uri, {})


def test_a_table_of_others_is_not_maintained(stream: DeltaStream) -> None:
    write_deltalake(stream.uri, pa.table({"id": pa.array([3], pa.int64()), "name": ["x"]}))
    stream.commit(0, [1])
    assert not is_maintained(stream.uri, {})


def test_a_query_may_create_a_table_that_is_not_maintained(stream: DeltaStream) -> None:
    stream.commit(0, [1], properties={MAINTENANCE_PROPERTY: "false"})
    assert not is_maintained(stream.uri, {})


# Removed files ------------------------------------------------------------------------------------


def test_only_files_that_were_removed_long_ago_are_deleted(stream: DeltaStream) -> None:
    for batch_id in range(4):
        stream.commit(batch_id, [batch_id])
    old, young, *active = paths(stream)
    (Path(stream.uri) / "unnamed.parquet").write_bytes(b"waits for its commit")
    remove(stream, [old], 8 * DAY)
    remove(stream, [young], 6 * DAY)
    assert run_vacuum(stream) == 1
    assert on_disk(stream) == {young, *active, "unnamed.parquet"}


def test_removed_files_that_a_log_checkpoint_no_longer_lists_are_deleted(stream: DeltaStream) -> None:
    """The library's own vacuum does not find them: most removed files would stay."""
    stream.commit(0, [1])
    stream.commit(1, [2])
    age_log(stream, 20 * DAY)
    removed, left = paths(stream)
    remove(stream, [removed], 9 * DAY)
    stream.commit(2, [3])
    DeltaTable(stream.uri).create_checkpoint()
    assert DeltaTable(stream.uri).vacuum(dry_run=True) == []
    assert run_vacuum(stream) == 1
    assert removed not in on_disk(stream)
    assert left in on_disk(stream)


def test_a_restored_file_is_kept_and_so_is_one_that_was_removed_again(stream: DeltaStream) -> None:
    """Both were removed long ago and restored since. For the second one, the new removal counts."""
    stream.commit(0, [1])
    stream.commit(1, [2])
    age_log(stream, 20 * DAY)
    back, again = paths(stream)
    remove(stream, [back, again], 9 * DAY)
    DeltaTable(stream.uri).restore(2)
    remove(stream, [again], 1 * DAY)
    DeltaTable(stream.uri).create_checkpoint()
    assert run_vacuum(stream) == 0
    assert on_disk(stream) == {back, again}


def test_what_a_pending_manifest_names_is_kept(stream: DeltaStream) -> None:
    stream.commit(0, [1])
    stream.commit(1, [2])
    named, other = paths(stream)
    remove(stream, [named, other], 8 * DAY)
    assert run_vacuum(stream, protected=[named]) == 1
    assert on_disk(stream) == {named}


def test_no_commit_is_made(stream: DeltaStream) -> None:
    stream.commit(0, [1])
    stream.commit(1, [2])
    remove(stream, paths(stream)[:1], 8 * DAY)
    version = DeltaTable(stream.uri).version()
    assert run_vacuum(stream) == 1
    assert DeltaTable(stream.uri).version() == version


def set_property(stream: DeltaStream, name: str, value: str) -> None:
    """In the table's first commit, as if another engine had created it: the library accepts fewer formats."""

    def change(action: dict[str, Any]) -> None:
        if "metaData" in action:
            action["metaData"]["configuration"][name] = value

    edit_log_entry(stream, 0, change)


@pytest.mark.parametrize(
    ("text", "age_days", "deleted"),
    [
        ("interval 2 days", 3, 1),
        ("2 days", 1, 0),
        ("2 days", 3, 1),
        *[(text, 8, 0) for text in ("interval 30 days", "30 days", "720 hours", "INTERVAL 30 DAYS")],
        *[(text, 8, 0) for text in ("interval 1 week 2 days", "1 week 2 days")],
        ("1 week 2 days", 10, 1),
        ("interval 0 days", 1, 1),
        ("999999999 weeks", 8, 0),
    ],
)
def test_the_tables_retention_is_used(stream: DeltaStream, text: str, age_days: int, deleted: int) -> None:
    stream.commit(0, [1])
    set_property(stream, FILES, text)
    stream.commit(1, [2])
    remove(stream, paths(stream)[:1], age_days * DAY)
    assert run_vacuum(stream) == deleted


@pytest.mark.parametrize(
    "text", ["1 month", "interval a week", "7days", "-1 day", "1.5 days", "interval", ""]
)
def test_an_invalid_retention_keeps_all_files_and_is_logged(
    stream: DeltaStream, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream.commit(0, [1])
    set_property(stream, FILES, text)
    stream.commit(1, [2])
    remove(stream, paths(stream)[:1], 1000 * DAY)
    assert run_vacuum(stream) == 0
    assert f"{FILES} is {text!r}" in caplog.text


def test_a_table_that_is_not_there_has_nothing_to_do(stream: DeltaStream) -> None:
    assert run_vacuum(stream) == 0
    assert checkpoint_log(stream.uri, {}) is None
    assert not is_maintained(stream.uri, {})


# The log ------------------------------------------------------------------------------------------


def test_a_log_checkpoint_is_written_after_enough_commits(stream: DeltaStream) -> None:
    interval = {"delta.checkpointInterval": "1000"}
    for batch_id in range(COMMITS_PER_CHECKPOINT):
        stream.commit(batch_id, [batch_id], properties=interval)
    version = DeltaTable(stream.uri).version()
    assert checkpoint_log(stream.uri, {}) == version
    assert checkpoint_log(stream.uri, {}) is None
    assert stream.last_batch() == COMMITS_PER_CHECKPOINT - 1
    assert stream.ids() == list(range(COMMITS_PER_CHECKPOINT))


@pytest.mark.parametrize(("enabled", "is_left"), [("true", False), ("false", True)])
def test_old_log_entries_are_deleted_if_allowed(stream: DeltaStream, enabled: str, is_left: bool) -> None:
    properties = {
        "delta.checkpointInterval": "1000",
        "delta.logRetentionDuration": "interval 1 days",
        "delta.enableExpiredLogCleanup": enabled,
    }
    for batch_id in range(COMMITS_PER_CHECKPOINT):
        stream.commit(batch_id, [batch_id], properties=properties)
    checkpoint_log(stream.uri, {})
    log = Path(stream.uri) / "_delta_log"
    age_log(stream, 3 * DAY)
    for batch_id in range(COMMITS_PER_CHECKPOINT, 2 * COMMITS_PER_CHECKPOINT):
        stream.commit(batch_id, [batch_id])
    checkpoint_log(stream.uri, {})
    assert (log / f"{0:020}.json").exists() is is_left
    assert len(stream.ids()) == 2 * COMMITS_PER_CHECKPOINT
    assert pl.read_delta(stream.uri).height == 2 * COMMITS_PER_CHECKPOINT


@pytest.mark.parametrize(
    ("by", "text", "is_left"),
    [
        ("checkpoint", "interval 1 day", False),
        *[("checkpoint", text, True) for text in ("interval 365 days", "365 days", "INTERVAL 365 DAYS")],
        *[("checkpoint", text, True) for text in ("interval 1 day 52 weeks", "1 month", "")],
        ("checkpoint", "2 days", False),
        ("overwrite", "interval 1 day", False),
        ("overwrite", "365 days", True),
    ],
)
def test_the_log_is_kept_for_the_retention(stream: DeltaStream, by: str, text: str, is_left: bool) -> None:
    """The library reads all formats but `interval 365 days` as 30 days."""
    interval = "1000" if by == "checkpoint" else str(COMMITS_PER_CHECKPOINT)
    stream.commit(0, [0], properties={"delta.checkpointInterval": interval})
    set_property(stream, LOG, text)
    for batch_id in range(1, COMMITS_PER_CHECKPOINT):
        stream.commit(batch_id, [batch_id])
    checkpoint_log(stream.uri, {})
    log = Path(stream.uri) / "_delta_log"
    age_log(stream, 50 * DAY)
    for batch_id in range(COMMITS_PER_CHECKPOINT, 2 * COMMITS_PER_CHECKPOINT):
        stream.commit(batch_id, [batch_id], mode="overwrite" if by == "overwrite" else "append")
    checkpoint_log(stream.uri, {})
    assert (log / f"{0:020}.json").exists() is is_left


# Log checkpoints of a large table -----------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_slow_log_checkpoints_take_a_tenth_of_the_time(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, takes_s = [1000.0], {"large": 4.0, "small": 0.2}
    written: dict[str, list[float]] = {"large": [], "small": []}

    def write(table_uri: str) -> None:
        written[table_uri].append(now_s[0])
        now_s[0] += takes_s[table_uri]
        if fails:
            raise RetryableError("no space")

    monkeypatch.setattr(log_checkpoints, "load", lambda uri, _options: uri)
    monkeypatch.setattr(log_checkpoints, "write_log_checkpoint", write)
    checkpoints = LogCheckpoints(lambda: now_s[0])
    while now_s[0] < 1400:
        now_s[0] += 2.8  # twenty small batches
        for table_uri in ("large", "small", "small"):
            checkpoints.write(table_uri, {})
    assert 9 <= len(written["large"]) <= 10
    assert min(after - before for before, after in pairwise(written["large"])) >= 40
    assert len(written["small"]) > 200


def test_a_failed_log_checkpoint_is_logged_and_the_batch_is_committed(
    stream: DeltaStream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail = Mock(side_effect=RetryableError("The log could not be checkpointed: no space."))
    monkeypatch.setattr(log_checkpoints, "write_log_checkpoint", fail)
    stream.committer().plan(stream.schema, properties={"delta.checkpointInterval": "2"})
    for batch_id in range(3):
        stream.commit(batch_id, [batch_id])
    assert stream.last_batch() == 2
    assert "no space" in caplog.text
