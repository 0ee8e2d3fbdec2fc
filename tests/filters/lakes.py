"""The tables that are read: written and committed by Penstock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.committers.lakes import LAKES, LakeTable
from tests.filters.rows import DELTA_PARTITIONS, ICEBERG_PARTITIONS, ROW_GROUPS, rows

from penstock.committers.contract import Batch, DataFile, StreamKey
from penstock.committers.file_tables.manifest import build_manifest
from penstock.committers.iceberg.terms import parse_partition_spec
from penstock.datasource.file_table import FileTableSink
from penstock.writers.parquet.data_files import DataFileWriter
from penstock.writers.parquet.write_config import FileNames, WriteConfig


def write_lake(kind: str, folder: Path, *, partitioned: bool) -> LakeTable:
    """A table of this format: a file of small row groups and one of larger ones, for each partition."""
    lake = LAKES[kind](folder)
    sink = _partitioned(lake.sink()) if partitioned else lake.sink()
    table = sink.open_table()
    files: list[DataFile] = []
    for attempt, (name, (_, row_group_rows)) in enumerate(ROW_GROUPS.items()):
        batches = list(rows(name))
        planned = table.plan_batch(batches[0].schema, "append", 0)
        assert isinstance(planned.writers, WriteConfig)
        plan = replace(planned.writers, row_group_rows=row_group_rows)
        writer = DataFileWriter(plan, FileNames("q", "run", 0, 0, attempt))
        for batch in batches:
            writer.write(batch)
        files += writer.finish()
    batch_of_files = Batch(StreamKey("q", sink.table_uri), 0, "0" * 64)
    table.commit(build_manifest(batch_of_files, planned.content.with_files(files)))
    return lake


def _partitioned(sink: FileTableSink) -> FileTableSink:
    one: Any = sink
    spec: dict[str, Any] = (
        {"partition_by": DELTA_PARTITIONS}
        if "partition_by" in one.options.__dataclass_fields__
        else {"partition_spec": parse_partition_spec(ICEBERG_PARTITIONS)}
    )
    partitioned: FileTableSink = type(one)(replace(one.options, **spec))
    return partitioned
