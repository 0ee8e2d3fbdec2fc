"""The sink for Postgres tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from ...committers import crash_points
from ...committers.contract import Batch, Changes, Manifest, Mode, PlannedBatch
from ...committers.dry_runs import before_creating, in_dry_run
from ...committers.errors import RetryableError
from ...committers.postgres.address import PostgresAddress
from ...committers.postgres.changes import check_one_row
from ...committers.postgres.committer import PostgresCommitter
from ...committers.postgres.connection import FIX_QUERY, PostgresServer, settings_of
from ...committers.postgres.content import KIND, PostgresContent, decode, manifest_of
from ...committers.postgres.merge import merge, mergeable
from ...committers.postgres.plan import PlanOptions, plan
from ...committers.postgres.staged_rows import encoded_schema
from ...committers.postgres.staging import StagingTables
from ...committers.postgres.types import text_type
from ...writers.postgres.staging_writer import StagingWriters
from ..changes.planning import plan_changes
from ..checked import ChecksByDryRun
from ..options.stream import origins_of
from ..plain_sink import StorageSink
from .changes import stage_changes
from .options import PostgresOptions

if TYPE_CHECKING:
    from ...committers.postgres.cleanup import PostgresRecords


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
        return PostgresTarget(self._server, self._address, self.options)

    def records(self, query_id: str) -> PostgresRecords:
        from ...committers.postgres.cleanup import PostgresRecords

        return PostgresRecords(self._server, self._address, query_id)


class PostgresTarget(ChecksByDryRun, PostgresCommitter):
    """The target of a stream into a Postgres table, with the options of its query. See `Target`."""

    def __init__(self, server: PostgresServer, address: PostgresAddress, options: PostgresOptions) -> None:
        super().__init__(server, address, options.bad_rows, options.dead_letter_max)
        self._query = options

    def plan_batch(
        self, rows: pa.Schema, mode: Mode, batch_id: int
    ) -> PlannedBatch[StagingTables, PostgresContent]:
        options, address = self._query, self._address
        changes = plan_changes(rows, mode) if isinstance(mode, Changes) else None
        table_rows = rows if changes is None else changes.columns
        staging_schema = options.staging_schema or address.schema
        wanted = PlanOptions(
            options.create_table,
            options.evolution,
            mode if changes is None else changes.kinds.changes,
            staging_schema,
            options.narrows,
        )
        with self._server.transaction("Nothing was written") as cursor:
            planned = plan(cursor, address, table_rows, wanted)
            if in_dry_run():
                cursor.connection.rollback()
        if planned.created:
            before_creating(f"Postgres table {address.uri}")
        if planned.created:
            crash_points.reach("table.created", batch_id)
        if changes is not None:
            changes = replace(changes, columns=planned.rows)
        columns = pa.schema(
            [
                pa.field(column.name, text_type(column.sql_type, field.type), nullable=not column.is_required)
                for column, field in zip(planned.columns, planned.rows, strict=True)
            ]
        )
        types = tuple(column.sql_type for column in planned.columns)
        content = PostgresContent(
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
            staged, content = stage_changes(changes, changes.rows, columns, content)
        writers = StagingWriters(
            self._server,
            staging_schema,
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
        return decode(manifest).table_id

    def check_follows(self, content: PostgresContent, pending: Iterable[Manifest]) -> None:
        """Check that a column which two starts of the query both add is the same one."""
        if not content.new_columns:
            return
        added = {name.lower(): (name, kind) for name, kind in content.columns if name in content.new_columns}
        for manifest in pending:
            waiting = decode(manifest)
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
        return mergeable(manifests)

    def merge(self, manifests: Sequence[Manifest], verified_version: int | None) -> Manifest:
        """Merge manifests. Rows and token change in one transaction, so no version has to be checked."""
        return merge(manifests)

    def manifest(self, batch: Batch, content: PostgresContent, payloads: Sequence[StagingTables]) -> Manifest:
        """See `Target`.

        Raises:
            SchemaMismatchError: two different rows of one key could be the last one.
            RetryableError: the staging tables cannot be read now.
        """
        manifest = manifest_of(batch, content, payloads)
        if isinstance(content.mode, Changes):
            with self._server.transaction("Nothing was committed") as cursor:
                check_one_row(cursor, batch, decode(manifest))
        return manifest
