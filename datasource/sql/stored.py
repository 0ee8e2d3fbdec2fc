"""Tables of `penstock.sql` for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...committers.errors import shown
from ...committers.sql.address import SqlAddress, parse_url
from ..database.credentials import advice, check_same, parsed
from ..database.stored import StoredDatabase, destination
from ..stored.table_access import TableAccess
from .options import OPTIONS, SqlOptions

if TYPE_CHECKING:
    from ...committers.sql.connection import SqlServer
    from ...committers.sql.dialect import SqlDialect
    from .sink import SqlSink


@dataclass(frozen=True, slots=True)
class StoredSql(StoredDatabase):
    """See `StoredTable`."""

    @property
    def dialect(self) -> SqlDialect:
        from ...committers.sql.dialect import dialect_of

        return dialect_of(SqlAddress.parse(self.stream.table_uri).backend_name)

    def server(self) -> tuple[SqlServer, SqlAddress]:
        from ...committers.sql.connection import SqlServer

        address = SqlAddress.parse(self.stream.table_uri)
        url = parse_url(url_for(address, self.access))
        return SqlServer(url, address.uri, advice=advice_for(address, self.access)), address

    def sink(self, storage: Mapping[str, str]) -> SqlSink:
        from .sink import SqlSink

        address = SqlAddress.parse(self.stream.table_uri)
        given = {"url": url_for(address, self.access), "dbtable": address.sql}
        return SqlSink(SqlOptions.parse({**storage, **given}), advice_for(address, self.access))


def url_for(address: SqlAddress, access: TableAccess) -> str:
    """Return the URL of the database: the `url` of the stream, if this process has one, else the address.

    Raises:
        ConfigurationError: the `url` is for another database.
    """
    if access.url is None:
        return _url_of(address)
    given = SqlAddress.of(parsed(access.url, parse_url, address.uri), (address.schema, address.table))
    check_same(shown(given.uri), shown(address.uri), address.uri)
    return access.url


def advice_for(address: SqlAddress, access: TableAccess) -> str:
    """See `advice`."""
    return advice(address, access, "docs/destinations/sql.md")


def _url_of(address: SqlAddress) -> str:
    """The URL of a database, without user and password."""
    from sqlalchemy.engine import URL

    host, _, port = address.server.rpartition(":")
    url = URL.create(address.backend_name, database=address.database)
    if host.startswith("/"):
        url = url.update_query_dict({"host": host, "port": port})
    elif host:
        url = url.set(host=host, port=int(port))
    return url.render_as_string(hide_password=False)


DESTINATION = destination("sql", StoredSql, OPTIONS, "SqlDataSource")
