"""Decoupled streams through a real Spark: the query continues without its table, and loses nothing.

Most deliveries are made here by the two-phase committer's recovery, which takes pending batches one by one.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from tests.support.cli import penstock
from tests.support.id_stream import IdStream, write_ids
from tests.support.lakes import LakeTable

from penstock.committers.contract import ManifestState, StreamKey
from penstock.committers.protocol.recovery import Recovery
from penstock.committers.store.sql import open_store

pytestmark = pytest.mark.spark

PREPARED, COMMITTED, ABORTED = ManifestState.PREPARED, ManifestState.COMMITTED, ManifestState.ABORTED
DECOUPLED = {"delivery": "decoupled"}


def deliver(ids: IdStream) -> None:
    table = ids.table.sink().open_table()
    with open_store(ids.store_url) as store:
        for status in store.streams():
            Recovery(store, table).recover(status.key)


def states(ids: IdStream) -> dict[int, ManifestState]:
    with open_store(ids.store_url) as store:
        records = [record for status in store.streams() for record in store.history(status.key, 100)]
        return {record.batch.batch_id: record.state for record in reversed(records)}


def log_of(table: LakeTable) -> Path:
    """Return what every read of the table needs: Delta's log, or the database of the Iceberg catalog."""
    place = Path(table.options[table.place])
    return place / "_delta_log" if table.place == "path" else place / "catalog.sqlite"


@pytest.mark.slow
def test_a_stream_continues_while_its_table_cannot_be_reached(ids: IdStream) -> None:
    ids.add_files(8)
    query = ids.writer(ids.rows(), **DECOUPLED).trigger(processingTime="0 seconds").start()
    while query.lastProgress is None:
        query.processAllAvailable()
    log, away = log_of(ids.table), ids.root / "away"
    shutil.move(log, away)
    if log.suffix == "":
        log.write_text("not a directory")  # otherwise a read would create a new table
    try:
        ids.add_files(4)
        deadline = time.monotonic() + 60
        while len(states(ids)) < 12 and time.monotonic() < deadline:
            query.processAllAvailable()  # may end with a trigger that had looked for files before
    finally:
        query.stop()
        log.unlink(missing_ok=True)
        shutil.move(away, log)
    assert states(ids) == dict.fromkeys(range(12), PREPARED)
    assert ids.read() == []

    deliver(ids)
    assert ids.findings().problems == []
    assert ids.findings().rows == 1200


def test_a_replay_between_prepare_and_the_commits_log_writes_nothing(ids: IdStream) -> None:
    """Before its delivery, and after."""
    ids.add_files(2)
    ids.run(None, **DECOUPLED)
    for _ in range(2):
        files = set(ids.table.folder.rglob("*.parquet"))
        ids.forget_commit(1)
        ids.run(None, **DECOUPLED)
        assert set(ids.table.folder.rglob("*.parquet")) == files
        assert (ids.checkpoint / "commits" / "1").exists()
        deliver(ids)
    assert ids.findings().problems == []


def test_a_rewound_checkpoint_supersedes_pending_batches(delta_ids: IdStream) -> None:
    delta_ids.add_files(3)
    delta_ids.run(None, **DECOUPLED)
    for folder in ("offsets", "commits", "sources/0"):
        for path in (delta_ids.checkpoint / folder).iterdir():
            if path.name.strip(".").removesuffix(".crc") in ("1", "2"):
                path.unlink()
    (delta_ids.source / "00001.parquet").rename(delta_ids.source / "renamed.parquet")
    delta_ids.run(delta_ids.rows(files_per_batch=2), **DECOUPLED)

    assert states(delta_ids) == {0: PREPARED, 1: PREPARED, 2: ABORTED}
    deliver(delta_ids)
    assert delta_ids.findings().problems == []
    assert delta_ids.findings().rows == 300


def test_a_store_that_was_lost_with_undelivered_batches_is_refused(ids: IdStream) -> None:
    ids.add_files(2)
    ids.run(None, **DECOUPLED)
    for path in ids.checkpoint.glob("penstock.sqlite*"):
        path.unlink()
    ids.add_files(1)
    message = ids.fails_with(None, **DECOUPLED)
    assert "were lost with the store" in message
    assert "delivery=coupled and newTarget=allow" in message

    ids.run(delivery="coupled", newTarget="allow")
    assert len(ids.read()) == 100


def test_a_full_backlog_makes_the_query_wait_then_fail_and_a_restart_continues(delta_ids: IdStream) -> None:
    delta_ids.add_files(4)
    bound = {**DECOUPLED, "backlogBatches": "2", "backlogWaitSeconds": "2"}
    message = delta_ids.fails_with(None, **bound)
    assert "2 batches wait (backlogBatches=2)" in message
    assert "penstock deliver" in message
    assert states(delta_ids) == {0: PREPARED, 1: PREPARED}

    deliver(delta_ids)
    delta_ids.run(None, **bound)
    deliver(delta_ids)
    assert delta_ids.findings().problems == []
    assert delta_ids.findings().rows == 400


def test_a_coupled_start_commits_the_pending_batches_of_a_decoupled_one(ids: IdStream) -> None:
    ids.add_files(2)
    ids.run(None, **DECOUPLED)
    ids.add_files(1)
    ids.run()
    assert states(ids) == dict.fromkeys(range(3), COMMITTED)
    ids.add_files(1)
    ids.run(None, **DECOUPLED)
    deliver(ids)
    assert ids.findings().problems == []
    assert ids.findings().rows == 400


def test_a_table_dropped_with_a_backlog_is_not_created_again(ids: IdStream) -> None:
    ids.add_files(1)
    ids.run(None, **DECOUPLED)
    ids.table.drop()
    ids.add_files(1)
    assert "TableChangedError" in ids.fails_with(None, schemaEvolution="addColumns", **DECOUPLED)


def reset(ids: IdStream) -> str:
    """Run two batches, then start again with an empty checkpoint and the same store."""
    store = shared_store(ids)
    ids.add_files(2)
    ids.run(None, store=store, **DECOUPLED)
    shutil.rmtree(ids.checkpoint)
    with open_store(store) as opened:
        (first,) = opened.streams()
    ids.run(None, store=store, **DECOUPLED)
    return first.key.query_id


def shared_store(ids: IdStream) -> str:
    """Return a store outside of the checkpoint."""
    return f"sqlite:///{ids.root}/store.db"


def test_batches_prepared_before_a_reset_of_the_checkpoint_are_still_delivered(ids: IdStream) -> None:
    """The new one is another stream, which reads the source from the beginning: each row is there twice."""
    reset(ids)
    penstock(shared_store(ids), "deliver", "--once")
    assert ids.read("count(*), count(DISTINCT id)") == [(400, 200)]
    ids.add_files(1)
    ids.run(None, store=shared_store(ids), **DECOUPLED)
    penstock(shared_store(ids), "deliver", "--once")
    assert ids.read("count(*), count(DISTINCT id)") == [(500, 300)]


def test_batches_prepared_before_a_reset_of_the_checkpoint_can_be_aborted(delta_ids: IdStream) -> None:
    first = reset(delta_ids)
    penstock(shared_store(delta_ids), "abort", first, "--reason", "started again", "--yes")
    penstock(shared_store(delta_ids), "deliver", "--once")
    assert delta_ids.read("count(*), count(DISTINCT id)") == [(200, 200)]


def test_a_batch_write_refuses_to_be_decoupled(delta_ids: IdStream) -> None:
    rows = delta_ids.spark.range(3)
    writer = rows.write.format("penstock.delta").options(**delta_ids.table.options, **DECOUPLED)
    with pytest.raises(Exception, match="delivery=decoupled is only for streams"):
        writer.mode("append").save()


def test_the_event_time_of_the_oldest_row_is_kept(delta_ids: IdStream) -> None:
    write_ids(delta_ids.source / "00000.parquet", range(10), 0)
    rows = delta_ids.rows().selectExpr("*", "timestamp_micros(1767322800000000 + id) AS happened")
    delta_ids.run(rows, eventTime="HAPPENED", **DECOUPLED)
    with open_store(delta_ids.store_url) as store:
        (status,) = store.streams()
        manifest = store.manifest(StreamKey(status.key.query_id, status.key.table_uri), 0)
    assert manifest is not None
    assert str(manifest.oldest_event_at) == "2026-01-02 03:00:00+00:00"
