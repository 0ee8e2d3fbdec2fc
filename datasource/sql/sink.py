"""The sink for tables of `penstock.sql`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...committers.sql.address import SqlAddress, parse_url
from ...committers.sql.connection import FIX_QUERY, SqlServer
from ...committers.sql.content import KIND
from ...committers.sql.dialect import SqlDialect, dialect_of
from ...writers.sql.staging_writer import SqlStagingWriters
from ..database.target import DatabaseTarget
from ..plain_sink import StorageSink
from .options import SqlOptions

if TYPE_CHECKING:
    from ...committers.database.cleanup import FenceRecords


@dataclass(frozen=True, slots=True)
class SqlSink(StorageSink):
    """See `Sink`."""

    options: SqlOptions
    kind: str = KIND
    advice: str = FIX_QUERY
    """See `SqlServer`."""
    _server: SqlServer = field(init=False)
    _address: SqlAddress = field(init=False)

    def __post_init__(self) -> None:
        url = parse_url(self.options.url)
        address = SqlAddress.of(url, self.options.table)
        object.__setattr__(self, "_address", address)
        server = SqlServer(url, address.uri, self.options.create_table, self.advice)
        object.__setattr__(self, "_server", server)

    @property
    def _dialect(self) -> SqlDialect:
        return dialect_of(self._address.backend_name)

    @property
    def table_uri(self) -> str:
        return self._address.uri

    def open_table(self) -> SqlTarget:
        return SqlTarget(self._server, self._dialect, self._address, self.options, self._address.schema)

    def records(self, query_id: str) -> FenceRecords:
        from ...committers.database.cleanup import FenceRecords

        return FenceRecords(self._server, self._dialect, self._address, query_id)


class SqlTarget(DatabaseTarget):
    """See `DatabaseTarget`."""

    writers = SqlStagingWriters
