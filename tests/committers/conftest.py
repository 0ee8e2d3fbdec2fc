"""What the tests of the store have in common, which others here override, and those of catalogs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.lossy_proxy import LossyProxy
from tests.committers.stored_batches import STREAM
from tests.committers.stores import HandClock

from penstock.committers.deliveries.contract import Lease
from penstock.committers.store.deliveries import SqlDeliveries
from penstock.committers.store.sql import SqlManifestStore, open_store


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(store_url: str, clock: HandClock) -> Iterator[SqlManifestStore]:
    """A store that knows STREAM, whose batches run "r1" prepares."""
    with open_store(store_url, clock) as opened:
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


@pytest.fixture
def network(proxy: LossyProxy) -> LossyProxy:
    """The test's own proxy, which loses nothing yet."""
    proxy.spend()
    proxy.deliver_late()
    return proxy


@pytest.fixture(autouse=True)
def _polars_plans_with_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # or polars warns that it has no other
