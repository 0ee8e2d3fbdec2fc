"""DuckDB tables for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...committers.duckdb.address import DuckDbAddress
from ...committers.duckdb.dialect import DIALECT
from ..database.stored import StoredDatabase, destination
from .options import OPTIONS, DuckDbOptions, require_duckdb

if TYPE_CHECKING:
    from ...committers.duckdb.connection import DuckDbServer
    from .sink import DuckDbSink


@dataclass(frozen=True, slots=True)
class StoredDuckDb(StoredDatabase):
    """See `StoredTable`."""

    dialect = DIALECT

    def server(self) -> tuple[DuckDbServer, DuckDbAddress]:
        require_duckdb()
        from ...committers.duckdb.connection import DuckDbServer

        address = DuckDbAddress.parse(self.stream.table_uri)
        return DuckDbServer(address.path), address

    def sink(self, storage: Mapping[str, str]) -> DuckDbSink:
        require_duckdb()
        from .sink import DuckDbSink

        address = DuckDbAddress.parse(self.stream.table_uri)
        return DuckDbSink(DuckDbOptions.parse({**storage, "path": address.path, "dbtable": address.sql}))


DESTINATION = destination(
    "duckdb",
    StoredDuckDb,
    OPTIONS,
    "DuckDbDataSource",
    "the fence table, which is for all queries of the schema",
)
