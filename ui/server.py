"""Serves the page."""

from __future__ import annotations

import socket
from contextlib import closing

import uvicorn

from ..committers.errors import ConfigurationError
from .app import create_app
from .config import UiConfig

BACKLOG = 128
CONNECTIONS_MAX = 64


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ConfigurationError: the port or address is not available.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"The page cannot be served on {host}:{port}: {getattr(error, 'strerror', None) or error}. "
            "Choose another --port or --host."
        ) from None


def serve(config: UiConfig, listening: socket.socket) -> None:
    """Serve until the process is asked to end.

    Raises:
        ConfigurationError: there is no such store.
    """
    with closing(listening):
        uvicorn.Server(
            uvicorn.Config(
                create_app(config),
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                ws="none",
                limit_concurrency=CONNECTIONS_MAX,
                timeout_graceful_shutdown=5,
            )
        ).run(sockets=[listening])
