"""ClickHouse tables for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from ...committers.clickhouse.address import PORTS, ClickHouseAddress, settings_of
from ...committers.clickhouse.dialect import DIALECT
from ...committers.errors import shown
from ..database.credentials import Environment, advice, check_same, parsed
from ..database.stored import StoredDatabase, destination
from ..stored.table_access import TableAccess
from .options import OPTIONS, ClickHouseOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.clickhouse.committer import ClickHouseCommitter
    from ...committers.clickhouse.connection import ClickHouseServer
    from ...committers.database.content import TableContent
    from ...committers.database.contract import Cursor
    from ...committers.database.staging import StagingTable
    from .sink import ClickHouseSink

_ENVIRONMENT = Environment(
    "CLICKHOUSE_USER", "CLICKHOUSE_PASSWORD", "CLICKHOUSE_HOST", "CLICKHOUSE_PORT", PORTS["http"]
)


@dataclass(frozen=True, slots=True)
class StoredClickHouse(StoredDatabase):
    """See `StoredTable`."""

    dialect = DIALECT

    def server(self) -> tuple[ClickHouseServer, ClickHouseAddress]:
        from ...committers.clickhouse.connection import ClickHouseServer

        address = ClickHouseAddress.parse(self.stream.table_uri)
        settings = settings_of(url_for(address, self.access))
        return ClickHouseServer(settings, address.uri, advice_for(address, self.access)), address

    def sink(self, storage: Mapping[str, str]) -> ClickHouseSink:
        from .sink import ClickHouseSink

        address = ClickHouseAddress.parse(self.stream.table_uri)
        given = {"url": url_for(address, self.access), "dbtable": address.sql}
        return ClickHouseSink(ClickHouseOptions.parse({**storage, **given}), advice_for(address, self.access))

    def committer(self) -> ClickHouseCommitter:
        from ...committers.clickhouse.committer import ClickHouseCommitter

        server, address = self.server()
        return ClickHouseCommitter(server, DIALECT, address)

    def rows_of(
        self, cursor: Cursor, content: TableContent, staged: StagingTable
    ) -> Iterator[pa.RecordBatch]:
        """See `StoredDatabase`. The rows of an INSERT are in the order of the table's key."""
        from ...committers.clickhouse.staged_rows import each_insert

        return each_insert(cursor, content, staged)


def url_for(address: ClickHouseAddress, access: TableAccess) -> str:
    """Return the URL of the database: the `url` of the stream, if this process has one, else with user and
    password from the environment (`CLICKHOUSE_USER`, `CLICKHOUSE_PASSWORD`), with TLS on port 8443.

    Raises:
        ConfigurationError: the `url` is for another database, or CLICKHOUSE_PASSWORD is set and the
            environment does not name this server.
    """
    if access.url is None:
        _ENVIRONMENT.check_names(address)
        return _url_of_environment(address)
    settings = parsed(access.url, settings_of, address.uri)
    check_same(_named(settings.host, settings.port), _named(address.host, address.port), address.uri)
    return access.url


def advice_for(address: ClickHouseAddress, access: TableAccess) -> str:
    """See `advice`."""
    name = quote(address.schema, safe="")
    url = f"{_scheme(address)}://USER:PASSWORD@{_host(address)}:{address.port}/{name}"
    return advice(address, access, "docs/destinations/clickhouse.md", url, _ENVIRONMENT)


def _named(host: str, port: str) -> str:
    return f"host {shown(host)}, port {shown(port)}"


def _scheme(address: ClickHouseAddress) -> str:
    return "https" if address.port == PORTS["https"] else "http"


def _host(address: ClickHouseAddress) -> str:
    return f"[{address.host}]" if ":" in address.host else address.host


def _url_of_environment(address: ClickHouseAddress) -> str:
    user, password = os.environ.get("CLICKHOUSE_USER", "default"), os.environ.get("CLICKHOUSE_PASSWORD")
    login = quote(user, safe="") + ("" if password is None else f":{quote(password, safe='')}")
    name = quote(address.schema, safe="")
    return f"{_scheme(address)}://{login}@{_host(address)}:{address.port}/{name}"


DESTINATION = destination(
    "clickhouse",
    StoredClickHouse,
    OPTIONS,
    "ClickHouseDataSource",
    "the table penstock_fence, which is for all queries of the database",
)
