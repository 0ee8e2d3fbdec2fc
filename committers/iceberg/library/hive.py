"""A Hive Metastore client with timeouts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlparse

from pyiceberg.catalog.hive import (
    HIVE_KERBEROS_AUTH,
    HIVE_KERBEROS_AUTH_DEFAULT,
    HIVE_KERBEROS_SERVICE_NAME,
    HIVE_KERBEROS_SERVICE_NAME_DEFAULT,
    HiveCatalog,
    _HiveClient,
)
from pyiceberg.utils.properties import property_as_bool
from thrift.transport import TSocket, TTransport

from ...file_tables.library_hooks import changed_library, check_hooks, hook
from .timeouts import Timeouts


class HiveCatalogWithTimeouts(HiveCatalog):
    """pyiceberg's client with a timeout for each request.

    Raises:
        ConfigurationError: the library no longer calls the hooks that set the timeout.
    """

    def __init__(self, name: str, **properties: Any) -> None:
        check_hooks(HiveCatalogWithTimeouts)
        check_hooks(_HiveClientWithTimeouts)
        super().__init__(name, **properties)
        if not isinstance(self._client, _HiveClientWithTimeouts) or not self._client.has_timeout:
            raise changed_library("pyiceberg", "a call of _HiveClient._init_thrift_transport for each client")

    @staticmethod
    @hook
    def _create_hive_client(properties: dict[str, str]) -> _HiveClient:
        """Same as the library's, which also takes the first of several addresses: it does not connect yet."""
        return _HiveClientWithTimeouts(
            properties["uri"].split(",")[0],
            properties.get("ugi"),
            property_as_bool(properties, HIVE_KERBEROS_AUTH, HIVE_KERBEROS_AUTH_DEFAULT),
            properties.get(HIVE_KERBEROS_SERVICE_NAME, HIVE_KERBEROS_SERVICE_NAME_DEFAULT),
            timeouts=Timeouts.of("hive", properties),
        )


def connected(catalog: HiveCatalog) -> AbstractContextManager[Any]:
    """Return a connection of its own, closed until it is entered: threads cannot share one."""
    return HiveCatalogWithTimeouts._create_hive_client(catalog.properties)


class _HiveClientWithTimeouts(_HiveClient):
    has_timeout = False

    def __init__(
        self, uri: str, ugi: str | None, kerberos: bool | None, service: str | None, *, timeouts: Timeouts
    ) -> None:
        self._address = urlparse(uri)
        self._sasl_service = service if kerberos else None
        self._timeouts = timeouts
        super().__init__(uri, ugi, kerberos, service)

    @hook
    def _init_thrift_transport(self) -> Any:
        """Called for each connection."""
        socket = _SocketWithTimeouts(self._address.hostname, self._address.port, self._timeouts)
        self.has_timeout = True
        if self._sasl_service is None:
            return TTransport.TBufferedTransport(socket)
        return TTransport.TSaslClientTransport(
            socket, host=self._address.hostname, service=self._sasl_service
        )


class _SocketWithTimeouts(TSocket.TSocket):  # type: ignore[misc]
    """One timeout to connect, another one for each response. Thrift's own socket has one for both, or
    none.
    """

    def __init__(self, host: str | None, port: int | None, timeouts: Timeouts) -> None:
        super().__init__(host, port)
        self._timeouts = timeouts

    def open(self) -> None:
        self.setTimeout(1000 * self._timeouts.connect_s)
        super().open()
        self.setTimeout(1000 * self._timeouts.request_s)
