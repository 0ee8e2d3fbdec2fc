"""The sink for Postgres tables."""

from __future__ import annotations

from ...committers.postgres.address import PostgresAddress
from ...committers.postgres.connection import FIX_QUERY, PostgresServer, settings_of
from ...committers.postgres.dialect import DIALECT
from ...writers.postgres.prepared_writer import PostgresPreparedWriters
from ...writers.postgres.staging_writer import PostgresStagingWriters
from ..database.prepared_target import PreparedTarget
from ..database.sink import DatabaseSink
from .options import PostgresOptions


class PostgresTarget(PreparedTarget):
    """See `PreparedTarget`."""

    prepared_writers = PostgresPreparedWriters


class PostgresSink(DatabaseSink):
    """See `DatabaseSink`."""

    dialect = DIALECT
    target = PostgresTarget
    writers = PostgresStagingWriters

    def opened(self, options: PostgresOptions) -> tuple[PostgresServer, PostgresAddress]:
        settings = settings_of(options.url)
        address = PostgresAddress.of(settings, *options.table)
        return PostgresServer(settings, address.uri, self.advice or FIX_QUERY), address
