"""The sink for Delta tables."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...committers.contract import SortField
from ...committers.delta.committer import DeltaTableCommitter
from ...committers.delta.table import KIND
from ...writers.delta.partitions import check_partition_columns
from ...writers.delta.table_format import DeltaFormat
from ...writers.local_path import local_path
from ...writers.plan import ROW_GROUP_ROWS, WritePlan
from ..options.common import COMPRESSION, TARGET_FILE_BYTES
from ..options.delta import DeltaOptions
from .sink import PlannedTable, leading

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    from ...committers.delta.schema import DeltaTarget
    from ...committers.lake_manifest import LakeManifest
    from ...committers.store.sql import SqlManifestStore


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """See `Sink`."""

    options: DeltaOptions
    kind: str = KIND

    @property
    def table_uri(self) -> str:
        """Absolute without a scheme on the local disk, no trailing slash."""
        local = local_path(self.options.path)
        if local is not None:
            return posixpath.normpath(local)
        return self.options.path.replace("s3a://", "s3://", 1).rstrip("/")

    def open_table(self) -> DeltaTableCommitter:
        return DeltaTableCommitter(self.table_uri, self.options.storage_options)

    def plan_table(
        self, table: DeltaTableCommitter, rows: pa.Schema, overwrite: bool, batch_id: int
    ) -> PlannedTable:
        options = self.options
        partition_by = _as_spelt(options.partition_by, rows)
        check_partition_columns(rows, partition_by or ())
        target = table.plan(
            rows,
            partition_by=partition_by,
            create=options.create_table,
            properties=options.table_properties,
            evolve=options.add_columns,
            overwrite=overwrite,
            batch_id=batch_id,
        )
        check_partition_columns(target.schema, target.partition_by)
        files = self._write_plan(target, options.sort_within)
        return PlannedTable(files, target.content((), "overwrite" if overwrite else "append"))

    def rewrite_plan(self, table: DeltaTableCommitter, content: LakeManifest) -> WritePlan | None:
        target = table.target_of(content)
        if target is None:
            return None
        columns = [name for name in target.schema.names if name not in target.partition_by]
        return self._write_plan(target, leading(self.options.sort_within, columns))

    def _write_plan(self, target: DeltaTarget, sort_within: tuple[str, ...]) -> WritePlan:
        options = self.options
        return WritePlan(
            location=self.table_uri,
            storage_options=dict(options.storage_options),
            schema=target.schema,
            table_format=DeltaFormat(
                target.partition_by, target.statistics_columns, target.statistics_columns_max
            ),
            target_file_bytes=options.target_file_bytes or TARGET_FILE_BYTES,
            row_group_rows=options.row_group_rows or ROW_GROUP_ROWS,
            compression=options.compression or COMPRESSION,
            max_open_partitions=options.max_open_partitions,
            buffer_bytes_max=options.buffer_bytes_max,
            sort=tuple([SortField((name,)) for name in _as_spelt(sort_within, target.schema) or ()]),
        )

    def open_filesystem(self, location: str) -> tuple[FileSystem, str]:
        """A remote location is reached with the options given as `storage.*`."""
        return DeltaFormat(()).open_filesystem(location, dict(self.options.storage_options))

    def maintain(self, store: SqlManifestStore, batch_id: int) -> None:
        """Nothing: the Delta library writes log checkpoints and cleans the log with its commits."""


def _as_spelt(names: Sequence[str] | None, rows: pa.Schema) -> tuple[str, ...] | None:
    """Column names as the query spells them: Spark compares names without case."""
    if names is None:
        return None
    spelt = {name.lower(): name for name in rows.names}
    return tuple(spelt.get(name.lower(), name) for name in names)
