"""A store in each database, with a stream that a run has claimed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.stored_batches import STREAM
from tests.support.stores import HandClock

from penstock.committers.deliveries.contract import Lease
from penstock.committers.store.deliveries import SqlDeliveries
from penstock.committers.store.sql import SqlManifestStore, open_store


@pytest.fixture
def store(store_url: str, clock: HandClock) -> Iterator[SqlManifestStore]:
    """A store with the stream STREAM, which run "r1" has claimed."""
    with open_store(store_url, clock, lease_clock=clock) as opened:
        opened.register_stream(STREAM, "test")
        opened.claim(STREAM, "r1")
        yield opened


@pytest.fixture
def deliveries(store: SqlManifestStore) -> SqlDeliveries:
    return store.deliveries


@pytest.fixture
def lease(deliveries: SqlDeliveries) -> Lease:
    held = deliveries.acquire(STREAM, "first", 10)
    assert held is not None
    return held
