"""Postgres tables for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...committers.postgres.address import PostgresAddress
from ...committers.postgres.content import MANIFESTS
from ...committers.postgres.dialect import DIALECT
from ..database.stored import StoredDatabase, staging_tables_of
from ..destinations import DestinationType, with_prefix
from .credentials import advice_for, settings_for
from .options import OPTIONS, PostgresOptions, require_driver

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.contract import StreamKey
    from ...committers.postgres.connection import PostgresServer
    from ..stored.table_access import TableAccess
    from .sink import PostgresSink


@dataclass(frozen=True, slots=True)
class StoredPostgres(StoredDatabase):
    """See `StoredTable`."""

    dialect = DIALECT

    def read(self, column: str, value: str) -> pa.Table | None:
        """See `Readable`."""
        from ...committers.postgres.table import read_rows

        server, address = self.server()
        with server.transaction("Nothing was read") as cursor:
            return read_rows(cursor, address, column, value)

    def server(self) -> tuple[PostgresServer, PostgresAddress]:
        require_driver()
        from ...committers.postgres.connection import PostgresServer

        address = PostgresAddress.parse(self.stream.table_uri)
        settings = settings_for(address, self.access, address.uri)
        return PostgresServer(settings, address.uri, advice_for(address, self.access)), address


def _sink_of(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> PostgresSink:
    """Return the sink of a stream, with the credentials of this process."""
    require_driver()
    from psycopg.conninfo import make_conninfo

    from .sink import PostgresSink

    address = PostgresAddress.parse(stream.table_uri)
    settings = settings_for(address, access, address.uri)
    given = with_prefix("storage.", options, access.storage)
    parsed = PostgresOptions.parse({**given, "url": make_conninfo("", **settings)})
    return PostgresSink(parsed, advice=advice_for(address, access))


DESTINATION = DestinationType(
    kind="postgres",
    data_source="penstock.datasource.postgres.source:PostgresDataSource",
    options=OPTIONS,
    sink=_sink_of,
    stored_table=StoredPostgres,
    files_of=lambda manifest: staging_tables_of(manifest, MANIFESTS),
    records=lambda stream, sink: sink.records(stream.query_id),
    remains="the fence table, which is for all queries of the schema",
)
