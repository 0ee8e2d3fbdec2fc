"""The sink for Postgres tables."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from ...committers.contract import Mode, PlannedBatch
from ...committers.database.content import TableContent
from ...committers.database.staging import PREPARED as PREPARED_SCHEMA
from ...committers.database.staging import StagingTables
from ...committers.dry_runs import in_dry_run
from ...committers.postgres.address import PostgresAddress
from ...committers.postgres.connection import FIX_QUERY, PostgresServer, settings_of
from ...committers.postgres.dialect import DIALECT
from ...committers.postgres.prepared import check_prepares, create_prepared
from ...writers.postgres.prepared_writer import PreparedWriters
from ...writers.postgres.staging_writer import PostgresStagingWriters
from ..database.sink import DatabaseSink
from ..database.target import TransactionTarget
from .options import PREPARED, PostgresOptions

if TYPE_CHECKING:
    import pyarrow as pa


class PostgresTarget(TransactionTarget):
    """See `DatabaseTarget`."""

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


class PostgresSink(DatabaseSink):
    """See `DatabaseSink`."""

    dialect = DIALECT
    target = PostgresTarget
    writers = PostgresStagingWriters

    def opened(self, options: PostgresOptions) -> tuple[PostgresServer, PostgresAddress]:
        settings = settings_of(options.url)
        address = PostgresAddress.of(settings, *options.table)
        return PostgresServer(settings, address.uri, self.advice or FIX_QUERY), address
