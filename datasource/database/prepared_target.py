"""The target of a database whose tasks can prepare transactions. See `Target`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, ClassVar

from ...committers.contract import Mode, PlannedBatch
from ...committers.database.content import TableContent
from ...committers.database.staging import PREPARED as PREPARED_SCHEMA
from ...committers.database.staging import StagingTables
from ...committers.dry_runs import in_dry_run
from ...writers.database.prepared_writer import PreparedWriters
from .prepared_options import PREPARED, PreparedOptions
from .target import TransactionTarget

if TYPE_CHECKING:
    import pyarrow as pa


class PreparedTarget(TransactionTarget):
    """See `DatabaseTarget`. Its options have `commit`."""

    prepared_writers: ClassVar[type[PreparedWriters]]
    _query: PreparedOptions

    def plan_batch(
        self, rows: pa.Schema, mode: Mode, batch_id: int
    ) -> PlannedBatch[StagingTables, TableContent]:
        """See `Target`."""
        if self._query.commit != PREPARED:
            return super().plan_batch(rows, mode, batch_id)
        address, dialect = self._address, self._dialect
        assert dialect.prepared is not None
        with self._server.transaction("Nothing was written") as cursor:
            dialect.prepared.check(cursor, address, mode)
        planned = super().plan_batch(rows, mode, batch_id)
        with self._server.transaction("Nothing was written") as cursor:
            dialect.prepared.set_up(cursor, dialect, address)
            if in_dry_run():
                cursor.connection.rollback()
        staging = planned.writers
        given = {one.name: getattr(staging, one.name) for one in fields(staging)}  # type: ignore[arg-type]
        given |= {"schema": PREPARED_SCHEMA, "table_uri": address.uri, "table_id": planned.target_id}
        return replace(planned, writers=self.prepared_writers(**given))
