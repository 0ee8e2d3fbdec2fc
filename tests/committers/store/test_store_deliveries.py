"""What the store promises about deliveries, on both databases."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import sqlalchemy as sa
from benchmarks.histories import add_history
from tests.support.stored_batches import (
    ABORTED,
    COMMITTED,
    HOUR,
    PREPARED,
    STREAM,
    UNKNOWN,
    batch,
    deliver,
    fill,
    merged,
    own,
    states,
)
from tests.support.stores import (
    START,
    HandClock,
    create_old_store,
    holding,
    plans_of,
    reads_whole_history,
    run_sql,
    statements_of,
)

from penstock.committers.contract import AbortedBy
from penstock.committers.deliveries.contract import Backlog, DeliveryState, Lease
from penstock.committers.errors import CommitStateUnknownError, ManifestCorruptError, RetryableError
from penstock.committers.protocol.decision import Action, TokenPosition, decide
from penstock.committers.store import engines
from penstock.committers.store.deliveries import SqlDeliveries
from penstock.committers.store.delivery_queries import DeliveryPhase
from penstock.committers.store.sql import SqlManifestStore, open_store

# Prepare --------------------------------------------------------------------------------------------


def test_a_delivery_reads_back_as_prepared(
    store: SqlManifestStore, store_url: str, lease: Lease, clock: HandClock
) -> None:
    fill(store, 3)
    clock.advance(5)
    given = store.deliveries.prepare(lease, merged(0, 1), "bytes", is_compacted=True)
    assert (given.manifest, given.trigger, given.is_compacted) == (merged(0, 1), "bytes", True)
    assert given.prepared_at == clock.now
    with open_store(store_url) as another:
        assert another.deliveries.unfinished(STREAM) == given
        assert another.deliveries.unfinished(UNKNOWN) is None
        [record] = another.deliveries.recent(STREAM, 10)
    assert (record.first_batch_id, record.last_batch_id, record.batches) == (0, 1, 2)
    assert (record.phase, record.trigger, record.fence) == (DeliveryPhase.PREPARED, "bytes", 1)
    assert (record.files, record.rows, record.size_bytes) == (1, 20, 1800)
    assert (record.source_files, record.source_bytes) == (4, 2000)
    assert (record.oldest_event_at, record.oldest_prepared_at) == (START - HOUR, START)
    known = [store.record(STREAM, batch_id) for batch_id in range(3)]
    assert [one and one.delivery_id for one in known] == [given.delivery_id] * 2 + [None]
    assert [one.batch.batch_id for one in store.deliveries.deliverable(STREAM)] == [2]


def test_manifests_are_read_in_parts_of_limited_bytes(
    store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 4)
    own_manifests = [own(number) for number in range(4)]
    batches = [one.batch for one in own_manifests]
    size = len(own_manifests[0].content)
    for bytes_max, found in ((4 * size, 4), (3 * size - 1, 2), (1, 1)):
        monkeypatch.setattr("penstock.committers.store.deliveries.CONTENTS_BYTES_READ", bytes_max)
        assert list(store.deliveries.manifests_of(STREAM, batches)) == own_manifests[:found]


def test_the_manifest_of_a_batch_that_is_gone_is_not_passed_over(store: SqlManifestStore) -> None:
    fill(store, 3)
    batches = [batch(0), batch(7), batch(2)]
    assert list(store.deliveries.manifests_of(STREAM, batches)) == [own(0)]
    assert list(store.deliveries.manifests_of(STREAM, batches[1:])) == []


def test_a_delivery_of_one_batch_is_one_of_its_own_manifest(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 1)
    given = store.deliveries.prepare(lease, own(0), "age", is_compacted=False)
    assert given.manifest.merged == (batch(0),)
    assert store.deliveries.unfinished(STREAM) == given


def test_a_stream_has_one_unfinished_delivery_at_most(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 2)
    first = deliver(store, lease, 0)
    fill(store, 1, first=2)
    for batch_ids in ((0, 1), (1, 2), (0,)):
        with pytest.raises(RetryableError, match=r"Batch 0 .*is part of the unfinished delivery"):
            deliver(store, lease, *batch_ids)
    assert store.deliveries.unfinished(STREAM) == first


def test_the_database_refuses_a_second_unfinished_delivery(store: SqlManifestStore, lease: Lease) -> None:
    """Independent of the code. Finished deliveries and those of other streams are allowed."""
    fill(store, 1)
    deliver(store, lease, 0)
    store.register_stream(replace(STREAM, query_id="other"), "test")
    columns = (
        "last_batch_id, digest, batches, trigger, is_compacted, files, rows, size_bytes, source_files, "
        "source_bytes, oldest_prepared_at, fence, prepared_at, reason, kind, version, is_empty, "
        "content_sha256, content"
    )

    def copy(stream_id: int, state: str) -> None:
        run_sql(
            store,
            f"INSERT INTO penstock_deliveries (stream_id, state, first_batch_id, {columns}) "
            f"SELECT {stream_id}, '{state}', 7, {columns} FROM penstock_deliveries WHERE first_batch_id = 0",
        )

    ids = [status.key for status in store.streams()]
    assert ids[0] == STREAM
    copy(1, "COMMITTED")
    copy(1, "ABANDONED")
    copy(2, "PREPARED")
    with pytest.raises(sa.exc.IntegrityError):
        copy(1, "PREPARED")


UNFIT: dict[str, tuple[Callable[[SqlManifestStore], object], str]] = {
    "committed": (lambda store: store.finish(batch(1), COMMITTED), "Batch 1 .*is no longer pending"),
    "skipped": (lambda store: store.deliveries.skip(STREAM, 1, "me", ""), "Batch 1 .*is no longer pending"),
    "replaced": (
        lambda store: [
            store.finish(batch(2), ABORTED),
            store.prepare(replace(own(2), batch=batch(2, "other")), "r1"),
        ],
        "Batch 2 .*is no longer pending",
    ),
}


@pytest.mark.parametrize(("change", "message"), UNFIT.values(), ids=list(UNFIT))
def test_a_delivery_of_batches_that_have_changed_is_refused(
    store: SqlManifestStore, lease: Lease, change: Callable[[SqlManifestStore], object], message: str
) -> None:
    fill(store, 3)
    change(store)
    with pytest.raises(RetryableError, match=message):
        deliver(store, lease, 0, 1, 2)
    assert store.deliveries.unfinished(STREAM) is None
    assert not [one for one in store.pending(STREAM) if one.delivery_id is not None]


@pytest.mark.parametrize("left_out", [0, 1], ids=["before", "between"])
def test_a_delivery_leaves_out_no_pending_batch(store: SqlManifestStore, lease: Lease, left_out: int) -> None:
    """The token would pass it, and batches before the token count as delivered: its rows would be lost."""
    fill(store, 3)
    chosen = [batch_id for batch_id in range(3) if batch_id != left_out]
    with pytest.raises(
        RetryableError, match=rf"Batch {left_out} .*is pending too and must be delivered first"
    ):
        deliver(store, lease, *chosen)
    assert store.deliveries.skip(STREAM, left_out, "tester", "spoilt")
    assert deliver(store, lease, *chosen).manifest.batches == tuple(map(batch, chosen))


def test_nothing_is_delivered_past_a_batch_awaiting_replay(store: SqlManifestStore, lease: Lease) -> None:
    """For the same reason, once the replay is prepared."""
    fill(store, 3)
    store.finish(batch(1), ABORTED, reason="superseded")
    assert [one.batch.batch_id for one in store.deliveries.deliverable(STREAM)] == [0]
    with pytest.raises(RetryableError, match=r"Batch 1 .*waits for its replay and must be delivered first"):
        deliver(store, lease, 0, 2)
    assert deliver(store, lease, 0).manifest.batches == (batch(0),)


def test_a_batch_aborted_by_an_earlier_version_awaits_replay(store: SqlManifestStore, lease: Lease) -> None:
    """A driver of an earlier version does not record who aborted it."""
    fill(store, 4)
    store.finish(batch(0), COMMITTED)
    store.finish(batch(1), ABORTED, reason="superseded")
    run_sql(store, "UPDATE penstock_manifests SET aborted_by = NULL")
    record = store.record(STREAM, 1)
    assert decide(record, TokenPosition.BEHIND, batch(1), is_decoupled=True) is Action.SUPERSEDE
    assert store.deliveries.deliverable(STREAM) == []
    with pytest.raises(RetryableError, match=r"Batch 1 .*waits for its replay and must be delivered first"):
        deliver(store, lease, 2, 3)
    with pytest.raises(RetryableError, match="has aborted"):
        store.prepare(own(4), "r1", follows=batch(1))


def test_a_delivery_is_named_after_its_last_batch(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 2)
    with pytest.raises(ValueError, match="id of the last batch"):
        store.deliveries.prepare(lease, replace(merged(0, 1), batch=batch(0)), "age", is_compacted=False)


# Finish and abandon ---------------------------------------------------------------------------------


def test_finished_deliveries_are_committed(store: SqlManifestStore, lease: Lease, clock: HandClock) -> None:
    fill(store, 4)
    store.set_reason(batch(0), "table busy")
    delivery = deliver(store, lease, 0, 1, 2)
    clock.advance(5)
    assert store.deliveries.finish(delivery, 12)
    assert states(store) == {0: COMMITTED, 1: COMMITTED, 2: COMMITTED, 3: PREPARED}
    for batch_id in range(3):
        record = store.record(STREAM, batch_id)
        assert record is not None
        assert (record.table_version, record.finished_at, record.reason) == (12, clock.now, "")
        assert record.delivery_id == delivery.delivery_id
    [status] = store.streams()
    assert (status.committed_batches, status.committed_rows, status.committed_bytes) == (3, 30, 3000)
    written = store.written_table(STREAM)
    assert written is not None
    assert (written.table_version, written.batch_id) == (12, 2)
    [ended] = store.deliveries.recent(STREAM, 10)
    assert (ended.phase, ended.table_version, ended.finished_at) == (DeliveryPhase.COMMITTED, 12, clock.now)
    assert store.deliveries.unfinished(STREAM) is None


def test_a_delivery_ends_once(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 2)
    first = deliver(store, lease, 0)
    assert store.deliveries.finish(first, 12)
    assert not store.deliveries.finish(first, 13)
    assert not store.deliveries.abandon(lease, first, "too late")
    second = deliver(store, lease, 1)
    assert store.deliveries.abandon(lease, second, "files missing")
    assert not store.deliveries.abandon(lease, second, "again")
    assert not store.deliveries.finish(second, 14)
    assert states(store) == {0: COMMITTED, 1: PREPARED}
    [status] = store.streams()
    assert (status.committed_batches, status.committed_rows) == (1, 10)
    found = [(one.phase.value, one.reason) for one in store.deliveries.recent(STREAM, 10)]
    assert found == [("ABANDONED", "files missing"), ("COMMITTED", "")]


def test_a_delivery_of_a_store_that_was_replaced_ends_nothing(store: SqlManifestStore, lease: Lease) -> None:
    """Its id may belong to another delivery."""
    fill(store, 1)
    delivery = deliver(store, lease, 0)
    of_before = replace(delivery, manifest=merged(0, content=b"of before"))
    assert not store.deliveries.finish(of_before, 12)
    assert not store.deliveries.abandon(lease, of_before, "why")
    assert store.deliveries.unfinished(STREAM) == delivery


def test_an_abandoned_delivery_frees_its_batches(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 2)
    first = deliver(store, lease, 0, 1)
    store.deliveries.abandon(lease, first, "overtaken")
    assert store.deliveries.unfinished(STREAM) is None
    assert [one.batch.batch_id for one in store.deliveries.deliverable(STREAM)] == [0, 1]
    assert deliver(store, lease, 0).delivery_id > first.delivery_id


def test_a_batch_that_was_committed_on_its_own_is_counted_once(store: SqlManifestStore, lease: Lease) -> None:
    """By a query that was switched to `delivery=coupled`, whose recovery commits pending batches too."""
    fill(store, 2)
    delivery = deliver(store, lease, 0, 1)
    assert store.finish(batch(0), COMMITTED, table_version=11)
    assert store.deliveries.unfinished(STREAM) == delivery
    assert store.deliveries.finish(delivery, 12)
    [status] = store.streams()
    assert (status.committed_batches, status.committed_rows) == (2, 20)
    assert [one.table_version for one in store.history(STREAM, 2)] == [12, 11]


def test_an_empty_delivery_leaves_the_known_table_version(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 2)
    store.deliveries.finish(deliver(store, lease, 0), 12)
    store.deliveries.finish(deliver(store, lease, 1), None)
    written = store.written_table(STREAM)
    assert written is not None
    assert (written.table_version, written.batch_id) == (12, 0)


def test_a_batch_in_an_unfinished_delivery_is_not_given_up(store: SqlManifestStore, lease: Lease) -> None:
    """The delivery may be committed, with the rows of the batch."""
    fill(store, 1)
    delivery = deliver(store, lease, 0)
    assert not store.finish(batch(0), ABORTED, reason="superseded")
    assert states(store) == {0: PREPARED}
    store.deliveries.abandon(lease, delivery, "overtaken")
    assert store.finish(batch(0), ABORTED, reason="superseded")


def test_a_failure_of_the_database_leaves_the_delivery_unfinished(
    store: SqlManifestStore, store_url: str, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "LOCK_TIMEOUT_S", 0.2)
    fill(store, 2)
    delivery = deliver(store, lease, 0, 1)
    with open_store(store_url) as other, holding(store, STREAM):
        with pytest.raises(CommitStateUnknownError):
            other.deliveries.finish(delivery, 12)
        with pytest.raises(RetryableError, match="Nothing was written"):
            other.deliveries.abandon(lease, delivery, "why")
    assert store.deliveries.unfinished(STREAM) == delivery
    assert store.deliveries.finish(delivery, 12)


def test_a_delivery_and_its_batches_end_together(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 2)
    delivery = deliver(store, lease, 0, 1)

    def fail(_c: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE penstock_manifests"):
            raise sa.exc.OperationalError("disk full", None, Exception("disk full"))

    sa.event.listen(store.engine, "before_cursor_execute", fail)
    with pytest.raises(CommitStateUnknownError):
        store.deliveries.finish(delivery, 12)
    sa.event.remove(store.engine, "before_cursor_execute", fail)
    assert store.deliveries.unfinished(STREAM) == delivery
    assert store.streams()[0].committed_batches == 0


def test_a_thousand_batches_are_marked_by_one_statement(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 1000)
    delivery = deliver(store, lease, *range(1000))
    with statements_of(store) as said:
        started = time.perf_counter()
        assert store.deliveries.finish(delivery, 12)
        took_s = time.perf_counter() - started
    assert len([statement for statement, _ in said if statement.startswith("UPDATE penstock_manifests")]) == 1
    assert len(said) < 10
    assert took_s < 1  # about 10 ms on a quiet machine
    assert set(states(store).values()) == {COMMITTED}


@pytest.mark.parametrize("what", ["content", "batch"])
def test_a_damaged_delivery_has_a_remedy(store: SqlManifestStore, lease: Lease, what: str) -> None:
    fill(store, 2)
    deliver(store, lease, 0, 1)
    if what == "content":
        run_sql(store, "UPDATE penstock_deliveries SET content = :content", content=b"other")
    else:
        run_sql(store, "UPDATE penstock_manifests SET delivery_id = NULL WHERE batch_id = 0")
    with pytest.raises(ManifestCorruptError, match=r"[Dd]elivery 1 .*8d9a1c.*damaged.*Restore the store"):
        store.deliveries.unfinished(STREAM)
    if what == "content":
        with pytest.raises(ManifestCorruptError):
            list(store.manifests(STREAM, PREPARED))


# State of deliveries, and operators -----------------------------------------------------------------


def test_the_state_of_deliveries_reads_back_as_written(deliveries: SqlDeliveries, lease: Lease) -> None:
    assert deliveries.state(STREAM) == DeliveryState()
    state = DeliveryState(3, START + HOUR, "nul \0", 17, START, "", "refused 5 times")
    deliveries.set_state(lease, state)
    assert deliveries.state(STREAM) == replace(state, error="nul ")


def test_a_process_does_not_end_an_operators_park(
    deliveries: SqlDeliveries, lease: Lease, clock: HandClock
) -> None:
    before = deliveries.state(STREAM)
    deliveries.park(STREAM, "ann", "the table moves")
    clock.advance(5)
    deliveries.set_state(lease, replace(before, tries=1))
    deliveries.set_state(lease, replace(before, tries=5, parked_at=clock.now, parked_why="refused"))
    state = deliveries.state(STREAM)
    assert (state.tries, state.parked_at, state.parked_by) == (5, START, "ann")
    assert state.parked_why == "the table moves"


def test_retry_starts_over_and_keeps_the_error(deliveries: SqlDeliveries, lease: Lease) -> None:
    deliveries.set_state(lease, DeliveryState(5, START, "schema", 3, START, "", "refused 5 times"))
    deliveries.retry(STREAM, "ann", "column added")
    assert deliveries.state(STREAM) == DeliveryState(error="schema", isolate_until=3)


def test_decisions_of_operators_are_kept_with_who_and_why(store: SqlManifestStore, clock: HandClock) -> None:
    fill(store, 3)
    store.deliveries.park(STREAM, "ann", "check it")
    clock.advance(1)
    assert store.deliveries.skip(STREAM, 0, "bob", "bad rows")
    store.deliveries.abort_pending(STREAM, 1, "ann", "checkpoint lost \udcff")
    store.deliveries.retry(STREAM, "ann", "")
    found = [(one.who, one.what, one.batch_id, one.why) for one in store.deliveries.operator_actions(STREAM)]
    assert found == [
        ("ann", "park", None, "check it"),
        ("bob", "skip", 0, "bad rows"),
        ("ann", "abort", 2, "checkpoint lost ?"),
        ("ann", "retry", None, ""),
    ]
    assert store.deliveries.operator_actions(STREAM)[1].at == clock.now
    assert store.deliveries.operator_actions(UNKNOWN) == []


def test_a_skipped_batch_is_given_up_with_the_reason(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 2)
    assert not store.deliveries.skip(STREAM, 0, "ann", "bad rows", expected=batch(0, "other rows"))
    assert store.deliveries.skip(STREAM, 0, "ann", "bad rows", expected=batch(0))
    assert not store.deliveries.skip(STREAM, 0, "ann", "bad rows")
    assert not store.deliveries.skip(STREAM, 7, "ann", "bad rows")
    record = store.record(STREAM, 0)
    assert record is not None
    assert (record.state, record.reason) == (ABORTED, "skipped by ann: bad rows")
    assert len(store.deliveries.operator_actions(STREAM)) == 1
    assert deliver(store, lease, 1).manifest.batches == (batch(1),)


def test_a_batch_in_a_delivery_is_neither_skipped_nor_aborted(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 3)
    delivery = deliver(store, lease, 0, 1)
    for attempt in (
        lambda: store.deliveries.skip(STREAM, 1, "ann", "why"),
        lambda: store.deliveries.abort_pending(STREAM, 0, "ann", "why"),
    ):
        with pytest.raises(RetryableError, match=r"Batch 1 .*penstock deliver --once"):
            attempt()
    assert set(states(store).values()) == {PREPARED}
    assert store.deliveries.operator_actions(STREAM) == []
    store.deliveries.abandon(lease, delivery, "overtaken")
    assert store.deliveries.skip(STREAM, 1, "ann", "why")


def test_batches_after_a_lost_checkpoint_are_aborted(
    store: SqlManifestStore, lease: Lease, clock: HandClock
) -> None:
    fill(store, 5)
    store.deliveries.set_state(lease, DeliveryState(5, START, "the checkpoint is gone"))
    store.finish(batch(3), ABORTED, reason="superseded")
    clock.advance(5)
    aborted = store.deliveries.abort_pending(STREAM, 1, "ann", "checkpoint lost")
    assert aborted == [store.record(STREAM, 2), store.record(STREAM, 4)]
    assert [one.reason for one in aborted] == ["aborted by ann: checkpoint lost"] * 2
    assert states(store) == {0: PREPARED, 1: PREPARED, 2: ABORTED, 3: ABORTED, 4: ABORTED}
    assert store.record(STREAM, 3) != aborted[0]
    assert store.deliveries.state(STREAM) == DeliveryState()
    assert store.deliveries.abort_pending(STREAM, 1, "ann", "again") == []
    assert len(store.deliveries.operator_actions(STREAM)) == 2


def test_the_status_shows_the_backlog(store: SqlManifestStore, lease: Lease, clock: HandClock) -> None:
    fill(store, 1)
    clock.advance(5)
    fill(store, 2, first=1)
    store.deliveries.finish(deliver(store, lease, 0), 12)
    deliver(store, lease, 1)
    store.deliveries.park(STREAM, "ann", "why")
    store.deliveries.wait(STREAM, clock.now)
    [status] = store.streams()
    assert status.backlog == store.deliveries.backlog(STREAM) == Backlog(2, 4, 20, 2000, clock.now)
    assert (status.pending, status.oldest_pending_at) == (2, clock.now)
    assert status.delivery == store.deliveries.state(STREAM)
    assert (status.delivery.parked_by, status.waiting_since) == ("ann", clock.now)
    store.deliveries.wait(STREAM, None)
    assert store.streams()[0].waiting_since is None


def test_settings_stay_until_others_are_registered(store: SqlManifestStore) -> None:
    """A start that fails early registers the stream without any."""
    assert store.settings(STREAM) == store.settings(UNKNOWN) == ""
    store.register_stream(STREAM, "test", settings='{"delivery": "decoupled"}')
    store.register_stream(STREAM, "test", "renamed")
    assert store.settings(STREAM) == store.streams()[0].settings == '{"delivery": "decoupled"}'
    store.register_stream(STREAM, "test", "renamed", settings='{"delivery": "coupled"}')
    assert store.settings(STREAM) == '{"delivery": "coupled"}'


# Cost, and old stores -------------------------------------------------------------------------------


def test_no_statement_of_a_delivery_reads_the_whole_history(store: SqlManifestStore, lease: Lease) -> None:
    add_history(store, own(0), 20_000, START)
    fill(store, 4, first=20_000)
    with statements_of(store) as said:
        store.deliveries.backlog(STREAM)
        store.deliveries.deliverable(STREAM)
        delivery = deliver(store, lease, 20_000, 20_001, is_compacted=True)
        store.deliveries.unfinished(STREAM)
        store.deliveries.abandon(lease, delivery, "why")
        delivery = deliver(store, lease, 20_000, 20_001, is_compacted=True)
        store.deliveries.finish(delivery, 12)
        [record] = store.deliveries.with_sources(STREAM)
        assert len(list(store.deliveries.sources(record))) == 2
        store.deliveries.sources_removed(delivery.delivery_id)
        store.deliveries.skip(STREAM, 20_002, "ann", "why")
        store.deliveries.abort_pending(STREAM, 20_002, "ann", "why")
        store.manifest(STREAM, 20_001)
    assert not [plan for plan in plans_of(store, said) if reads_whole_history(plan)]


def test_a_coupled_batch_costs_no_more_statements(store: SqlManifestStore) -> None:
    """The number of statements of a batch with `delivery=coupled`."""
    with statements_of(store) as said:
        store.record(STREAM, 0)
        store.pending(STREAM)
        store.claim(STREAM, "r1")
        store.prepare(own(0), "r1")
        store.finish(batch(0), COMMITTED, table_version=1)
    assert len(said) == 11, [statement for statement, _ in said]


def test_a_store_without_deliveries_is_upgraded_in_place(store_url: str) -> None:
    """With its streams, their pending batches and what they have committed."""
    checksum = own(0).content_sha256, own(1).content_sha256
    create_old_store(
        store_url,
        "0003",
        "INSERT INTO penstock_streams (id, query_id, table_uri, kind, query_name, created_at, table_id, "
        "table_version, table_batch_id, committed_batches, committed_rows, committed_bytes) VALUES "
        "(1, '8d9a1c', 's3://lake/flights', 'test', 'flights', '2026-11-20 12:00:00', 't1', 11, 0, 1, 10, "
        "1000)",
        "INSERT INTO penstock_runs VALUES (1, 1, 'r1', '2026-11-20 12:00:00')",
        *(
            "INSERT INTO penstock_manifests (stream_id, batch_id, state, digest, kind, version, files, rows, "
            "size_bytes, is_empty, content_sha256, run_id, prepared_at, reason) VALUES "
            f"(1, {one}, '{state}', 'd{one}', 'test', 3, 2, 10, 1000, false, '{checksum[one]}', 'r1', "
            "'2026-11-20 12:00:00', '')"
            for one, state in enumerate(("COMMITTED", "PREPARED"))
        ),
        *(
            "INSERT INTO penstock_manifests (stream_id, batch_id, state, digest, kind, version, files, rows, "
            "size_bytes, is_empty, content_sha256, run_id, prepared_at, reason) VALUES "
            f"(1, {one}, 'ABORTED', 'd{one}', 'test', 3, 2, 10, 1000, false, '', 'r1', "
            f"'2026-11-20 12:00:00', '{reason}')"
            for one, reason in enumerate(("skipped by ann: x", "aborted by ann: y", "superseded"), 12)
        ),
        *(
            f"INSERT INTO penstock_manifest_contents SELECT 1, {one}, content FROM "
            f"(SELECT CAST('files of {one}' AS {'BLOB' if store_url.startswith('sqlite') else 'bytea'}) "
            "AS content) AS given"
            for one in range(2)
        ),
    )
    with open_store(store_url) as store:
        [status] = store.streams()
        assert (status.key, status.query_name, status.committed_batches) == (STREAM, "flights", 1)
        assert (status.settings, status.delivery, status.pruned_up_to) == ("", DeliveryState(), -1)
        assert list(store.manifests(STREAM, PREPARED)) == [own(1)]
        assert list(store.manifests(STREAM, COMMITTED)) == [own(0)]
        aborted_by = [record.aborted_by for record in reversed(store.history(STREAM, 5))]
        assert aborted_by == [None, None, AbortedBy.SKIP, AbortedBy.ABORT, AbortedBy.REPLAY]
        times = [(one.write_s, one.prepare_s, one.commit_s) for one in store.history(STREAM, 5)]
        assert times == [(None, None, None)] * 5
        store.claim(STREAM, "r1")
        fill(store, 1, first=2)
        lease = store.deliveries.acquire(STREAM, "first", 10)
        assert lease is not None
        assert store.deliveries.finish(deliver(store, lease, 1, 2), 12)
        assert store.streams()[0].committed_batches == 3
