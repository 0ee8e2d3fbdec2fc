"""What the manifest store promises, on both databases."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from dataclasses import replace
from datetime import timedelta, timezone
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from benchmarks.histories import add_history
from tests.support.store_process import manifest as stored_manifest
from tests.support.stored_batches import ABORTED, COMMITTED, PREPARED, STREAM
from tests.support.stores import (
    START,
    HandClock,
    Processes,
    holding,
    plans_of,
    reads_whole_history,
    run_sql,
    statements_of,
)

from penstock.committers.contract import Batch, Committable, Manifest, ManifestState, StreamKey
from penstock.committers.errors import (
    CheckpointMismatchError,
    CommitStateUnknownError,
    FencedError,
    ManifestCorruptError,
    RetryableError,
)
from penstock.committers.postgres_timeouts import IDLE_TRANSACTION_TIMEOUT_S
from penstock.committers.protocol.preparing import Preparation, TargetBatch
from penstock.committers.store import database, engines
from penstock.committers.store.contract import PrepareRequest
from penstock.committers.store.sql import SqlManifestStore, open_store, open_store_in_memory


def manifest(
    batch_id: int = 0, content: bytes = b"content", digest: str = "d0", stream: StreamKey = STREAM
) -> Manifest:
    return replace(stored_manifest(batch_id, content), batch=Batch(stream, batch_id, digest))


# Prepare --------------------------------------------------------------------------------------------


def test_a_prepared_manifest_reads_back_as_written(store: SqlManifestStore, store_url: str) -> None:
    given = Manifest(Batch(STREAM, 7, "d7"), "delta", 4, b"\x00\xff", 1, 2**40, 2**50, is_empty=True)
    prepared = store.prepare(given, "r1")
    assert prepared.is_ours
    with open_store(store_url) as another:
        assert another.manifest(STREAM, 7) == given
        record = another.record(STREAM, 7)
    assert record == prepared.record
    assert (record.state, record.run_id, record.rows, record.size_bytes) == (PREPARED, "r1", 2**40, 2**50)
    assert (record.prepared_at, record.finished_at, record.table_version) == (START, None, None)


def test_first_prepared_wins(store: SqlManifestStore) -> None:
    store.prepare(manifest(content=b"first"), "r1")
    store.claim(STREAM, "r2")
    later = store.prepare(manifest(content=b"second", digest="d1"), "r2")
    assert not later.is_ours
    assert (later.record.run_id, later.record.batch.digest) == ("r1", "d0")
    assert store.manifest(STREAM, 0) == manifest(content=b"first")


def test_no_stream_gets_rows_of_a_batch_that_another_stream_has_from_other_offsets(
    store: SqlManifestStore,
) -> None:
    """They would be delivered although the query is refused."""
    joined = StreamKey(STREAM.query_id, "another table")
    store.register_stream(joined, "test")
    store.prepare(manifest(), "r1")
    store.claim_all([STREAM, joined], "r2")
    late, of_joined = manifest(digest="d1"), replace(manifest(), batch=Batch(joined, 0, "d1"))
    for requests in ([late, of_joined], [of_joined, late]):
        with pytest.raises(RetryableError, match="other source offsets by another run"):
            store.prepare_all([PrepareRequest(one) for one in requests], "r2")
    assert store.record(joined, 0) is None
    assert store.manifest(STREAM, 0) == manifest()


def test_a_batch_that_any_target_has_from_other_offsets_is_refused(store: SqlManifestStore) -> None:
    other = StreamKey(STREAM.query_id, "another table")
    store.register_stream(other, "test")
    store.claim(other, "r1")
    store.prepare(manifest(), "r1")
    store.prepare(replace(manifest(), batch=Batch(other, 0, "d1")), "r1")
    committer = Mock()
    committer.batch_before.return_value, committer.prepared.is_void.return_value = None, False
    late = [replace(manifest(content=b"late"), batch=Batch(key, 0, "d0")) for key in (STREAM, other)]
    targets = [TargetBatch(committer, one, [Committable(one.batch, "r2", 0, 0, None)]) for one in late]
    with pytest.raises(CheckpointMismatchError, match="other source offsets by another run"):
        Preparation(store, targets).prepare()
    committer.finish.assert_not_called()


@pytest.mark.parametrize("state", [PREPARED, COMMITTED])
def test_a_retry_of_our_own_prepare_is_still_ours(store: SqlManifestStore, state: ManifestState) -> None:
    """Its response was lost. If it counted as foreign, files of the stored manifest would be deleted."""
    store.prepare(manifest(), "r1")
    if state is COMMITTED:
        store.finish(manifest().batch, COMMITTED)
    again = store.prepare(manifest(), "r1")
    assert again.is_ours
    assert again.record.state is state


@pytest.mark.parametrize(
    "other", [manifest(content=b"other"), manifest(digest="d1")], ids=["other content", "other digest"]
)
def test_another_manifest_of_the_same_run_is_not_ours(store: SqlManifestStore, other: Manifest) -> None:
    store.prepare(manifest(), "r1")
    assert not store.prepare(other, "r1").is_ours
    assert store.manifest(STREAM, 0) == manifest()


def test_the_same_manifest_of_another_run_is_not_ours(store: SqlManifestStore) -> None:
    store.prepare(manifest(), "r1")
    store.claim(STREAM, "r2")
    assert not store.prepare(manifest(), "r2").is_ours


def test_a_committed_batch_is_left_as_it_is(store: SqlManifestStore) -> None:
    store.prepare(manifest(), "r1")
    store.finish(manifest().batch, COMMITTED, table_version=4)
    prepared = store.prepare(manifest(content=b"other", digest="d1"), "r1")
    assert not prepared.is_ours
    assert (prepared.record.state, prepared.record.table_version) == (COMMITTED, 4)
    assert store.manifest(STREAM, 0) == manifest()


def test_an_aborted_batch_is_prepared_again(store: SqlManifestStore, clock: HandClock) -> None:
    store.prepare(manifest(content=b"first"), "r1")
    store.finish(manifest().batch, ABORTED, reason="superseded")
    clock.advance(60)
    prepared = store.prepare(manifest(content=b"second", digest="d1"), "r1")
    assert prepared.is_ours
    assert (prepared.record.state, prepared.record.reason) == (PREPARED, "")
    assert (prepared.record.prepared_at, prepared.record.finished_at) == (clock.now, None)
    assert store.manifest(STREAM, 0) == manifest(content=b"second", digest="d1")


def test_content_of_a_hundred_thousand_files_round_trips(store: SqlManifestStore) -> None:
    content = os.urandom(30_000_000)
    store.prepare(manifest(content=content), "r1")
    stored = store.manifest(STREAM, 0)
    assert stored is not None
    assert type(stored.content) is bytes
    assert hashlib.sha256(stored.content).digest() == hashlib.sha256(content).digest()


def test_streams_do_not_see_each_others_batches(store: SqlManifestStore) -> None:
    """The same query into another table, and another query into the same table."""
    others = [StreamKey(STREAM.query_id, "s3://lake/other"), StreamKey("other", STREAM.table_uri)]
    store.prepare(manifest(), "r1")
    for other in others:
        store.register_stream(other, "test")
        store.claim(other, "r1")
        assert store.record(other, 0) is None
        assert store.prepare(manifest(content=other.table_uri.encode(), stream=other), "r1").is_ours
        store.finish(manifest(stream=other).batch, COMMITTED)
    assert [record.batch.stream for record in store.pending(STREAM)] == [STREAM]


@pytest.mark.parametrize("content", [b"damaged", None], ids=["changed", "missing"])
def test_damaged_content_is_an_error_with_a_remedy(store: SqlManifestStore, content: bytes | None) -> None:
    store.prepare(manifest(7), "r1")
    if content is None:
        run_sql(store, "DELETE FROM penstock_manifest_contents")
    else:
        run_sql(store, "UPDATE penstock_manifest_contents SET content = :content", content=content)
    with pytest.raises(
        ManifestCorruptError, match=r"batch 7 .*8d9a1c -> s3://lake/flights.*Restore the store"
    ):
        store.manifest(STREAM, 7)
    with pytest.raises(ManifestCorruptError):
        list(store.manifests(STREAM, PREPARED))


# Register and claim ---------------------------------------------------------------------------------


def test_register_is_idempotent(store: SqlManifestStore, clock: HandClock) -> None:
    store.prepare(manifest(), "r1")
    clock.advance(60)
    store.register_stream(STREAM, "test")
    store.register_stream(STREAM, "test", "renamed")
    [status] = store.streams()
    assert (status.key, status.kind, status.query_name) == (STREAM, "test", "renamed")
    assert (status.created_at, status.pending) == (START, 1)


def test_the_newest_run_takes_over(store: SqlManifestStore) -> None:
    store.claim(STREAM, "r2")
    with pytest.raises(FencedError, match=r"Run r1 .*run r2 took over"):
        store.prepare(manifest(), "r1")
    assert store.record(STREAM, 0) is None
    assert store.prepare(manifest(), "r2").is_ours


def test_a_fenced_run_stays_fenced_when_it_comes_back(store: SqlManifestStore) -> None:
    store.claim(STREAM, "r2")
    with pytest.raises(FencedError):
        store.claim(STREAM, "r1")
    store.claim(STREAM, "r2")
    store.claim(STREAM, "r3")
    for fenced in ("r1", "r2"):
        with pytest.raises(FencedError):
            store.claim(STREAM, fenced)
        with pytest.raises(FencedError):
            store.prepare(manifest(), fenced)
    assert store.prepare(manifest(), "r3").is_ours


def test_prepare_needs_a_claim(store: SqlManifestStore) -> None:
    with pytest.raises(FencedError, match="r9"):
        store.prepare(manifest(), "r9")
    other = StreamKey("other", "s3://lake/other")
    store.register_stream(other, "test")
    with pytest.raises(FencedError, match="has not claimed"):
        store.prepare(manifest(stream=other), "r1")


def test_a_store_that_was_replaced_under_the_query_asks_for_a_new_start(store: SqlManifestStore) -> None:
    unknown = StreamKey("unknown", "s3://lake/flights")
    for attempt in (
        lambda: store.claim(unknown, "r1"),
        lambda: store.prepare(manifest(stream=unknown), "r1"),
    ):
        with pytest.raises(RetryableError, match="does not know the stream unknown"):
            attempt()
    assert not store.finish(manifest(stream=unknown).batch, COMMITTED)


# Finish ---------------------------------------------------------------------------------------------


def test_finish_is_done_once(store: SqlManifestStore, clock: HandClock) -> None:
    store.prepare(manifest(), "r1")
    clock.advance(5)
    assert store.finish(manifest().batch, COMMITTED, table_version=12)
    clock.advance(5)
    assert not store.finish(manifest().batch, COMMITTED, table_version=13)
    assert not store.finish(manifest().batch, ABORTED, reason="too late")
    record = store.record(STREAM, 0)
    assert record is not None
    assert (record.state, record.table_version, record.reason) == (COMMITTED, 12, "")
    assert record.finished_at == START + timedelta(seconds=5)


def test_finish_of_another_digest_changes_nothing(store: SqlManifestStore) -> None:
    store.prepare(manifest(digest="d0"), "r1")
    assert not store.finish(Batch(STREAM, 0, "d1"), ABORTED)
    assert not store.finish(Batch(STREAM, 1, "d0"), ABORTED)
    assert [record.batch.digest for record in store.pending(STREAM)] == ["d0"]


def test_a_batch_cannot_be_finished_as_prepared(store: SqlManifestStore) -> None:
    with pytest.raises(ValueError, match="COMMITTED or ABORTED"):
        store.finish(manifest().batch, PREPARED)


def test_any_reason_can_be_stored(store: SqlManifestStore) -> None:
    """Reasons are messages of other libraries: no text may prevent the abort of a batch."""
    store.prepare(manifest(), "r1")
    assert store.finish(manifest().batch, ABORTED, reason="nul \0, surrogate \udcff, " + "long " * 10_000)
    record = store.record(STREAM, 0)
    assert record is not None
    assert record.reason.startswith("nul , surrogate ?, long")


def test_set_reason_notes_a_failed_attempt_and_nothing_else(store: SqlManifestStore) -> None:
    before = store.prepare(manifest(), "r1").record
    assert store.set_reason(before.batch, "table busy")
    [record] = store.pending(STREAM)
    assert record.reason == "table busy"
    assert store.manifest(STREAM, 0) == manifest()
    store.finish(before.batch, COMMITTED)
    assert not store.set_reason(before.batch, "too late")
    assert store.history(STREAM, 1)[0].reason == ""


# Lists ----------------------------------------------------------------------------------------------


def test_pending_batches_come_in_ascending_order(store: SqlManifestStore) -> None:
    for batch_id in (10, 2, 9, 1):
        store.prepare(manifest(batch_id), "r1")
    store.finish(manifest(9).batch, COMMITTED)
    store.finish(manifest(2).batch, ABORTED)
    assert [record.batch.batch_id for record in store.pending(STREAM)] == [1, 10]


def test_history_comes_newest_first(store: SqlManifestStore) -> None:
    for batch_id in (10, 2, 9, 1):
        store.prepare(manifest(batch_id), "r1")
    assert [record.batch.batch_id for record in store.history(STREAM, 3)] == [10, 9, 2]
    assert store.history(StreamKey("unknown", ""), 3) == []


def test_manifests_of_one_state_come_whole_and_in_order(store: SqlManifestStore) -> None:
    for batch_id in (5, 3, 4, 1):
        store.prepare(manifest(batch_id, content=b"%d" % batch_id), "r1")
    store.finish(manifest(3).batch, COMMITTED)
    pending = store.manifests(STREAM, PREPARED)
    assert next(pending) == manifest(1, content=b"1")
    store.prepare(manifest(6, content=b"6"), "r1")  # while the iteration goes on
    assert [found.content for found in pending] == [b"4", b"5", b"6"]
    assert [found.content for found in store.manifests(STREAM, COMMITTED)] == [b"3"]
    assert list(store.manifests(STREAM, ABORTED)) == []


def test_status_sums_up_each_stream(store: SqlManifestStore, clock: HandClock) -> None:
    other = StreamKey("other", "s3://lake/other")
    store.register_stream(other, "test", "other query")
    for batch_id in range(5):
        clock.advance(1)
        store.prepare(manifest(batch_id), "r1")
    store.finish(manifest(0).batch, COMMITTED)
    store.finish(manifest(1).batch, COMMITTED)
    store.finish(manifest(1).batch, COMMITTED)
    store.finish(manifest(2).batch, ABORTED)
    flights, empty = store.streams()
    assert flights.last == store.record(STREAM, 4)
    assert (flights.pending, flights.oldest_pending_at) == (2, START + timedelta(seconds=4))
    assert (flights.committed_batches, flights.committed_rows, flights.committed_bytes) == (2, 20, 2000)
    assert (empty.key, empty.query_name, empty.last) == (other, "other query", None)
    assert (empty.pending, empty.oldest_pending_at, empty.committed_batches) == (0, None, 0)


def test_times_are_utc_whatever_the_clocks_zone(store_url: str) -> None:
    with open_store(store_url, lambda: START.astimezone(timezone(timedelta(hours=5)))) as store:
        store.register_stream(STREAM, "test")
        store.claim(STREAM, "r1")
        store.prepare(manifest(), "r1")
        store.finish(manifest().batch, ABORTED)
        record = store.record(STREAM, 0)
        times = [store.streams()[0].created_at, record and record.prepared_at, record and record.finished_at]
    assert times == [START] * 3
    assert {time.tzinfo for time in times if time} == {timezone.utc}


def test_no_statement_reads_the_whole_history(store: SqlManifestStore) -> None:
    """Every statement of a batch and of the status uses an index."""
    add_history(store, manifest(), 20_000, START)
    with statements_of(store) as said:
        store.claim(STREAM, "r1")
        store.prepare(manifest(20_000), "r1")
        store.record(STREAM, 20_000)
        store.manifest(STREAM, 20_000)
        store.pending(STREAM)
        assert [found.batch.batch_id for found in store.manifests(STREAM, PREPARED)] == [20_000]
        store.finish(manifest(20_000).batch, COMMITTED)
        store.history(STREAM, 10)
        store.streams()
    plans = plans_of(store, said)
    assert not [plan for plan in plans if reads_whole_history(plan)]
    assert sum("penstock_manifests_pending" in plan for plan in plans) >= 3  # pending, manifests, streams


def test_the_status_of_many_streams_takes_as_many_statements_as_of_one(store: SqlManifestStore) -> None:
    counts = []
    for streams in (1, 30):
        for number in range(streams):
            key = StreamKey(f"q{number:02d}", f"/lake/{number}")
            store.register_stream(key, "test")
            store.claim(key, "r1")
            for batch_id in range(3):
                of_key = replace(manifest(batch_id).batch, stream=key)
                store.prepare(replace(manifest(batch_id), batch=of_key), "r1")
            store.finish(replace(manifest(0).batch, stream=key), COMMITTED, table_version=number)
        with statements_of(store) as said:
            found = store.streams()
        counts.append(len(said))
    assert counts[0] == counts[1]
    assert len(found) == 31
    for one in found[1:]:
        assert one.last == store.record(one.key, 2)
        assert (one.backlog, one.written) == (store.deliveries.backlog(one.key), store.written_table(one.key))
    assert (found[0].last, found[0].backlog.batches, found[0].written) == (None, 0, None)
    assert store.streams(is_pending=True) == found[1:]
    assert store.streams(key=found[7].key) == [found[7]]


# Other processes ------------------------------------------------------------------------------------


def test_processes_that_open_an_empty_database_together_all_succeed(store_url: str) -> None:
    assert Processes(*[["open", store_url]] * 3).results() == [None] * 3
    with open_store(store_url) as store:
        assert store.streams() == []


def test_a_process_waits_for_a_concurrent_creation(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate = database._run_migrations
    others = Processes(["open", store_url])

    def slowly(connection: sa.Connection) -> None:
        migrate(connection)
        others.start()
        time.sleep(0.5)

    monkeypatch.setattr(database, "_run_migrations", slowly)
    open_store(store_url).close()
    assert others.ended() == [None]


def test_of_two_processes_that_prepare_the_same_batches_one_wins_each(store: SqlManifestStore) -> None:
    batches = 40
    url = store.engine.url.render_as_string(hide_password=False)
    contents = ("one", "two")
    results = Processes(*[["prepare", url, "r1", content, str(batches)] for content in contents]).results()
    for batch_id in range(batches):
        won = [content for content, ours in zip(contents, results, strict=True) if ours[batch_id]]
        assert len(won) == 1, batch_id
        stored = store.manifest(STREAM, batch_id)
        assert stored is not None
        assert stored.content.decode() == won[0]


def test_of_two_runs_that_start_together_one_is_fenced(store: SqlManifestStore) -> None:
    batches = 40
    url = store.engine.url.render_as_string(hide_password=False)
    results = Processes(*[["prepare", url, run, run, str(batches)] for run in ("r2", "r3")]).results()
    ended_well = [result for result in results if result[-1] != "fenced"]
    assert len(ended_well) >= 1
    assert len(ended_well[0]) == batches
    owners = [record.run_id for record in reversed(store.history(STREAM, batches))]
    ours = dict(zip(("r2", "r3"), results, strict=True))
    for batch_id, owner in enumerate(owners):
        assert [run for run, result in ours.items() if result[batch_id : batch_id + 1] == [True]] == [owner]


def test_a_crash_between_insert_and_commit_leaves_nothing(store: SqlManifestStore) -> None:
    url = store.engine.url.render_as_string(hide_password=False)
    assert Processes(["die", url, "r2", "from the dead"]).results() == [-signal.SIGKILL]
    assert store.record(STREAM, 0) is None
    started = time.monotonic()
    store.claim(STREAM, "r3")
    assert store.prepare(manifest(), "r3").is_ours
    assert time.monotonic() - started < IDLE_TRANSACTION_TIMEOUT_S / 2
    assert store.manifest(STREAM, 0) == manifest()


def test_a_store_in_memory_keeps_the_same_promises_until_it_is_closed() -> None:
    with open_store_in_memory() as store:
        store.register_stream(STREAM, "test")
        store.claim(STREAM, "r1")
        assert store.prepare(manifest(), "r1").is_ours
        assert store.finish(manifest().batch, COMMITTED)
        assert store.manifest(STREAM, 0) == manifest()
    with open_store_in_memory() as another:
        assert another.streams() == []


def test_threads_share_a_store(store: SqlManifestStore) -> None:
    ours: list[bool] = []

    def prepare(content: bytes) -> None:
        ours.extend(store.prepare(manifest(i, content=content), "r1").is_ours for i in range(10))

    threads = [threading.Thread(target=prepare, args=(b"%d" % number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(ours), sum(ours)) == (80, 10)


def test_readers_do_not_wait(
    store: SqlManifestStore, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "LOCK_TIMEOUT_S", 0.2)
    store.prepare(manifest(), "r1")
    with open_store(store_url) as reader, holding(store, STREAM):
        assert len(reader.pending(STREAM)) == 1
        assert reader.manifest(STREAM, 0) == manifest()
        assert len(reader.streams()) == 1


# A database that fails ------------------------------------------------------------------------------


def test_locks_time_out(store: SqlManifestStore, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "LOCK_TIMEOUT_S", 0.2)
    store.prepare(manifest(), "r1")
    with open_store(store_url) as other, holding(store, STREAM):
        with pytest.raises(RetryableError, match=r"lock.*Nothing was written"):
            other.prepare(manifest(1), "r1")
        with pytest.raises(CommitStateUnknownError):
            other.finish(manifest().batch, COMMITTED)
    assert store.finish(manifest().batch, COMMITTED)


def cut_connections(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        connection.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                "AND application_name = 'penstock'"
            )
        )
    engine.dispose()


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_connection_that_was_cut_while_idle_is_replaced(store: SqlManifestStore, store_url: str) -> None:
    cut_connections(store_url)
    assert store.prepare(manifest(), "r1").is_ours


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_connection_lost_at_commit_leaves_the_state_unknown(
    store: SqlManifestStore, store_url: str
) -> None:
    """Nothing may be deleted afterwards: the manifest may be stored."""

    def cut(_connection: sa.Connection) -> None:
        cut_connections(store_url)

    sa.event.listen(store.engine, "commit", cut)
    with pytest.raises(CommitStateUnknownError, match="may or may not be recorded"):
        store.prepare(manifest(), "r1")
    sa.event.remove(store.engine, "commit", cut)
    assert store.prepare(manifest(), "r1").is_ours
