"""The cost of a delivery does not depend on the number of batches that wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.histories import add_backlog
from tests.support.request_streams import Service
from tests.support.stores import START, HandClock, run_sql, work_of

from penstock.committers.contract import AbortedBy, Batch, Manifest, ManifestState
from penstock.committers.deliveries.deliverer import StreamDelivery
from penstock.committers.deliveries.policy import DeliveryPolicy
from penstock.committers.deliveries.results import Delivered
from penstock.committers.requests.content import BATCHES_MAX, RequestManifests
from penstock.committers.requests.contract import Sent
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance import Query

PLACE = Service("http", {"url": "http://localhost:9/rows"})
QUERY = Query(PLACE, options={"delivery": "decoupled", "checkpointLocation": "/checkpoints/q1"})
BATCH = Batch(QUERY.stream, 0, "d0")
NO_ROWS = RequestManifests("http").encode_files(BATCH, [])
"""The manifests of many such batches are delivered together."""
SENT = RequestManifests("http").encode_sent(BATCH, [Sent(1, 8)])
"""One batch a delivery."""
BACKLOG, LEFT = 12_000, 2_000


@pytest.mark.parametrize(
    ("manifest", "taken"), [(NO_ROWS, BATCHES_MAX), (SENT, 1)], ids=["many batches", "one batch"]
)
@pytest.mark.parametrize("after_checkpoint", [False, True])
def test_a_delivery_of_a_long_backlog_does_the_work_of_a_short_one(
    store_url: str, clock: HandClock, manifest: Manifest, taken: int, after_checkpoint: bool
) -> None:
    """Without a trigger, as in a delivery process."""
    with open_store(store_url, clock) as store:
        store.register_stream(QUERY.stream, "http")
        add_backlog(store, manifest, BACKLOG, START)
        clock.advance(3600)
        deliver(store, clock, taken, after_checkpoint)  # now the table has a token
        in_long = [deliver(store, clock, taken, after_checkpoint) for _ in range(2)]
        rest = 4 * taken + LEFT
        run_sql(store, f"DELETE FROM penstock_manifest_contents WHERE batch_id >= {rest}")
        run_sql(store, f"DELETE FROM penstock_manifests WHERE batch_id >= {rest}")
        in_short = deliver(store, clock, taken, after_checkpoint)
        assert max(in_long) <= 1.2 * in_short
        assert store.deliveries.backlog(QUERY.stream).batches == LEFT


def deliver(store: SqlManifestStore, clock: HandClock, batches: int, after_checkpoint: bool) -> int:
    """Deliver so many batches; return what the database did for that."""
    query = replace(QUERY, store=store)
    policy = DeliveryPolicy(after_checkpoint=after_checkpoint)
    with work_of(store) as work:
        lease = store.deliveries.acquire(query.stream, "one", 10)
        assert lease is not None
        delivery = StreamDelivery(
            query.stream,
            store,
            store.deliveries,
            query.target(),
            policy,
            clock=clock,
            last_checkpointed=lambda: BACKLOG,
        )
        delivered = delivery.round(lease)
    assert isinstance(delivered, Delivered)
    assert len(delivered.delivery.manifest.batches) == batches
    return work.steps


def test_a_gap_far_behind_ends_the_batches_that_may_be_delivered(store_url: str, clock: HandClock) -> None:
    """They are read in several steps."""
    with open_store(store_url, clock) as store:
        stream = QUERY.stream
        store.register_stream(stream, "http")
        add_backlog(store, SENT, 2000, START)
        set_state = "UPDATE penstock_manifests SET state = :state, aborted_by = :by WHERE batch_id = :batch"
        aborted = {"state": ManifestState.ABORTED.value, "by": AbortedBy.REPLAY.value}
        run_sql(store, set_state, **aborted, batch=1500)
        run_sql(store, set_state, **aborted | {"by": AbortedBy.SKIP.value}, batch=700)
        assert read_all(store) == [one for one in range(1500) if one != 700]
        # A gap before a batch that is committed does not count.
        run_sql(store, set_state, state=ManifestState.COMMITTED.value, by=None, batch=1600)
        assert read_all(store) == [one for one in range(2000) if one not in (700, 1500, 1600)]
        run_sql(store, set_state, **aborted, batch=1900)
        assert read_all(store)[-1] == 1899
        # Before the first of them.
        run_sql(store, set_state, state=ManifestState.PREPARED.value, by=None, batch=1600)
        run_sql(store, set_state, **aborted, batch=0)
        assert read_all(store) == []


def read_all(store: SqlManifestStore) -> list[int]:
    records = list(store.deliveries.deliverable(QUERY.stream, 300))
    while records and (some := store.deliveries.deliverable(QUERY.stream, 300, records[-1].batch.batch_id)):
        records += some
    return [record.batch.batch_id for record in records]
