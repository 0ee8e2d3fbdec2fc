"""Runs a proxy that speaks TLS with clients of Postgres, before a server that was built without it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select

_REQUEST = bytes.fromhex("0000000804d2162f")
"""SSLRequest. Source: https://www.postgresql.org/docs/current/protocol-message-formats.html"""


@contextmanager
def postgres_tls(backend: int, folder: Path) -> Iterator[int]:
    """Start the proxy before a port on the loopback; its own port. Connections without TLS are closed.

    Args:
        folder: of `make_certificates`
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # the end of the block
                while True:
                    client, _ = server.accept()
                    threading.Thread(target=_forward, args=(client, context, backend), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def _forward(client: socket.socket, context: ssl.SSLContext, backend: int) -> None:
    with suppress(OSError), client:
        if client.recv(len(_REQUEST), socket.MSG_WAITALL) != _REQUEST:
            return
        client.sendall(b"S")
        with (
            context.wrap_socket(client, server_side=True) as tls,
            socket.create_connection(("127.0.0.1", backend)) as plain,
        ):
            while True:
                ready = [tls] if tls.pending() else select([tls, plain], [], [])[0]
                for one in ready:
                    data = one.recv(1 << 16)
                    if not data:
                        return
                    (plain if one is tls else tls).sendall(data)
