"""Writes the rows that a commit of changes adds to a Paimon table. See `WriteRows`.

Runs in the commit of a batch, on the driver or in the delivery process. The new files carry the names of the
batch, so clean-up knows them.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...committers.contract import DataFiles, Manifest
from ...committers.file_tables.manifest import LakeManifest
from ...committers.paimon.plan import schema_id_of
from ...committers.paimon.table import PaimonTable, dropped
from ...writers.paimon.sorted_files import TreeFiles
from ...writers.paimon.writer import PaimonWriters
from ...writers.parquet.file_names import FileNames


@dataclass(frozen=True, slots=True)
class PaimonRowWriter:
    """See `WriteRows`."""

    table: PaimonTable
    target_file_bytes: int
    buffer_bytes_max: int

    def __call__(self, loaded: Any, manifest: Manifest, content: LakeManifest, rows: pa.Table) -> DataFiles:
        from pypaimon.common.json_util import JSON
        from pypaimon.schema.data_types import PyarrowFieldParser

        location = self.table.location()
        if location is None:
            raise dropped(self.table.place)
        schema = loaded.schema_manager.get_schema(schema_id_of(content))
        plan = PaimonWriters(
            path=location,
            table_schema_json=JSON.to_json(schema),
            schema=PyarrowFieldParser.from_paimon_schema(schema.fields),
            target_file_bytes=self.target_file_bytes,
            buffer_bytes_max=self.buffer_bytes_max,
        )
        batch = manifest.batch
        names = FileNames(batch.stream.query_id, uuid.uuid4().hex, batch.batch_id, 0, 0)
        files = TreeFiles(plan, names)
        try:
            return files.write(rows)
        except BaseException:
            files.abort()
            raise
