"""The target of a stream into a DuckLake table, with the options of its query."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from ...committers import crash_points
from ...committers.contract import Mode, PlannedBatch, SortField
from ...committers.dead_letters import BadRows
from ...committers.ducklake.committer import DuckLakeCommitter
from ...committers.ducklake.connection import LakeServer
from ...committers.ducklake.files import location_of
from ...committers.ducklake.plan import PlanOptions, plan
from ...committers.ducklake.table import decode_schema
from ...committers.file_tables.manifest import LakeManifest, PlannedFiles
from ...writers.delta.partitions import check_partition_columns
from ...writers.ducklake.table_format import DuckLakeFormat, check_partition_names
from ...writers.parquet.data_file_config import ROW_GROUP_ROWS
from ...writers.parquet.write_config import WriteConfig
from ..file_table import CompactableFileTable, CompactWith, leading, with_case_of
from ..options.delivery import TARGET_FILE_BYTES
from ..options.file_tables import COMPRESSION
from ..options.stream import origins_of
from .options import DuckLakeOptions


class DuckLakeTarget(CompactableFileTable, DuckLakeCommitter):
    """See `Target`."""

    def __init__(self, server: LakeServer, options: DuckLakeOptions) -> None:
        super().__init__(server)
        self._query = options

    @property
    def _narrows(self) -> bool:
        return self._query.bad_rows is not BadRows.FAIL

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        options = self._query
        partition_by = options.partition_by
        if partition_by is not None:
            partition_by = with_case_of(partition_by, rows)
            check_partition_columns(rows, partition_by)
            check_partition_names(partition_by)
        wanted = PlanOptions(
            options.data_path or "", options.create_table, options.add_columns, partition_by, self._narrows
        )
        planned = plan(self._server, rows, mode, wanted)
        check_partition_columns(planned.schema, planned.content.partition_by)
        check_partition_names(planned.content.partition_by)
        if planned.created:
            crash_points.reach("table.created", batch_id)
        content = replace(planned.content, origins=origins_of(options))
        config = self._write_config(planned.location, planned.schema, content, options.sort_within)
        return PlannedBatch(config, content, content.table_id)

    def compact_with(self) -> CompactWith:
        return self._query.compact_with

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
        options = self._query
        return WriteConfig(
            location=location,
            storage_options=dict(self._server.storage),
            schema=schema,
            table_format=DuckLakeFormat(content.partition_by),
            target_file_bytes=options.target_file_bytes or TARGET_FILE_BYTES,
            row_group_rows=options.row_group_rows or ROW_GROUP_ROWS,
            compression=options.compression or COMPRESSION,
            max_open_partitions=options.max_open_partitions,
            buffer_bytes_max=options.buffer_bytes_max,
            sort=tuple([SortField((name,)) for name in with_case_of(sort_within, schema)]),
            narrows=self._narrows,
        )
