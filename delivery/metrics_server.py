"""The HTTP server of `--metrics-port`, with a bound on connections and on the duration of each."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any

from prometheus_client import MetricsHandler
from prometheus_client.registry import Collector

from ..committers.errors import ConfigurationError
from ..committers.texts.safe_text import get_logger

logger = get_logger(__name__)

CONNECTIONS_MAX = 16
"""Connections at the same time, one thread each; further ones are closed."""
CONNECTION_S_MAX = 10.0
"""Seconds after which a connection is closed, idle or not: Prometheus' own timeout of a scrape."""


class MetricsServer(ThreadingHTTPServer):
    """Answer `/metrics`, one request per connection.

    Args:
        port: 0 chooses a free one
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, address: str, registry: Collector) -> None:
        (self.address_family, *_), *_ = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        self._began_s: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__((address, port), MetricsHandler.factory(registry))

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            is_full = len(self._began_s) >= CONNECTIONS_MAX
            if not is_full:
                self._began_s[request] = time.monotonic()
        if is_full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._began_s.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections that have taken too long. `serve_forever` calls it twice a second."""
        with self._lock:
            for request, began_s in self._began_s.items():
                if time.monotonic() - began_s > CONNECTION_S_MAX:
                    with suppress(OSError):  # wakes the thread of the connection, which closes it
                        request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("A request for metrics failed.", exc_info=True)


def serve_metrics(port: int, address: str, registry: Collector) -> tuple[int, Callable[[], None]]:
    """Serve `/metrics` in a thread. Return the port and a function that ends it.

    Raises:
        ConfigurationError: the port or address is not available.
    """
    try:
        server = MetricsServer(port, address, registry)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"Metrics cannot be served on {address}:{port}: {getattr(error, 'strerror', None) or error}. "
            "Choose another port or address."
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, end
