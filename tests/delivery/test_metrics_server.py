"""The metrics' HTTP server under clients that connect and say nothing."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry, Gauge
from tests.support.backlogs import wait_until

from penstock import ConfigurationError
from penstock.delivery import metrics_server
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


def test_connections_that_never_end_their_request_are_closed(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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
