"""A stream of a Kafka topic, and observers that are made anew for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers.openlineage import LineageCollector, lineage_collector
from tests.support.planned_stream import Stream

from penstock.committers.store.sql import open_store
from penstock.delivery.attempts import ServiceSettings
from penstock.delivery.context import DeliveryContext
from penstock.delivery.drain import drain
from penstock.delivery.telemetry import TelemetryListener
from penstock.telemetry import observer
from penstock.testing.conformance.query import NO_ACCESS

Start = Callable[..., Stream]


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    observer._loaded.cache_clear()
    yield
    observer._loaded.cache_clear()


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return lambda kind="delta", **options: Stream(tmp_path, kind, queryName="shop", **options)


@pytest.fixture
def lineage(monkeypatch: pytest.MonkeyPatch) -> Iterator[LineageCollector]:
    with lineage_collector() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        yield collector


@pytest.fixture
def deliver() -> Callable[[Stream], None]:
    """Returns what delivers as the delivery process does."""

    def delivered(stream: Stream) -> None:
        settings = ServiceSettings(maintains=False, lease_wait_s=5)
        context = DeliveryContext(access=NO_ACCESS, settings=settings, listeners=[TelemetryListener()])
        with open_store(stream.store_url) as store:
            drain(store, context)

    return delivered
