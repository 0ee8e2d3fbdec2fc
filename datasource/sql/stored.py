"""Tables of `penstock.sql` for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...committers.errors import ConfigurationError, shown
from ...committers.sql.address import SqlAddress, parse_url, qualified
from ...committers.sql.content import MANIFESTS
from ..database.stored import StoredDatabase, staging_tables_of
from ..destinations import DestinationType, with_prefix
from .options import OPTIONS, SqlOptions

if TYPE_CHECKING:
    from ...committers.contract import StreamKey
    from ...committers.sql.connection import SqlServer
    from ...committers.sql.dialect import SqlDialect
    from ..stored.table_access import TableAccess
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


def url_for(address: SqlAddress, access: TableAccess) -> str:
    """Return the URL of the database: the `url` of the stream, if this process has one, else the address.

    Raises:
        ConfigurationError: the `url` is for another database.
    """
    if access.url is None:
        return _url_of(address)
    try:
        given = SqlAddress.of(parse_url(access.url), (address.schema, address.table))
    except ValueError as error:
        raise ConfigurationError(f"The url in `streams` for {shown(address.uri)} {error}.") from None
    if given != address:
        raise ConfigurationError(
            f"The url in `streams` for {shown(address.uri)} is for another database: {shown(given.uri)}. "
            "Nothing was sent. Write the url as that of the query; if that is not the right server, somebody "
            "has changed the manifest store: find out who can write to it."
        )
    return access.url


def advice_for(address: SqlAddress, access: TableAccess) -> str:
    """What to do if the database denies access to a process that does not have the url of the query."""
    if access.url is not None:
        return (
            "User and password are those in the `url` of the entry for this stream in `streams` of the "
            "options file; an entry with the name of the query precedes one with the address."
        )
    return (
        "Commands and delivery processes do not have the url of the query. Give them the url in the options "
        "file (--options-file or $PENSTOCK_OPTIONS_FILE): "
        f'{{"streams": {{"{address.uri}": {{"url": "..."}}}}}}.'
    )


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


def _sink_of(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> SqlSink:
    """Return the sink of a stream, with the url of this process."""
    from .sink import SqlSink

    address = SqlAddress.parse(stream.table_uri)
    given = with_prefix("storage.", options, access.storage)
    url, table = url_for(address, access), qualified(address.schema, address.table)
    parsed = SqlOptions.parse({**given, "url": url, "dbtable": table})
    return SqlSink(parsed, advice=advice_for(address, access))


DESTINATION = DestinationType(
    kind="sql",
    data_source="penstock.datasource.sql.source:SqlDataSource",
    options=OPTIONS,
    sink=_sink_of,
    stored_table=StoredSql,
    files_of=lambda manifest: staging_tables_of(manifest, MANIFESTS),
    records=lambda stream, sink: sink.records(stream.query_id),
    remains="the tables penstock_fence and penstock_refused, which are for all queries of the schema",
)
