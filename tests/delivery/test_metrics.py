"""The metrics while the store is down."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.backlogs import decoupled, serving, wait_until
from tests.support.stores import HandClock

from penstock.committers.errors import RetryableError
from penstock.committers.store.sql import SqlManifestStore
from penstock.delivery.metrics import Metrics, labels_of


def test_a_store_counts_as_down_until_it_was_read() -> None:
    metrics = Metrics(["the store"])
    of_store = {"store": "the store"}
    assert metrics.registry.get_sample_value("penstock_store_up", of_store) == 0
    assert metrics.registry.get_sample_value("penstock_store_errors_total", of_store) == 0


def test_while_the_store_is_down_it_shows_and_the_backlog_grows_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, clock = decoupled(tmp_path, deliverAfterSeconds="3600"), HandClock()
    status = lake.status
    assert status.backlog.oldest_prepared_at is not None
    clock.now = status.backlog.oldest_prepared_at
    metrics, streams = Metrics(clock=clock), SqlManifestStore.streams
    of_stream = dict(zip(("query_name", "table"), labels_of(status), strict=True))
    of_store = {"store": lake.store.name}

    def value(name: str, labels: dict[str, str]) -> float:
        return metrics.registry.get_sample_value(f"penstock_{name}", labels) or 0.0

    def fail(store: SqlManifestStore) -> Any:
        raise RetryableError("the store is away")

    with serving(lake, metrics):
        wait_until(lambda: value("store_up", of_store) == 1)
        read_at = value("store_last_poll_timestamp_seconds", of_store)
        assert read_at > 0
        monkeypatch.setattr(SqlManifestStore, "streams", fail)
        wait_until(lambda: value("store_up", of_store) == 0)
        assert value("store_errors_total", of_store) >= 1
        assert value("backlog_batches", of_stream) == 4
        assert value("backlog_age_seconds", of_stream) == 0
        clock.now += timedelta(hours=2)
        assert value("backlog_age_seconds", of_stream) == 7200
        monkeypatch.setattr(SqlManifestStore, "streams", streams)
        wait_until(lambda: value("store_up", of_store) == 1)
        assert value("store_last_poll_timestamp_seconds", of_store) > read_at
    lake.store.close()
