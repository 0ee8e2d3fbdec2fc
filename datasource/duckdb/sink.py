"""The sink for tables in a DuckDB database."""

from __future__ import annotations

from ...committers.duckdb.address import DuckDbAddress, staging_folder
from ...committers.duckdb.connection import DuckDbServer
from ...committers.duckdb.dialect import DIALECT
from ...writers.duckdb.file_writer import DuckDbWriters
from ..database.sink import DatabaseSink
from .options import DuckDbOptions


class DuckDbSink(DatabaseSink):
    """See `DatabaseSink`."""

    dialect = DIALECT
    writers = DuckDbWriters

    def opened(self, options: DuckDbOptions) -> tuple[DuckDbServer, DuckDbAddress]:
        server = DuckDbServer(options.database, options.lock_wait_s, options.create_table)
        return server, DuckDbAddress(options.database, *options.table)

    @property
    def staging_schema(self) -> str:
        return staging_folder(self._address.path)
