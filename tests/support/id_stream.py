"""A stream of ids: files as the source, one a batch; a lake table as the sink; a checkpoint between."""

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
from tests.support.lakes import LakeTable, rows

from penstock import testing

FILES, ROWS = 3, 100
"""Of the fixture `source`: files, and rows in each."""


class IdStream:
    """Files of ids as a source, one file a batch; a lake table as the sink; a checkpoint between."""

    rows_per_file = 100

    def __init__(self, spark: SparkSession, root: Path, table: LakeTable) -> None:
        self.spark = spark
        self.root = root
        self.source = root / "source"
        self.table = table
        self.checkpoint = root / "checkpoint"
        self.source.mkdir()

    def add_files(self, count: int) -> None:
        """More source rows: ids go on where they ended."""
        there = len(list(self.source.glob("*.parquet")))
        for number in range(there, there + count):
            first = number * self.rows_per_file
            write_ids(self.source / f"{number:05}.parquet", range(first, first + self.rows_per_file), number)

    def rows(self, files_per_batch: int = 1) -> DataFrame:
        return read_ids(self.spark, self.source, files_per_batch)

    def writer(self, rows: DataFrame | None = None, **options: str) -> DataStreamWriter:
        writer = (self.rows() if rows is None else rows).writeStream.format(self.table.source)
        given = {**self.table.options, "checkpointLocation": str(self.checkpoint), **options}
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

    def findings(self) -> testing.Observation:
        source = f"read_parquet('{self.source}/*.parquet')"
        return testing.check(self.table, source, store=self.store_url)

    def read(self, columns: str = "*") -> list[tuple[object, ...]]:
        """The table's rows as duckdb reads them."""
        return rows(self.table, columns)

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.checkpoint}/penstock.sqlite"

    def data_files(self) -> set[str]:
        return self.table.data_files()

    def commits(self) -> int:
        """Commits to the table since it was created."""
        return self.table.versions() - self.table.versions_when_new

    def forget_commit(self, batch_id: int) -> None:
        forget_commit(self.checkpoint, batch_id)

    def copy_checkpoint(self, name: str) -> Path:
        copy = self.root / name
        shutil.copytree(self.checkpoint, copy)
        return copy


def read_ids(spark: SparkSession, source: Path, files_per_batch: int = 1) -> DataFrame:
    """A stream of such files."""
    reader = spark.readStream.schema("id LONG, day STRING").option("maxFilesPerTrigger", files_per_batch)
    return reader.parquet(str(source))


def forget_commit(checkpoint: Path, batch_id: int) -> None:
    """As if the driver had died just before Spark logged that the batch is done."""
    for name in (f"{batch_id}", f".{batch_id}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def write_source(folder: Path, files: int, rows_per_file: int, days: int = 2) -> None:
    """Files of ascending ids, a batch each."""
    folder.mkdir()
    for number in range(files):
        ids = range(number * rows_per_file, (number + 1) * rows_per_file)
        write_ids(folder / f"{number:05}.parquet", ids, number, days)


def write_ids(path: Path, ids: range, number: int, days: int = 2) -> None:
    """One file of a source; Spark reads files in the order of their age.

    A running query must not see the file before it has its age: Spark would ignore older ones (`maxFileAge`).
    """
    hidden = path.with_name(f"_{number}")
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "day": [f"d{i % days}" for i in ids]}), hidden)
    os.utime(hidden, (1_700_000_000 + number,) * 2)
    hidden.rename(path)
