"""The sink for tables of `penstock.sql`."""

from __future__ import annotations

from ...committers.sql.address import SqlAddress, parse_url
from ...committers.sql.connection import FIX_QUERY, SqlServer
from ...committers.sql.dialect import SqlDialect, dialect_of
from ...writers.sql.staging_writer import SqlStagingWriters
from ..database.sink import DatabaseSink
from .options import SqlOptions


class SqlSink(DatabaseSink):
    """See `DatabaseSink`."""

    writers = SqlStagingWriters

    def opened(self, options: SqlOptions) -> tuple[SqlServer, SqlAddress]:
        url = parse_url(options.url)
        address = SqlAddress.of(url, options.table)
        return SqlServer(url, address.uri, options.create_table, self.advice or FIX_QUERY), address

    @property
    def dialect(self) -> SqlDialect:
        return dialect_of(self._address.backend_name)
