"""The HTTP server of the metrics, and the metrics while the store is down."""

from __future__ import annotations

import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry, Gauge
from tests.support.backlogs import decoupled, serving, wait_until
from tests.support.stores import HandClock

from penstock import ConfigurationError
from penstock.committers.errors import RetryableError
from penstock.committers.store.sql import SqlManifestStore
from penstock.delivery import metrics_server
from penstock.delivery.metrics import Metrics, labels_of
from penstock.delivery.metrics_server import CONNECTIONS_MAX, serve_metrics

LOOPBACK = "127.0.0.1"


@pytest.fixture
def port() -> Iterator[int]:
    registry = CollectorRegistry()
    Gauge("penstock_test", "A figure.", registry=registry).set(7)
    port, end = serve_metrics(0, LOOPBACK, registry)
    yield port
    end()


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def test_idle_connections_take_a_bounded_number_of_threads(port: int) -> None:
    before = threading.active_count()
    with ExitStack() as opened:
        for _ in range(10 * CONNECTIONS_MAX):
            opened.enter_context(socket.create_connection((LOOPBACK, port)))
        ends = time.monotonic() + 1
        counts = {CONNECTIONS_MAX}
        while time.monotonic() < ends:
            counts.add(threading.active_count() - before)
        assert max(counts) == CONNECTIONS_MAX


def test_connections_without_a_request_are_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that goes on sending, so that no single read takes long."""
    monkeypatch.setattr(metrics_server, "CONNECTION_S_MAX", 1.0)
    with ExitStack() as opened:
        slow, *_ = [
            opened.enter_context(socket.create_connection((LOOPBACK, port))) for _ in range(CONNECTIONS_MAX)
        ]

        def is_closed() -> bool:
            try:
                slow.sendall(b"G")
            except OSError:
                return True
            return False

        wait_until(is_closed, 10)
        wait_until(lambda: "penstock_test 7.0" in scraped(port), 10)


@pytest.mark.parametrize(("port", "address"), [(70_000, LOOPBACK), (0, "no.such.host.invalid")])
def test_what_is_no_port_or_address_is_a_configuration_error(port: int, address: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{address}:{port}.*Choose another port or address"):
        serve_metrics(port, address, CollectorRegistry())


def test_a_port_that_is_taken_is_a_configuration_error(port: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{LOOPBACK}:{port}.*Choose another port"):
        serve_metrics(port, LOOPBACK, CollectorRegistry())


# A store that is down ----------------------------------------------------------------------------------


def test_a_store_counts_as_down_until_it_was_read() -> None:
    metrics = Metrics(["the store"])
    of_store = {"store": "the store"}
    assert metrics.registry.get_sample_value("penstock_store_up", of_store) == 0
    assert metrics.registry.get_sample_value("penstock_store_errors_total", of_store) == 0


RULES = Path(__file__).parents[2] / "docs" / "prometheus-rules.yml"


def test_each_metric_of_an_alert_is_there_before_the_first_delivery(tmp_path: Path) -> None:
    """An expression without a sample is never true: nothing would tell of a delivery that never succeeds."""
    lake, clock, metrics = decoupled(tmp_path, deliverAfterSeconds="3600"), HandClock(), Metrics(["store"])
    metrics.on_poll("store", [replace(lake.status, dead_letters_written=0)], clock.now)
    names = set(re.findall(r"\bpenstock_\w+", RULES.read_text()))
    samples = {one.name for family in metrics.registry.collect() for one in family.samples}
    assert names - samples == set()

    labels = dict(zip(("query_name", "table"), labels_of(lake.status), strict=True))

    def last_success(metrics: Metrics) -> float | None:
        return metrics.registry.get_sample_value("penstock_last_success_timestamp", labels)

    assert last_success(metrics) == clock.now.timestamp()
    metrics.on_poll("store", [lake.status], clock.now + timedelta(hours=1))
    assert last_success(metrics) == clock.now.timestamp()
    others = Metrics(["store"], delivers=False)
    others.on_poll("store", [lake.status], clock.now)
    assert last_success(others) is None


def test_metrics_show_a_store_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, clock = decoupled(tmp_path, deliverAfterSeconds="3600"), HandClock()
    status = lake.status
    assert status.backlog.oldest_prepared_at is not None
    clock.now = status.backlog.oldest_prepared_at
    metrics, streams = Metrics(clock=clock), SqlManifestStore.streams
    of_stream = dict(zip(("query_name", "table"), labels_of(status), strict=True))
    of_store = {"store": lake.store.name}

    def value(name: str, labels: dict[str, str]) -> float:
        return metrics.registry.get_sample_value(f"penstock_{name}", labels) or 0.0

    with serving(lake, metrics):
        wait_until(lambda: value("store_up", of_store) == 1)
        read_at = value("store_last_poll_timestamp_seconds", of_store)
        assert read_at > 0
        monkeypatch.setattr(
            SqlManifestStore, "streams", Mock(side_effect=RetryableError("the store is down"))
        )
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
