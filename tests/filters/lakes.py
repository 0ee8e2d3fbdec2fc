"""The tables that are read: written and committed by Penstock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.filters.rows import DELTA_PARTITIONS, ICEBERG_PARTITIONS, ROW_GROUPS, rows
from tests.support.lakes import LAKES, LakeTable

from penstock.committers.contract import Batch, DataFile, StreamKey
from penstock.committers.file_tables.manifest import build_manifest
from penstock.writers.parquet.data_files import DataFileWriter
from penstock.writers.parquet.write_config import FileNames, WriteConfig


def write_lake(kind: str, folder: Path, *, partitioned: bool) -> LakeTable:
    """A table of this format: a file of small row groups and one of larger ones, for each partition."""
    lake = LAKES[kind](folder)
    columns = DELTA_PARTITIONS if kind == "delta" else ICEBERG_PARTITIONS
    sink = lake.sink(**({lake.partitioning: columns} if partitioned else {}))
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
