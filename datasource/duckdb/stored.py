"""DuckDB tables for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...committers.duckdb.address import DuckDbAddress, quoted
from ...committers.duckdb.content import MANIFESTS
from ...committers.duckdb.dialect import DIALECT
from ..database.stored import StoredDatabase, staging_tables_of
from ..destinations import DestinationType, with_prefix
from .options import OPTIONS, DuckDbOptions, require_duckdb

if TYPE_CHECKING:
    from ...committers.contract import StreamKey
    from ...committers.duckdb.connection import DuckDbServer
    from ..stored.table_access import TableAccess
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


def _sink_of(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> DuckDbSink:
    """Return the sink of a stream."""
    require_duckdb()
    from .sink import DuckDbSink

    address = DuckDbAddress.parse(stream.table_uri)
    place = {"path": address.path, "dbtable": f"{quoted(address.schema)}.{quoted(address.table)}"}
    return DuckDbSink(DuckDbOptions.parse({**with_prefix("storage.", options, access.storage), **place}))


DESTINATION = DestinationType(
    kind="duckdb",
    data_source="penstock.datasource.duckdb.source:DuckDbDataSource",
    options=OPTIONS,
    sink=_sink_of,
    stored_table=StoredDuckDb,
    files_of=lambda manifest: staging_tables_of(manifest, MANIFESTS),
    records=lambda stream, sink: sink.records(stream.query_id),
    remains="the fence table, which is for all queries of the schema",
)
