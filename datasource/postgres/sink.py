"""The sink for Postgres tables."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from ...committers.contract import Mode, PlannedBatch
from ...committers.database.content import TableContent
from ...committers.database.staging import PREPARED as PREPARED_SCHEMA
from ...committers.database.staging import StagingTables
from ...committers.dry_runs import in_dry_run
from ...committers.postgres.address import PostgresAddress
from ...committers.postgres.connection import FIX_QUERY, PostgresServer, settings_of
from ...committers.postgres.content import KIND
from ...committers.postgres.dialect import DIALECT
from ...committers.postgres.prepared import check_prepares, create_prepared
from ...writers.postgres.prepared_writer import PreparedWriters
from ...writers.postgres.staging_writer import PostgresStagingWriters
from ..database.target import DatabaseTarget
from ..plain_sink import StorageSink
from .options import PREPARED, PostgresOptions

if TYPE_CHECKING:
    import pyarrow as pa

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

    def plan_batch(
        self, rows: pa.Schema, mode: Mode, batch_id: int
    ) -> PlannedBatch[StagingTables, TableContent]:
        """See `Target`."""
        query, address = self._query, self._address
        assert isinstance(query, PostgresOptions)
        assert isinstance(address, PostgresAddress)
        if query.commit != PREPARED:
            return super().plan_batch(rows, mode, batch_id)
        with self._server.transaction("Nothing was written") as cursor:
            check_prepares(cursor, address, mode)
        planned = super().plan_batch(rows, mode, batch_id)
        with self._server.transaction("Nothing was written") as cursor:
            create_prepared(cursor, address)
            if in_dry_run():
                cursor.connection.rollback()
        staging = planned.writers
        assert isinstance(staging, PostgresStagingWriters)
        given = {one.name: getattr(staging, one.name) for one in fields(staging)}
        given |= {"schema": PREPARED_SCHEMA, "table_uri": address.uri, "table_id": planned.target_id}
        return replace(planned, writers=PreparedWriters(**given))
