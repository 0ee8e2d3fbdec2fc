"""MySQL tables for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...committers.mysql.address import MySqlAddress, settings_of
from ...committers.mysql.dialect import DIALECT
from ..database.stored import StoredDatabase, destination
from .credentials import advice_for, url_for
from .options import OPTIONS, MySqlOptions, require_driver

if TYPE_CHECKING:
    from ...committers.mysql.connection import MySqlServer
    from .sink import MySqlSink


@dataclass(frozen=True, slots=True)
class StoredMySql(StoredDatabase):
    """See `StoredTable`."""

    dialect = DIALECT

    def server(self) -> tuple[MySqlServer, MySqlAddress]:
        require_driver()
        from ...committers.mysql.connection import MySqlServer

        address = MySqlAddress.parse(self.stream.table_uri)
        settings = settings_of(url_for(address, self.access))
        return MySqlServer(settings, address.uri, advice_for(address, self.access)), address

    def sink(self, storage: Mapping[str, str]) -> MySqlSink:
        require_driver()
        from .sink import MySqlSink

        address = MySqlAddress.parse(self.stream.table_uri)
        given = {"url": url_for(address, self.access), "dbtable": address.sql}
        parsed = MySqlOptions.parse({**storage, **given})
        return MySqlSink(parsed, advice_for(address, self.access))


DESTINATION = destination(
    "mysql",
    StoredMySql,
    OPTIONS,
    "MySqlDataSource",
    "the tables penstock_fence and penstock_refused, which are for all queries of the database",
)
