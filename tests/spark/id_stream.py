"""A stream of ids: files as the source, one a batch; a Delta table as the sink; a checkpoint between."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from tests.invariants import Findings, check


class IdStream:
    """Files of ids as a source, one file a batch; a Delta table as the sink; a checkpoint between."""

    rows_per_file = 100

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.source = root / "source"
        self.table = root / "table"
        self.checkpoint = root / "checkpoint"
        self.source.mkdir()

    def add_files(self, count: int) -> None:
        """More source rows: ids go on where they ended."""
        for number in range(count_files(self.source), count_files(self.source) + count):
            first = number * self.rows_per_file
            ids = range(first, first + self.rows_per_file)
            table = pa.table({"id": pa.array(ids, pa.int64()), "day": [f"d{i % 2}" for i in ids]})
            path = self.source / f"{number:05}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1_700_000_000 + number,) * 2)  # Spark reads files in the order of their age

    def rows(self, files_per_batch: int = 1) -> DataFrame:
        reader = self.spark.readStream.schema("id LONG, day STRING")
        reader = reader.option("maxFilesPerTrigger", files_per_batch)
        return reader.parquet(str(self.source))

    def writer(self, rows: DataFrame | None = None, **options: str) -> DataStreamWriter:
        writer = (self.rows() if rows is None else rows).writeStream.format("penstock.delta")
        given = {"path": str(self.table), "checkpointLocation": str(self.checkpoint), **options}
        return writer.options(**given).trigger(availableNow=True)

    def start(self, rows: DataFrame | None = None, **options: str) -> StreamingQuery:
        return self.writer(rows, **options).start()

    def run(self, rows: DataFrame | None = None, **options: str) -> None:
        """Stream all that the source has, then end."""
        query = self.start(rows, **options)
        query.awaitTermination()

    def fails_with(self, rows: DataFrame | None = None, **options: str) -> str:
        """Run to failure; the error's message."""
        with pytest.raises(Exception) as failure:
            self.run(rows, **options)
        return str(failure.value)

    def findings(self) -> Findings:
        return check(self.table, f"read_parquet('{self.source}/*.parquet')", self.store_url)

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.checkpoint}/penstock.sqlite"

    def data_files(self) -> set[Path]:
        return {path for path in self.table.rglob("*.parquet") if "_delta_log" not in path.parts}

    def versions(self) -> int:
        return len(list((self.table / "_delta_log").glob("*[0-9].json")))

    def forget_commit(self, batch_id: int) -> None:
        """As if the driver had died just before Spark logged that the batch is done."""
        for name in (f"{batch_id}", f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def copy_checkpoint(self, name: str) -> Path:
        copy = self.root / name
        shutil.copytree(self.checkpoint, copy)
        return copy


def count_files(folder: Path) -> int:
    return len(list(folder.glob("*.parquet")))
