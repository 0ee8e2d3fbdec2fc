"""The sink for MySQL tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...committers.mysql.address import MySqlAddress, settings_of
from ...committers.mysql.connection import FIX_QUERY, MySqlServer
from ...committers.mysql.content import KIND
from ...committers.mysql.dialect import DIALECT
from ...writers.mysql.staging_writer import MySqlStagingWriters
from ..database.target import DatabaseTarget
from ..plain_sink import StorageSink
from .options import MySqlOptions

if TYPE_CHECKING:
    from ...committers.database.cleanup import FenceRecords


@dataclass(frozen=True, slots=True)
class MySqlSink(StorageSink):
    """See `Sink`."""

    options: MySqlOptions
    kind: str = KIND
    advice: str = FIX_QUERY
    """See `MySqlServer`."""
    _server: MySqlServer = field(init=False)
    _address: MySqlAddress = field(init=False)

    def __post_init__(self) -> None:
        settings = settings_of(self.options.url)
        address = MySqlAddress.of(settings, self.options.table)
        object.__setattr__(self, "_address", address)
        object.__setattr__(self, "_server", MySqlServer(settings, address.uri, self.advice))

    @property
    def table_uri(self) -> str:
        return self._address.uri

    def open_table(self) -> MySqlTarget:
        staging_schema = self.options.staging_schema or self._address.schema
        return MySqlTarget(self._server, DIALECT, self._address, self.options, staging_schema)

    def records(self, query_id: str) -> FenceRecords:
        from ...committers.database.cleanup import FenceRecords

        return FenceRecords(self._server, DIALECT, self._address, query_id)


class MySqlTarget(DatabaseTarget):
    """See `DatabaseTarget`."""

    writers = MySqlStagingWriters
