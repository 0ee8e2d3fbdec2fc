"""Runs Postgres, S3, Azure, a REST catalog and services that receive rows, for tests that need several of
them. All but Postgres have a proxy.

Each server starts on first use and stops with `Servers`.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import psutil
from servers.aws import aws_server
from servers.azure import azure_server
from servers.http_rows import http_rows
from servers.lossy_proxy import LossyProxy, lossy_proxy
from servers.lossy_tcp import LossyTcp, lossy_tcp
from servers.nats import nats_server
from servers.opensearch import opensearch_server
from servers.postgres import Postgres, postgres
from servers.processes import stopped
from servers.redis import redis_server
from servers.rest_catalog import RestCatalogServer, rest_catalog_server
from servers.s3 import s3_server

P = TypeVar("P", LossyProxy, LossyTcp)


@dataclass(frozen=True)
class Proxied(Generic[P]):
    """A server process and its proxy. Everything except the run itself uses the proxy."""

    proxy: P
    process: psutil.Process

    def stopped(self) -> AbstractContextManager[None]:
        return stopped([self.process])


class Servers:
    """All servers of a run. A context manager, which stops them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._postgres: Postgres | None = None
        self._s3: tuple[dict[str, str], Proxied[LossyProxy]] | None = None
        self._azure: tuple[str, Proxied[LossyProxy]] | None = None
        self._rest: tuple[RestCatalogServer, Proxied[LossyProxy]] | None = None
        self._services: dict[str, tuple[Any, Proxied[Any]]] = {}

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

    def s3(self) -> tuple[dict[str, str], Proxied[LossyProxy]]:
        """Return storage options of the server itself, and the server with its proxy."""
        if self._s3 is None:
            options = self._stack.enter_context(s3_server())
            self._s3 = options, self._proxied(options["AWS_ENDPOINT_URL"])
        return self._s3

    def azure(self) -> tuple[str, Proxied[LossyProxy]]:
        """Return the URL of the server itself, and the server with its proxy.

        Raises:
            NpmUnreachableError: Azurite cannot be installed.
        """
        if self._azure is None:
            url = self._stack.enter_context(azure_server())
            self._azure = url, self._proxied(url)
            os.environ["AZURITE_BLOB_STORAGE_URL"] = self._azure[1].proxy.url  # read by the drivers
        return self._azure

    def rest_catalog(self) -> tuple[RestCatalogServer, Proxied[LossyProxy]]:
        """Return the server itself, and the server with its proxy.

        Raises:
            MavenUnreachableError: its jars cannot be downloaded.
        """
        if self._rest is None:
            server = self._stack.enter_context(rest_catalog_server(self._folder / "rest-warehouse"))
            self._rest = server, self._proxied(server.uri)
        return self._rest

    def service(self, kind: str) -> tuple[Any, Proxied[Any]]:
        """Return the server of a service itself, and the server with its proxy.

        Args:
            kind: such as `redis`, for `penstock.redis`

        Raises:
            UnreachableError: it cannot be downloaded.
        """
        if kind not in self._services:
            server = self._stack.enter_context(self._service(kind))
            self._services[kind] = server, self._proxied(server.url)
        return self._services[kind]

    def _service(self, kind: str) -> AbstractContextManager[Any]:
        if kind == "kinesis":
            return aws_server()
        if kind == "redis":
            return redis_server()
        if kind == "nats":
            return nats_server()
        if kind == "opensearch":
            return opensearch_server(self._folder / "opensearch")
        assert kind == "http", kind
        return http_rows(self._stack.enter_context((self._folder / "http.log").open("ab")))

    def _proxied(self, url: str) -> Proxied[Any]:
        parts = urlsplit(url)
        assert parts.port is not None, url
        process = _listener(parts.port)
        if parts.scheme != "http":
            return Proxied(self._stack.enter_context(lossy_tcp(parts.port)), process)
        errors = self._stack.enter_context((self._folder / "proxies.log").open("ab"))
        proxy = lossy_proxy(f"http://{parts.netloc}", errors)
        return Proxied(self._stack.enter_context(proxy), process)


def _listener(port: int) -> psutil.Process:
    """Return the child process that listens on the port."""
    for child in psutil.Process(os.getpid()).children(recursive=True):
        if any(one.laddr.port == port for one in child.net_connections() if one.status == "LISTEN"):
            return child
    raise AssertionError(f"no child process listens on port {port}")
