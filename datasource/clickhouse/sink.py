"""The sink for ClickHouse tables."""

from __future__ import annotations

import pyarrow as pa

from ...committers.clickhouse.address import ClickHouseAddress, settings_of
from ...committers.clickhouse.committer import ClickHouseCommitter
from ...committers.clickhouse.connection import FIX_QUERY, ClickHouseServer
from ...committers.clickhouse.dialect import ClickHouseDialect
from ...committers.contract import Mode, PlannedBatch
from ...committers.database.content import TableContent
from ...committers.database.staging import StagingTables
from ...committers.errors import ConfigurationError
from ...writers.clickhouse.row_writer import ClickHouseWriters
from ..database.sink import DatabaseSink
from ..database.target import DatabaseTarget
from .options import ClickHouseOptions


class ClickHouseTarget(DatabaseTarget, ClickHouseCommitter):
    """See `DatabaseTarget`."""

    def plan_batch(
        self, rows: pa.Schema, mode: Mode, batch_id: int
    ) -> PlannedBatch[StagingTables, TableContent]:
        if mode == "overwrite":
            raise ConfigurationError(
                "penstock.clickhouse cannot overwrite a table: its partitions would change one by one. "
                "Nothing was written. Use the output mode append."
            )
        return super().plan_batch(rows, mode, batch_id)


class ClickHouseSink(DatabaseSink):
    """See `DatabaseSink`."""

    options: ClickHouseOptions
    target = ClickHouseTarget
    writers = ClickHouseWriters

    @property
    def dialect(self) -> ClickHouseDialect:
        options, changes = self.options, self.options.changes
        order = changes.order_by[0] if changes is not None and changes.late_rows == "ignore" else ""
        return ClickHouseDialect(options.sorting_key or "", options.partition_by or "", order)

    def opened(self, options: ClickHouseOptions) -> tuple[ClickHouseServer, ClickHouseAddress]:
        settings = settings_of(options.url)
        address = ClickHouseAddress.of(settings, options.table)
        server = ClickHouseServer(
            settings,
            address.uri,
            self.advice or FIX_QUERY,
            options.insert_settings,
            options.buffer_bytes_max,
        )
        return server, address
