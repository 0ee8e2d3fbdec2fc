"""Postgres, S3, Azure and a REST catalog, each behind a proxy, for runs that need several of them.

Each is started when it is needed first, and lives as long as `Servers`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil
from servers.azure import azure_server
from servers.lossy_proxy import LossyProxy, lossy_proxy
from servers.postgres import Postgres, postgres
from servers.processes import send
from servers.rest_catalog import RestCatalogServer, rest_catalog_server
from servers.s3 import s3_server


@dataclass(frozen=True)
class Proxied:
    """A server, and the proxy that stands before it for everybody but the run itself."""

    proxy: LossyProxy
    process: psutil.Process

    @contextmanager
    def stopped(self) -> Iterator[None]:
        send(signal.SIGSTOP, [self.process])
        try:
            yield
        finally:
            send(signal.SIGCONT, [self.process])


class Servers:
    """All servers of a run. A context manager: none of them outlives it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._postgres: Postgres | None = None
        self._s3: tuple[dict[str, str], Proxied] | None = None
        self._azure: tuple[str, Proxied] | None = None
        self._rest: tuple[RestCatalogServer, Proxied] | None = None

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def postgres(self) -> Postgres:
        if self._postgres is None:
            self._postgres = self._stack.enter_context(postgres())
        return self._postgres

    def s3(self) -> tuple[dict[str, str], Proxied]:
        """Storage options of the server itself, and what stands before it."""
        if self._s3 is None:
            options = self._stack.enter_context(s3_server())
            self._s3 = options, self._proxied(options["AWS_ENDPOINT_URL"])
        return self._s3

    def azure(self) -> tuple[str, Proxied]:
        """The URL of the server itself, and what stands before it.

        Raises:
            NpmUnreachableError: the server is not to be had.
        """
        if self._azure is None:
            url = self._stack.enter_context(azure_server())
            self._azure = url, self._proxied(url)
            os.environ["AZURITE_BLOB_STORAGE_URL"] = self._azure[1].proxy.url  # where the drivers look for it
        return self._azure

    def rest_catalog(self) -> tuple[RestCatalogServer, Proxied]:
        """
        Raises:
            MavenUnreachableError: its jars are not to be had.
        """
        if self._rest is None:
            server = self._stack.enter_context(rest_catalog_server(self._folder / "rest-warehouse"))
            self._rest = server, self._proxied(server.uri)
        return self._rest

    def _proxied(self, url: str) -> Proxied:
        process = _listener(int(url.rpartition(":")[2]))
        errors = self._stack.enter_context((self._folder / "proxies.log").open("ab"))
        return Proxied(self._stack.enter_context(lossy_proxy(url, errors)), process)


def _listener(port: int) -> psutil.Process:
    """The child of this process that listens there."""
    for child in psutil.Process(os.getpid()).children(recursive=True):
        if any(one.laddr.port == port for one in child.net_connections() if one.status == "LISTEN"):
            return child
    raise AssertionError(f"nobody listens on port {port}")
