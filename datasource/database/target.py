"""The target of a stream into a database table, with the options of its query. See `Target`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from ...committers import crash_points
from ...committers.contract import Batch, Changes, Manifest, Mode, PlannedBatch
from ...committers.database.committer import DatabaseCommitter
from ...committers.database.content import TableContent
from ...committers.database.contract import TableAddress
from ...committers.database.dialect import Dialect
from ...committers.database.layout import PlanOptions
from ...committers.database.merge import merge, mergeable
from ...committers.database.plan import plan
from ...committers.database.rows_by_key import check_one_row
from ...committers.database.server import DatabaseServer
from ...committers.database.staged_rows import encoded_schema
from ...committers.database.staging import StagingTables
from ...committers.database.transaction import TransactionCommitter
from ...committers.dry_runs import before_creating, in_dry_run
from ...committers.errors import RetryableError
from ...writers.database.staging_writer import DatabaseWriters
from ..changes.planning import plan_changes
from ..checked import ChecksByDryRun
from ..options.delivery import DeliveryOptions
from ..options.stream import origins_of
from .changes import stage_changes


class DatabaseTarget(ChecksByDryRun, DatabaseCommitter):
    """
    Args:
        staging_schema: of the staging tables
        writers: load rows
    """

    def __init__(
        self,
        server: DatabaseServer,
        dialect: Dialect,
        address: TableAddress,
        options: DeliveryOptions,
        staging_schema: str,
        writers: type[DatabaseWriters],
    ) -> None:
        super().__init__(server, dialect, address, options.bad_rows, options.dead_letter_max)
        self._query = options
        self._staging_schema = staging_schema
        self._writers = writers

    def plan_batch(
        self, rows: pa.Schema, mode: Mode, batch_id: int
    ) -> PlannedBatch[StagingTables, TableContent]:
        options, address, dialect = self._query, self._address, self._dialect
        changes = plan_changes(rows, mode) if isinstance(mode, Changes) else None
        table_rows = rows if changes is None else changes.columns
        wanted = PlanOptions(
            options.create_table,
            options.evolution,
            mode if changes is None else changes.kinds.changes,
            self._staging_schema,
            options.narrows,
        )
        with self._server.transaction("Nothing was written") as cursor:
            planned = plan(cursor, dialect, address, table_rows, wanted)
            if in_dry_run():
                cursor.connection.rollback()
        if planned.created:
            before_creating(address.title)
        if planned.created:
            crash_points.reach("table.created", batch_id)
        if changes is not None:
            changes = replace(changes, columns=planned.rows)
        text_type = dialect.types.text_type
        columns = pa.schema(
            [
                pa.field(column.name, text_type(column.sql_type, field.type), nullable=not column.is_required)
                for column, field in zip(planned.columns, planned.rows, strict=True)
            ]
        )
        types = tuple(column.sql_type for column in planned.columns)
        content = TableContent(
            mode=mode,
            table_id=planned.table_id,
            columns=tuple(zip(columns.names, types, strict=True)),
            new_columns=planned.new_columns,
            origins=origins_of(options),
            schema=encoded_schema(planned.rows),
            changes=planned.changes,
        )
        staged = None
        if changes is not None:
            staged, content = stage_changes(changes, changes.rows, columns, content, dialect)
        writers = self._writers(
            self._server,
            dialect,
            self._staging_schema,
            address.sql,
            columns,
            tuple(kind for _, kind in content.staged_columns),
            options.narrows,
            planned.encoding,
            staged,
        )
        return PlannedBatch(writers, content, content.table_id, is_lasting=False)

    # Decoupled delivery: see `SupportsOrdering` and `Mergeable` ---------------------------------------

    def target_id_of(self, manifest: Manifest) -> str:
        return self._decode(manifest).table_id

    def check_follows(self, content: TableContent, pending: Iterable[Manifest]) -> None:
        """Check that a column which two starts of the query both add is the same one."""
        if not content.new_columns:
            return
        added = {name.lower(): (name, kind) for name, kind in content.columns if name in content.new_columns}
        for manifest in pending:
            waiting = self._decode(manifest)
            for name, kind in waiting.columns:
                is_new = name in waiting.new_columns
                if is_new and added.get(name.lower(), (name, kind)) != (name, kind):
                    now, kind_now = added[name.lower()]
                    raise RetryableError(
                        f"Batch {manifest.batch.batch_id} of {manifest.batch.stream} adds the column {name} "
                        f"({kind}) to the table and is not delivered yet, but now the query adds {now} "
                        f"({kind_now}). First deliver that batch (`penstock deliver --once`), then start the "
                        "query again."
                    )

    def mergeable(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        return mergeable(manifests, self._dialect.manifests)

    def merge(self, manifests: Sequence[Manifest], verified_version: int | None) -> Manifest:
        """Merge manifests. Rows and token change in one transaction, so no version has to be checked."""
        return merge(manifests, self._dialect.manifests)

    def manifest(self, batch: Batch, content: TableContent, payloads: Sequence[StagingTables]) -> Manifest:
        """See `Target`.

        Raises:
            SchemaMismatchError: two different rows of one key could be the last one.
            RetryableError: the staging tables cannot be read now.
        """
        manifest = self._dialect.manifests.manifest_of(batch, content, payloads)
        if isinstance(content.mode, Changes):
            with self._server.transaction("Nothing was committed") as cursor:
                check_one_row(cursor, self._dialect, batch, self._decode(manifest))
        return manifest


class TransactionTarget(DatabaseTarget, TransactionCommitter):
    """The target of a database that has transactions."""
