"""What the store keeps of delivered batches and of maintenance, on both databases."""

from __future__ import annotations

import pytest
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
    names,
    own,
    states,
)
from tests.support.stores import START, HandClock, run_sql

from penstock.committers.contract import StreamKey
from penstock.committers.deliveries.contract import Lease
from penstock.committers.errors import FencedError, ManifestCorruptError, RetryableError
from penstock.committers.store.sql import SqlManifestStore, open_store

# Names for clean-up ---------------------------------------------------------------------------------

SOURCES = [b"files of 0", b"files of 1"]


def test_an_unfinished_delivery_needs_its_files_and_sources(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 3)
    deliver(store, lease, 0, 1, is_compacted=True)
    assert names(store, PREPARED) == [*SOURCES, b"files of 2", b"merged"]
    assert names(store, COMMITTED) == []


def test_rewritten_deliveries_keep_sources(store: SqlManifestStore, lease: Lease, clock: HandClock) -> None:
    fill(store, 2)
    delivery = deliver(store, lease, 0, 1, is_compacted=True)
    assert store.deliveries.with_sources(STREAM) == []
    store.deliveries.sources_removed(delivery.delivery_id)  # too early: nothing happens
    store.deliveries.finish(delivery, 12)
    assert names(store, COMMITTED) == [*SOURCES, b"merged"]
    [record] = store.deliveries.with_sources(STREAM)
    assert list(store.deliveries.sources(record)) == [own(0), own(1)]
    clock.advance(3600)
    for _ in range(2):
        store.deliveries.sources_removed(delivery.delivery_id)
        clock.advance(1)
    assert names(store, COMMITTED) == [b"merged"]
    assert store.deliveries.with_sources(STREAM) == []
    assert list(store.deliveries.sources(record)) == []
    assert store.manifest(STREAM, 0) is None
    assert store.deliveries.recent(STREAM, 1)[0].sources_removed_at == START + HOUR
    assert set(states(store).values()) == {COMMITTED}


def test_a_delivery_of_unchanged_files_is_named_once(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 2)
    delivery = deliver(store, lease, 0, 1)
    store.deliveries.finish(delivery, 12)
    assert names(store, COMMITTED) == [b"merged"]
    assert store.deliveries.with_sources(STREAM) == []
    store.deliveries.sources_removed(delivery.delivery_id)
    assert store.manifest(STREAM, 0) == own(0)  # for `penstock show`


def test_batches_of_an_abandoned_delivery_need_their_files(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 2)
    store.deliveries.abandon(lease, deliver(store, lease, 0, 1, is_compacted=True), "its files are missing")
    assert names(store, PREPARED) == SOURCES
    assert names(store, COMMITTED) == names(store, ABORTED) == []


def test_a_batch_committed_on_its_own_needs_its_files(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 2)
    delivery = deliver(store, lease, 0, 1, is_compacted=True)
    store.finish(batch(0), COMMITTED)
    assert names(store, COMMITTED) == [b"files of 0"]
    store.deliveries.abandon(lease, delivery, "overtaken")
    assert names(store, COMMITTED) == [b"files of 0"]
    assert names(store, PREPARED) == [b"files of 1"]


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("read", range(4))
def test_no_name_is_missed_meanwhile(
    store: SqlManifestStore, lease: Lease, read: int, is_compacted: bool
) -> None:
    """However many PREPARED manifests clean-up has read when the delivery is finished."""
    fill(store, 2)
    delivery = deliver(store, lease, 0, 1, is_compacted=is_compacted)
    prepared = store.manifests(STREAM, PREPARED)
    found = {next(prepared).content for _ in range(min(read, 3))}
    store.deliveries.finish(delivery, 12)
    found |= {manifest.content for manifest in prepared}
    found |= set(names(store, COMMITTED))
    needed = {*SOURCES, b"merged"} if is_compacted else {b"merged"}
    assert needed <= found


def test_lost_content_is_not_taken_for_removed_sources(store: SqlManifestStore, lease: Lease) -> None:
    fill(store, 2)
    store.deliveries.finish(deliver(store, lease, 0, 1, is_compacted=True), 12)
    run_sql(store, "DELETE FROM penstock_manifest_contents WHERE batch_id = 0")
    with pytest.raises(ManifestCorruptError, match=r"batch 0 .*content is missing"):
        store.manifest(STREAM, 0)
    with pytest.raises(ManifestCorruptError):
        names(store, COMMITTED)


# Prune ----------------------------------------------------------------------------------------------


def test_old_batches_are_pruned_by_age(store: SqlManifestStore, lease: Lease, clock: HandClock) -> None:
    fill(store, 5)
    store.finish(batch(0), COMMITTED)
    store.deliveries.skip(STREAM, 1, "ann", "why")
    store.deliveries.finish(deliver(store, lease, 2, 3), 12)
    clock.advance(3600)
    store.finish(batch(4), COMMITTED)
    fill(store, 1, first=5)
    assert store.deliveries.prune(STREAM, START, 100) == 0
    assert store.deliveries.prune(STREAM, START + HOUR / 2, 100) == 3
    assert states(store) == {1: ABORTED, 4: COMMITTED, 5: PREPARED}, "skipped ones stay"
    assert store.manifest(STREAM, 0) is None
    assert store.deliveries.recent(STREAM, 10) == []
    [status] = store.streams()
    assert (status.pruned_up_to, status.committed_batches) == (3, 4)
    assert len(store.deliveries.operator_actions(STREAM)) == 1
    assert store.deliveries.prune(STREAM, START + HOUR / 2, 100) == 0


def test_many_batches_are_pruned_by_count(
    store: SqlManifestStore, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.committers.store.pruning.BATCHES_AT_ONCE", 4)
    for first in range(0, 20, 2):
        fill(store, 2, first)
        store.deliveries.finish(deliver(store, lease, first, first + 1, name=b"of %d" % first), 12)
    assert store.deliveries.prune(STREAM, START - HOUR, 5) == 15
    assert list(states(store)) == [15, 16, 17, 18, 19]
    assert [one.last_batch_id for one in store.deliveries.recent(STREAM, 10)] == [19, 17, 15]
    assert names(store, COMMITTED) == [b"of 14", b"of 16", b"of 18"]


def test_pending_and_newest_records_stay(store: SqlManifestStore, lease: Lease, clock: HandClock) -> None:
    """Clean-up and the next start need the newest: without it the stream would look new."""
    fill(store, 4)
    for batch_id in (0, 3):
        store.finish(batch(batch_id), COMMITTED)
    clock.advance(3600)
    assert store.deliveries.prune(STREAM, clock.now, 0) == 1
    assert states(store) == {1: PREPARED, 2: PREPARED, 3: COMMITTED}
    store.deliveries.finish(deliver(store, lease, 1, 2), 12)
    clock.advance(3600)
    assert store.deliveries.prune(STREAM, clock.now, 0) == 2
    assert states(store) == {3: COMMITTED}


def test_the_newest_keeps_its_delivery(store: SqlManifestStore, lease: Lease, clock: HandClock) -> None:
    fill(store, 2)
    delivery = deliver(store, lease, 0, 1, is_compacted=True)
    store.deliveries.finish(delivery, 12)
    store.deliveries.sources_removed(delivery.delivery_id)
    clock.advance(3600)
    assert store.deliveries.prune(STREAM, clock.now, 0) == 1
    assert store.manifest(STREAM, 1) is None
    assert names(store, COMMITTED) == [b"merged"]


@pytest.mark.parametrize("what", ["unfinished", "with sources"])
def test_batches_of_a_delivery_are_not_pruned(
    store: SqlManifestStore, lease: Lease, clock: HandClock, what: str
) -> None:
    fill(store, 2)
    delivery = deliver(store, lease, 0, 1, is_compacted=True)
    if what == "unfinished":
        for batch_id in range(2):
            store.finish(batch(batch_id), COMMITTED)
    else:
        store.deliveries.finish(delivery, 12)
    fill(store, 1, first=2)
    clock.advance(3600)
    assert store.deliveries.prune(STREAM, clock.now, 0) == 0
    if what == "unfinished":
        assert store.deliveries.unfinished(STREAM) == delivery
        store.deliveries.finish(delivery, 12)
    [record] = store.deliveries.with_sources(STREAM)
    assert list(store.deliveries.sources(record)) == [own(0), own(1)]
    store.deliveries.sources_removed(delivery.delivery_id)
    assert store.deliveries.prune(STREAM, clock.now, 0) == 2
    assert store.deliveries.recent(STREAM, 1) == []


def test_unfinished_deliveries_keep_batches(store: SqlManifestStore, lease: Lease, clock: HandClock) -> None:
    """Even if each was committed on its own: the process that finishes the delivery needs them."""
    fill(store, 3)
    delivery = deliver(store, lease, 0, 1)
    for batch_id in range(3):
        store.finish(batch(batch_id), COMMITTED)
    clock.advance(3600)
    assert store.deliveries.prune(STREAM, clock.now, 0) == 0
    assert store.deliveries.unfinished(STREAM) == delivery


def test_abandoned_deliveries_are_pruned(store: SqlManifestStore, lease: Lease, clock: HandClock) -> None:
    fill(store, 1)
    for number in range(2):
        store.deliveries.abandon(lease, deliver(store, lease, 0, name=b"%d" % number), "why")
        clock.advance(3600)
    unfinished = deliver(store, lease, 0)
    store.deliveries.prune(STREAM, START + HOUR / 2, 0)
    assert [one.phase.value for one in store.deliveries.recent(STREAM, 10)] == ["PREPARED", "ABANDONED"]
    assert store.deliveries.unfinished(STREAM) == unfinished


def test_delivery_ids_are_never_used_again(store: SqlManifestStore, lease: Lease, clock: HandClock) -> None:
    fill(store, 1)
    first = deliver(store, lease, 0)
    store.deliveries.abandon(lease, first, "why")
    clock.advance(3600)
    store.deliveries.prune(STREAM, clock.now, 0)
    assert store.deliveries.recent(STREAM, 1) == []
    assert deliver(store, lease, 0).delivery_id > first.delivery_id


def test_a_run_is_pruned_long_after_it_was_taken_over(store: SqlManifestStore, clock: HandClock) -> None:
    clock.advance(3600)
    store.claim(STREAM, "r2")
    clock.advance(3600)
    store.claim(STREAM, "r3")
    store.deliveries.prune(STREAM, START + 1.5 * HOUR, 0)
    with pytest.raises(FencedError):  # its claim is old, that of its successor is not
        store.claim(STREAM, "r2")
    store.claim(STREAM, "r3")
    store.claim(STREAM, "r1")  # pruned, so it counts as new
    with pytest.raises(FencedError):
        store.claim(STREAM, "r3")


# Maintenance ----------------------------------------------------------------------------------------


def test_the_last_time_of_each_step_is_kept_for_each_stream(store: SqlManifestStore, store_url: str) -> None:
    other = StreamKey("another", STREAM.table_uri)
    store.register_stream(other, "test")
    for step, at in (("compact", START), ("vacuum", START), ("compact", START + HOUR)):
        store.maintenance.note(STREAM, step, at)
    with open_store(store_url) as again:
        assert again.maintenance.done(STREAM) == {"compact": START + HOUR, "vacuum": START}
        assert again.maintenance.done(other) == {}


def test_an_unknown_stream_was_never_maintained(store: SqlManifestStore) -> None:
    assert store.maintenance.done(UNKNOWN) == {}
    with pytest.raises(RetryableError, match="does not know the stream unknown"):
        store.maintenance.note(UNKNOWN, "compact", START)
