"""The target of a stream into a DuckLake table, with the options of its query."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from ...committers import crash_points
from ...committers.contract import Changes, Mode, PlannedBatch
from ...committers.ducklake.committer import DuckLakeCommitter
from ...committers.ducklake.connection import LakeServer
from ...committers.ducklake.files import location_of
from ...committers.ducklake.plan import PlanOptions, plan
from ...committers.ducklake.table import decode_schema
from ...committers.file_tables.manifest import LakeManifest, PlannedFiles
from ...writers.changes.change_files import ChangeFilesConfig
from ...writers.delta.partitions import check_partition_columns
from ...writers.ducklake.table_format import DuckLakeFormat, check_partition_names
from ...writers.parquet.write_config import WriteConfig
from ..changes.planning import plan_changes
from ..file_table import CompactableFileTable, leading, with_case_of, write_config
from ..options.stream import origins_of
from .options import DuckLakeOptions


class DuckLakeTarget(CompactableFileTable, DuckLakeCommitter):
    """See `Target`."""

    def __init__(self, server: LakeServer, options: DuckLakeOptions) -> None:
        super().__init__(server)
        self._query: DuckLakeOptions = options

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        options = self._query
        changes = plan_changes(rows, mode) if isinstance(mode, Changes) else None
        rows = rows if changes is None else changes.columns
        partition_by = options.partition_by
        if partition_by is not None:
            partition_by = with_case_of(partition_by, rows)
            check_partition_columns(rows, partition_by)
            check_partition_names(partition_by)
        wanted = PlanOptions(
            options.data_path or "",
            options.create_table,
            options.evolution.adds,
            partition_by,
            options.narrows,
        )
        planned = plan(self._server, rows, mode, wanted)
        check_partition_columns(planned.schema, planned.content.partition_by)
        check_partition_names(planned.content.partition_by)
        if planned.created:
            crash_points.reach("table.created", batch_id)
        content = replace(planned.content, origins=origins_of(options))
        config = self._write_config(planned.location, planned.schema, content, options.sort_within)
        if changes is None:
            return PlannedBatch(config, content, content.table_id)
        content = replace(content, mode=changes.in_table(planned.schema))
        return PlannedBatch(
            ChangeFilesConfig(config, changes.kinds, may_keep=False), content, content.table_id
        )

    def rewrite_config(self, content: LakeManifest) -> WriteConfig | None:
        """See `DeliveryFiles`."""
        location, schema = location_of(self._server), decode_schema(content)
        if location is None:
            return None
        sort_within = leading(self._query.sort_within, schema.names)
        return self._write_config(location, schema, content, sort_within)

    def _write_config(
        self, location: str, schema: pa.Schema, content: LakeManifest, sort_within: tuple[str, ...]
    ) -> WriteConfig:
        table_format = DuckLakeFormat(content.partition_by)
        return write_config(self._query, location, self._server.storage, schema, table_format, sort_within)
