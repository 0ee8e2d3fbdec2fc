"""The sink for Postgres tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...committers.postgres.address import PostgresAddress
from ...committers.postgres.connection import FIX_QUERY, PostgresServer, settings_of
from ...committers.postgres.content import KIND
from ...committers.postgres.dialect import DIALECT
from ...writers.postgres.staging_writer import PostgresStagingWriters
from ..database.target import DatabaseTarget
from ..plain_sink import StorageSink
from .options import PostgresOptions

if TYPE_CHECKING:
    from ...committers.database.cleanup import FenceRecords


@dataclass(frozen=True, slots=True)
class PostgresSink(StorageSink):
    """See `Sink`."""

    options: PostgresOptions
    kind: str = KIND
    advice: str = FIX_QUERY
    """See `PostgresServer`."""
    _server: PostgresServer = field(init=False)
    _address: PostgresAddress = field(init=False)

    def __post_init__(self) -> None:
        settings = settings_of(self.options.url)
        address = PostgresAddress.of(settings, *self.options.table)
        object.__setattr__(self, "_address", address)
        object.__setattr__(self, "_server", PostgresServer(settings, address.uri, self.advice))

    @property
    def table_uri(self) -> str:
        return self._address.uri

    def open_table(self) -> PostgresTarget:
        staging_schema = self.options.staging_schema or self._address.schema
        return PostgresTarget(self._server, DIALECT, self._address, self.options, staging_schema)

    def records(self, query_id: str) -> FenceRecords:
        from ...committers.database.cleanup import FenceRecords

        return FenceRecords(self._server, DIALECT, self._address, query_id)


class PostgresTarget(DatabaseTarget):
    """See `DatabaseTarget`."""

    writers = PostgresStagingWriters
