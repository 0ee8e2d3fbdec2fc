"""The sink for MySQL tables."""

from __future__ import annotations

from ...committers.mysql.address import MySqlAddress, settings_of
from ...committers.mysql.connection import FIX_QUERY, MySqlServer
from ...committers.mysql.dialect import DIALECT
from ...writers.mysql.prepared_writer import MySqlPreparedWriters
from ...writers.mysql.staging_writer import MySqlStagingWriters
from ..database.prepared_target import PreparedTarget
from ..database.sink import DatabaseSink
from .options import MySqlOptions


class MySqlTarget(PreparedTarget):
    """See `PreparedTarget`."""

    prepared_writers = MySqlPreparedWriters


class MySqlSink(DatabaseSink):
    """See `DatabaseSink`."""

    dialect = DIALECT
    target = MySqlTarget
    writers = MySqlStagingWriters

    def opened(self, options: MySqlOptions) -> tuple[MySqlServer, MySqlAddress]:
        settings = settings_of(options.url)
        address = MySqlAddress.of(settings, options.table)
        return MySqlServer(settings, address.uri, self.advice or FIX_QUERY), address
