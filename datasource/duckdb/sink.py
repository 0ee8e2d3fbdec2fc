"""The sink for tables in a DuckDB database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...committers.duckdb.address import DuckDbAddress, staging_folder
from ...committers.duckdb.connection import DuckDbServer
from ...committers.duckdb.content import KIND
from ...committers.duckdb.dialect import DIALECT
from ...writers.duckdb.file_writer import DuckDbWriters
from ..database.target import DatabaseTarget
from ..plain_sink import StorageSink
from .options import DuckDbOptions

if TYPE_CHECKING:
    from ...committers.database.cleanup import FenceRecords


@dataclass(frozen=True, slots=True)
class DuckDbSink(StorageSink):
    """See `Sink`."""

    options: DuckDbOptions
    kind: str = KIND
    _server: DuckDbServer = field(init=False)
    _address: DuckDbAddress = field(init=False)

    def __post_init__(self) -> None:
        options = self.options
        object.__setattr__(self, "_address", DuckDbAddress(options.database, *options.table))
        server = DuckDbServer(options.database, options.lock_wait_s, options.create_table)
        object.__setattr__(self, "_server", server)

    @property
    def table_uri(self) -> str:
        return self._address.uri

    def open_table(self) -> DuckDbTarget:
        return DuckDbTarget(
            self._server, DIALECT, self._address, self.options, staging_folder(self.options.database)
        )

    def records(self, query_id: str) -> FenceRecords:
        from ...committers.database.cleanup import FenceRecords

        return FenceRecords(self._server, DIALECT, self._address, query_id)


class DuckDbTarget(DatabaseTarget):
    """See `DatabaseTarget`."""

    writers = DuckDbWriters
