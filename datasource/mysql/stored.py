"""MySQL tables for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...committers.mysql.address import MySqlAddress, quoted, settings_of
from ...committers.mysql.content import MANIFESTS
from ...committers.mysql.dialect import DIALECT
from ..database.stored import StoredDatabase, staging_tables_of
from ..destinations import DestinationType, with_prefix
from .credentials import advice_for, url_for
from .options import OPTIONS, MySqlOptions, require_driver

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.contract import StreamKey
    from ...committers.mysql.connection import MySqlServer
    from ..stored.table_access import TableAccess
    from .sink import MySqlSink


@dataclass(frozen=True, slots=True)
class StoredMySql(StoredDatabase):
    """See `StoredTable`."""

    dialect = DIALECT

    def server(self) -> tuple[MySqlServer, MySqlAddress]:
        require_driver()
        from ...committers.mysql.connection import MySqlServer

        address = MySqlAddress.parse(self.stream.table_uri)
        settings = settings_of(url_for(address, self.access, address.uri))
        return MySqlServer(settings, address.uri, advice_for(address, self.access)), address

    def read(self, column: str, value: str) -> pa.Table | None:
        """See `Readable`."""
        import pyarrow as pa

        server, address = self.server()
        with server.transaction("Nothing was read") as cursor:
            table = DIALECT.load(cursor, address)
            if table is None:
                return None
            names = [one.name for one in table.columns]
            select = f"SELECT {', '.join(map(quoted, names))} FROM {address.sql}".replace("%", "%%")
            found = cursor.execute(f"{select} WHERE {quoted(column)} = %s", (value,)).fetchall()
        return pa.table({name: [row[number] for row in found] for number, name in enumerate(names)})


def _sink_of(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> MySqlSink:
    """Return the sink of a stream, with the credentials of this process."""
    require_driver()
    from .sink import MySqlSink

    address = MySqlAddress.parse(stream.table_uri)
    given = with_prefix("storage.", options, access.storage)
    table = f"{quoted(address.schema)}.{quoted(address.table)}"
    url = url_for(address, access, address.uri)
    parsed = MySqlOptions.parse({**given, "url": url, "dbtable": table})
    return MySqlSink(parsed, advice=advice_for(address, access))


DESTINATION = DestinationType(
    kind="mysql",
    data_source="penstock.datasource.mysql.source:MySqlDataSource",
    options=OPTIONS,
    sink=_sink_of,
    stored_table=StoredMySql,
    files_of=lambda manifest: staging_tables_of(manifest, MANIFESTS),
    records=lambda stream, sink: sink.records(stream.query_id),
    remains="the tables penstock_fence and penstock_refused, which are for all queries of the database",
)
