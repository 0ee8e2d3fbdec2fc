"""Postgres tables for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...committers.postgres.address import PostgresAddress
from ...committers.postgres.dialect import DIALECT
from ..database.stored import StoredDatabase, destination
from .credentials import advice_for, settings_for
from .options import OPTIONS, PostgresOptions, require_driver

if TYPE_CHECKING:
    from ...committers.postgres.connection import PostgresServer
    from .sink import PostgresSink


@dataclass(frozen=True, slots=True)
class StoredPostgres(StoredDatabase):
    """See `StoredTable`."""

    dialect = DIALECT

    def server(self) -> tuple[PostgresServer, PostgresAddress]:
        require_driver()
        from ...committers.postgres.connection import PostgresServer

        address = PostgresAddress.parse(self.stream.table_uri)
        settings = settings_for(address, self.access, address.uri)
        return PostgresServer(settings, address.uri, advice_for(address, self.access)), address

    def sink(self, storage: Mapping[str, str]) -> PostgresSink:
        require_driver()
        from psycopg.conninfo import make_conninfo

        from .sink import PostgresSink

        address = PostgresAddress.parse(self.stream.table_uri)
        url = make_conninfo("", **settings_for(address, self.access, address.uri))
        parsed = PostgresOptions.parse({**storage, "url": url, "dbtable": address.sql})
        return PostgresSink(parsed, advice_for(address, self.access))


DESTINATION = destination(
    "postgres",
    StoredPostgres,
    OPTIONS,
    "PostgresDataSource",
    "the fence table, which is for all queries of the schema",
)
