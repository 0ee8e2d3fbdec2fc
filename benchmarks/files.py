"""Writes files like Penstock's with Arrow's encoder alone.

It does not convert or check rows, writes no statistics except the footer's, and does not sync the disk. It is
the upper limit for a Python writer that uses Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from penstock.writers.background import Background
from penstock.writers.delta.table_format import DeltaFormat
from penstock.writers.parquet.data_file_config import ROW_GROUP_ROWS
from penstock.writers.parquet.encodings import choose_encodings
from penstock.writers.parquet.file import OpenParquetFile
from penstock.writers.parquet.write_config import WriteConfig


def write_file(folder: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Write one file with Penstock's encodings, codec and row groups; no file if there are no rows.

    A row group is encoded while the next one is read, as in Penstock.
    """
    file = None
    background = Background("encoder")
    for rows in _row_groups(batches):
        if file is None:
            folder.mkdir(parents=True, exist_ok=True)
            plan = WriteConfig(str(folder), {}, rows.schema, DeltaFormat())
            sink = pa.OSFile(str(folder / f"{uuid4()}.parquet"), "wb")
            encodings = choose_encodings(plan, rows, rows.num_rows)
            file = OpenParquetFile(sink, rows.schema, plan, encodings)
        background.start(file.write_row_group, rows)
    background.wait()
    background.stop()
    if file is not None:
        file.close()


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= ROW_GROUP_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
