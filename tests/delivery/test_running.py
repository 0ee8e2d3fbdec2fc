"""A delivery process whose store is down, missing, or deleted and created again."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.backlogs import QUICK, SOON, context_of, decoupled, wait_until

from penstock.committers.errors import StoreUnreachableError
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.delivery import running
from penstock.delivery.context import DeliveryContext
from penstock.delivery.listeners import LastError
from penstock.delivery.metrics import Metrics
from penstock.delivery.running import DeliveryScope, deliver, opened

DOWN = "postgresql+psycopg://me@127.0.0.1:1/db"


def scope(url: str, *, waits: bool) -> DeliveryScope:
    return DeliveryScope(stores=(url,), waits_for_stores=waits)


def test_a_database_that_is_down_is_an_error_unless_it_is_waited_for() -> None:
    with pytest.raises(StoreUnreachableError, match=r"refused.*Check host"):
        opened(DOWN, scope(DOWN, waits=False), context_of())


def test_a_database_that_is_down_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first try is real; by the second one the database is there."""
    url = f"sqlite:///{tmp_path}/store.db"
    open_store(url).close()
    urls = iter((DOWN, url))

    def open_next(_url: str, *, must_exist: bool) -> SqlManifestStore:
        return open_store(next(urls), must_exist=must_exist)

    monkeypatch.setattr(running, "open_store", open_next)
    errors = LastError()
    store = opened(DOWN, scope(DOWN, waits=True), context_of(errors))
    assert isinstance(errors.error, StoreUnreachableError)
    assert store is not None
    store.close()
    (warning,) = caplog.messages
    assert warning.startswith("Tried again in 1 s: ")


@pytest.mark.parametrize("delivers", [True, False])
def test_a_deleted_store_counts_as_down_and_a_new_one_is_read(tmp_path: Path, delivers: bool) -> None:
    """As with its checkpoint. The store existed when the process was started."""
    lake, metrics, stop = decoupled(tmp_path, deliverAfterSeconds="3600"), Metrics(), threading.Event()
    of_store, settings = {"store": lake.store.name}, replace(QUICK, delivers=delivers)
    context = context_of(metrics, settings=settings, stop=stop)
    process = threading.Thread(target=deliver, args=(DeliveryScope(stores=(lake.store_url,)), context))

    def value(name: str, labels: dict[str, str]) -> float | None:
        return metrics.registry.get_sample_value(f"penstock_{name}", labels)

    process.start()
    try:
        wait_until(lambda: value("store_up", of_store) == 1)
        lake.store.close()
        shutil.rmtree(lake.stores)
        wait_until(lambda: value("store_up", of_store) == 0, 10)
        assert not lake.stores.exists()
        lake.query_id = "ffffffff-5a0f-4f4e-9d3e-000000000002"
        lake.lose_store()
        lake.decouple(**SOON if delivers else {})
        lake.fill(2)
        of_stream = {"query_name": "ids", "table": lake.stream.table_uri}
        wait_until(lambda: lake.left == (0 if delivers else 2), 10)
        wait_until(lambda: value("backlog_batches", of_stream) == lake.left, 10)
        assert value("store_up", of_store) == 1
    finally:
        stop.set()
        process.join(30)
    assert len(lake.rows()) == (4 if delivers else 0)
    with open_store(lake.store_url, must_exist=True) as read:
        assert [one.key for one in read.streams()] == [lake.stream]
    lake.store.close()


def test_a_restarted_service_is_another_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt of the one before may still hang: with the same holder it would keep its fence."""
    lake, stop, holders = decoupled(tmp_path), threading.Event(), list[str]()

    class EndingService:
        def __init__(self, store: SqlManifestStore, context: DeliveryContext, is_chosen: object) -> None:
            holders.append(context.holder)

        def run(self) -> None:
            if len(holders) == 2:
                stop.set()

    monkeypatch.setattr(running, "DeliveryService", EndingService)
    deliver(DeliveryScope(stores=(lake.store_url,)), context_of(stop=stop))
    assert holders[0] != holders[1]
