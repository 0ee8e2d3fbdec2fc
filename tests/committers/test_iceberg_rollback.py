"""A rollback removes rows but no token: a token counts only if its snapshot is an ancestor of the head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate
from tests.support.catalog_faults import Send, at_request
from tests.support.streams import IcebergStream

from penstock.committers.contract import AlreadyCommitted, Committed
from penstock.committers.errors import RetryableError, TableChangedError
from penstock.committers.store.sql import open_store
from penstock.testing.faults import at_point, lossy


def with_batches(stream: IcebergStream) -> IcebergStream:
    """The stream, with a row of another writer, and batches 0 and 1 in two more snapshots."""
    replace(stream, branch="main").plan()
    replace(stream, branch="main").lake.append(100)
    stream.commit(0, [0])
    stream.commit(1, [1])
    return stream


@pytest.fixture(params=["main", "audit"])
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> IcebergStream:
    return with_batches(IcebergStream(tmp_path, branch=request.param))


@pytest.fixture
def main(tmp_path: Path) -> IcebergStream:
    return with_batches(IcebergStream(tmp_path))


def snapshot_of(stream: IcebergStream, batch_id: int) -> int:
    snapshots = stream.lake.metadata()["snapshots"]
    of_batch = [s for s in snapshots if s["summary"].get("penstock.batch-id") == str(batch_id)]
    return int(of_batch[0]["snapshot-id"])


def set_branch(stream: IcebergStream, snapshot_id: int) -> None:
    """As every engine's rollback, `set_current_snapshot`, `fast_forward` and `replace branch` end."""
    table = stream.load()
    update = SetSnapshotRefUpdate(  # type: ignore[call-arg]
        ref_name=stream.branch, type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id
    )
    table.catalog.commit_table(table, (), (update,))


# Rollbacks ---------------------------------------------------------------------------------------------


def roll_back(stream: IcebergStream) -> None:
    stream.load().manage_snapshots().rollback_to_snapshot(snapshot_of(stream, 0)).commit()


def roll_back_in_time(stream: IcebergStream) -> None:
    before = stream.head.timestamp_ms
    stream.load().manage_snapshots().rollback_to_timestamp(before).commit()


def set_current_snapshot(stream: IcebergStream) -> None:
    stream.load().manage_snapshots().set_current_snapshot(snapshot_of(stream, 0)).commit()


def roll_back_and_append(stream: IcebergStream) -> None:
    roll_back(stream)
    stream.lake.append(200)


def roll_back_and_expire(stream: IcebergStream) -> None:
    """The snapshot of the last batch is removed, and the head is an older one."""
    roll_back(stream)
    stream.lake.expire()


def roll_back_append_and_expire_the_batch(stream: IcebergStream) -> None:
    """The head is newer than the last batch, but its ancestors are older."""
    last = snapshot_of(stream, 1)
    roll_back_and_append(stream)
    stream.load().maintenance.expire_snapshots().by_id(last).commit()


WAYS = [
    *(roll_back, roll_back_in_time, set_current_snapshot),
    *(roll_back_and_append, roll_back_and_expire, roll_back_append_and_expire_the_batch),
]


@pytest.mark.parametrize("go_back", WAYS)
def test_a_removed_batch_stops_the_stream_until_the_table_is_accepted(
    main: IcebergStream, go_back: Callable[[IcebergStream], None]
) -> None:
    """At planning and recovery (by the token), and at the commit, of the batch itself and of the next."""
    replayed, following = main.prepare(1, [1]), main.prepare(2, [2])
    last = snapshot_of(main, 1)
    go_back(main)
    left = main.ids()
    assert 1 not in left
    for attempt in (
        lambda: main.committer().token("query-1"),
        lambda: main.committer().commit(replayed),
        lambda: main.committer().commit(following),
    ):
        with pytest.raises(
            TableChangedError, match=rf"(?s)batch 1:.*set_current_snapshot\(snapshot_id={last}\)"
        ):
            attempt()
    assert main.ids() == left

    main.committer().accept("query-1")
    assert isinstance(main.committer().commit(replayed), AlreadyCommitted)
    assert isinstance(main.committer().commit(following), Committed)
    assert main.ids() == sorted([*left, 2])


def test_a_branch_set_back_stops_the_stream(stream: IcebergStream) -> None:
    set_branch(stream, snapshot_of(stream, 0))
    with pytest.raises(TableChangedError, match=f"branch '{stream.branch}' .* was rolled back"):
        stream.committer().token("query-1")
    with pytest.raises(TableChangedError):
        stream.commit(2, [2])
    assert stream.ids() == [0, 100]


def test_a_table_with_a_new_history_stops_the_stream(main: IcebergStream) -> None:
    """CREATE OR REPLACE TABLE keeps the UUID and the properties."""
    following = main.prepare(2, [2])
    main.load().manage_snapshots().remove_branch("main").commit()
    main.lake.append(300)
    assert main.head.parent_snapshot_id is None
    with pytest.raises(TableChangedError):
        main.committer().commit(following)
    assert main.ids() == [300]


def test_a_rollback_between_load_and_commit_stops_the_stream(main: IcebergStream) -> None:
    manifest = main.prepare(2, [2])
    with at_point("commit.start", lambda: roll_back(main)), pytest.raises(TableChangedError):
        main.committer().commit(manifest)
    assert main.ids() == [0, 100]


def test_a_dropped_branch_stops_the_stream(tmp_path: Path) -> None:
    """It is not created again from the main branch, where the stream's rows are missing."""
    IcebergStream(tmp_path).commit(0, [100])
    stream = IcebergStream(tmp_path, "query-2", branch="audit")
    stream.commit(0, [0])
    following = stream.prepare(1, [1])
    stream.load().manage_snapshots().remove_branch("audit").commit()
    for attempt in (
        lambda: stream.committer().token("query-2"),
        lambda: stream.committer().commit(following),
    ):
        with pytest.raises(TableChangedError, match="dropped"):
            attempt()
    stream.lake.expire()
    with pytest.raises(TableChangedError, match="dropped"):
        stream.committer().token("query-2")
    stream.plan()
    with pytest.raises(TableChangedError):
        stream.committer().token("query-2")
    with pytest.raises(TableChangedError):
        stream.committer().commit(following)


def test_a_branch_dropped_during_the_first_batch_stops_it(tmp_path: Path) -> None:
    """There is no token yet. An append would create the branch as an empty table."""
    IcebergStream(tmp_path).commit(0, [100])
    stream = IcebergStream(tmp_path, "query-2", branch="audit")
    manifest = stream.prepare(0, [0])
    stream.load().manage_snapshots().remove_branch("audit").commit()
    with pytest.raises(TableChangedError, match=r"'audit' .* was dropped"):
        stream.committer().commit(manifest)
    assert isinstance(stream.commit(0, [0]), Committed)
    assert stream.ids() == [0, 100]


def test_a_branch_that_another_puts_elsewhere_stops_the_stream(tmp_path: Path) -> None:
    IcebergStream(tmp_path).commit(0, [100])
    stream = IcebergStream(tmp_path, "query-2", branch="audit")
    stream.commit(0, [0])
    main_head = IcebergStream(tmp_path).head.snapshot_id
    table = stream.load()
    table.manage_snapshots().remove_branch("audit").create_branch(main_head, "audit").commit()
    IcebergStream(tmp_path, branch="audit").lake.append(200)
    with pytest.raises(TableChangedError):
        stream.commit(1, [1])


# What is no rollback -----------------------------------------------------------------------------------


def test_a_rollback_that_was_undone_is_ignored(stream: IcebergStream) -> None:
    last = snapshot_of(stream, 1)
    set_branch(stream, snapshot_of(stream, 0))
    set_branch(stream, last)
    assert isinstance(stream.commit(2, [2]), Committed)
    assert stream.ids() == [0, 1, 2, 100]


def test_a_rollback_that_removes_only_rows_of_others_is_ignored(stream: IcebergStream) -> None:
    manifest = stream.prepare(1, [1])
    stream.lake.append(200)
    set_branch(stream, snapshot_of(stream, 1))
    assert isinstance(stream.committer().commit(manifest), AlreadyCommitted)
    assert isinstance(stream.commit(2, [2]), Committed)
    assert stream.ids() == [0, 1, 2, 100]


def test_a_rollback_to_after_an_expired_last_batch_is_ignored(main: IcebergStream) -> None:
    last = snapshot_of(main, 1)
    main.lake.append(200)
    after = main.head.snapshot_id
    main.lake.append(300)
    main.load().maintenance.expire_snapshots().by_id(last).commit()
    set_branch(main, after)
    assert isinstance(main.commit(2, [2]), Committed)
    assert main.ids() == [0, 1, 2, 100, 200]


@pytest.mark.parametrize("version", [1, 2])
def test_the_token_survives_the_expiry_of_all_old_snapshots(tmp_path: Path, version: int) -> None:
    stream = IcebergStream(tmp_path).with_options(format_version=version)
    manifest = stream.prepare(0, [0])
    stream.committer().commit(manifest)
    stream.lake.append(100)
    stream.lake.expire()
    assert list(stream.lake.tokens()) == []
    assert isinstance(stream.committer().commit(manifest), AlreadyCommitted)
    assert isinstance(stream.commit(1, [1]), Committed)
    assert stream.ids() == [0, 1, 100]


@pytest.mark.parametrize("version", [1, 2])
def test_a_rollback_over_an_expired_batch_is_noticed_in_any_version(tmp_path: Path, version: int) -> None:
    """Version 1 has no sequence numbers: there the times decide."""
    stream = IcebergStream(tmp_path).with_options(format_version=version)
    stream.commit(0, [0])
    stream.commit(1, [1])
    assert stream.load().format_version == version
    roll_back_and_expire(stream)
    with pytest.raises(TableChangedError):
        stream.committer().token("query-1")


def test_a_rollback_of_an_upgraded_table_is_noticed(tmp_path: Path) -> None:
    """The token was written without a sequence number."""
    stream = IcebergStream(tmp_path).with_options(format_version=1)
    stream.commit(0, [0])
    stream.commit(1, [1])
    with stream.load().transaction() as transaction:
        transaction.upgrade_table_version(2)
    stream = IcebergStream(tmp_path)
    assert stream.committer().token("query-1") is not None
    roll_back_and_expire(stream)
    with pytest.raises(TableChangedError):
        stream.committer().token("query-1")


def test_write_audit_publish_continues_after_every_publication(tmp_path: Path) -> None:
    """The stream writes a branch, others fast-forward the main branch to it, and clean up."""
    main = IcebergStream(tmp_path, "another")
    main.commit(0, [100])
    audit = IcebergStream(tmp_path, branch="audit")
    for batch_id in range(4):
        audit.commit(batch_id, [batch_id])
        set_branch(main, audit.head.snapshot_id)
        assert main.ids() == [*range(batch_id + 1), 100]
        audit.lake.expire()
    assert audit.ids() == main.ids()


def test_the_streams_of_two_branches_know_nothing_of_each_other(tmp_path: Path) -> None:
    main = IcebergStream(tmp_path)
    main.commit(0, [0])
    audit = replace(main, branch="audit")
    assert isinstance(audit.commit(0, [10]), Committed)
    assert isinstance(main.commit(1, [1]), Committed)
    assert (main.ids(), audit.ids()) == ([0, 1], [0, 10])


def test_a_batch_that_was_cherry_picked_is_in_the_table(main: IcebergStream) -> None:
    """Engines apply a snapshot to another head as a new snapshot, which names the old one."""
    last = snapshot_of(main, 1)
    roll_back(main)
    table = main.load()
    snapshot = table.snapshot_by_id(last)
    assert snapshot is not None
    manifest = next(m for m in snapshot.manifests(table.io) if m.added_snapshot_id == last)
    with table.transaction() as transaction:
        summary = {"source-snapshot-id": str(last)}
        with transaction.update_snapshot(snapshot_properties=summary).fast_append() as append:
            for entry in manifest.fetch_manifest_entry(table.io):
                append.append_data_file(entry.data_file)
    assert main.ids() == [0, 1, 100]
    assert isinstance(main.commit(2, [2]), Committed)
    assert main.ids() == [0, 1, 2, 100]


# An operator accepts it --------------------------------------------------------------------------------


def test_accepting_a_dropped_branch_creates_it_again(tmp_path: Path) -> None:
    IcebergStream(tmp_path).commit(0, [100])
    stream = IcebergStream(tmp_path, "query-2", branch="audit")
    stream.commit(0, [0])
    stream.load().manage_snapshots().remove_branch("audit").commit()
    stream.committer().accept("query-2")
    assert stream.committer().token("query-2") is None
    assert isinstance(stream.commit(1, [1]), Committed)
    assert stream.ids() == [1, 100]


def test_accepting_what_is_fine_changes_nothing(main: IcebergStream) -> None:
    main.committer().accept("query-1")
    main.committer().accept("unknown")
    assert isinstance(main.commit(2, [2]), Committed)
    assert main.ids() == [0, 1, 2, 100]


def test_a_concurrent_writer_is_reported_to_the_operator(main: IcebergStream) -> None:
    """The operator has accepted the state that was loaded, not a later one."""
    roll_back(main)
    real = main.load()

    def somebody_appends(send: Send) -> CommitTableResponse:
        main.lake.append(200)
        return send()

    with at_request(somebody_appends), pytest.raises(RetryableError, match=r"(?s)Nothing was changed"):
        main.committer().accept("query-1")
    assert main.load().properties == real.properties
    with (
        lossy(SqlCatalog, "commit_table", "request", ConnectionError("refused")),
        pytest.raises(RetryableError, match="refused"),
    ):
        main.committer().accept("query-1")


def test_the_expiry_of_the_stream_keeps_what_shows_the_rollback(tmp_path: Path) -> None:
    """Rolled back after the commit of a batch and before its maintenance; others have written meanwhile."""
    stream = with_batches(IcebergStream(tmp_path, options={"expire_snapshots": True, "snapshots_max": 2}))
    last = snapshot_of(stream, 1)
    roll_back(stream)
    for row in range(200, 205):
        stream.lake.append(row)
    with (
        open_store(f"sqlite:///{tmp_path}/store.db") as store,
        pytest.raises(TableChangedError, match="was rolled back"),
    ):
        stream.sink.maintain(store, stream.batch(10))
    assert stream.load().snapshot_by_id(last) is not None
    with pytest.raises(TableChangedError, match=rf"snapshot_id={last}"):
        stream.committer().token("query-1")

    stream.committer().accept("query-1")
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        stream.sink.maintain(store, stream.batch(20))
    assert len(stream.load().metadata.snapshots) == 2
