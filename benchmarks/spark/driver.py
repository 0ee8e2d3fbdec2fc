"""Driver program of the stream benchmarks: one Spark that runs the requested streams.

Its argument is the descriptor of a socket. It receives names of methods of `Streams` with arguments, and
sends back the results. All sinks share one JVM, so it is equally warm for all of them.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from benchmarks.measure import machine
from benchmarks.spark.kafka_sinks import KAFKA_SINKS
from benchmarks.spark.mysql_sinks import MYSQL_SINKS
from benchmarks.spark.postgres_sinks import POSTGRES_SINKS
from benchmarks.spark.readers import READERS
from benchmarks.spark.sinks import JVM_EXTENSIONS, PARTITION, Sink
from benchmarks.spark.sinks import SINKS as FOLDER_SINKS
from benchmarks.spark.upsert_sinks import UPSERT_SINKS
from pyspark.sql import DataFrame, Observation, SparkSession, functions
from pyspark.sql.types import StructType

import penstock

SINKS = {**FOLDER_SINKS, **POSTGRES_SINKS, **MYSQL_SINKS, **UPSERT_SINKS, **KAFKA_SINKS}
Progress = dict[str, float]
"""Milliseconds of one batch by step, from Spark's progress, and its `rows`."""


@dataclass
class OpenStream:
    """A running query and the folder that it reads."""

    query: Any
    arriving: Path
    folder: Path
    fed: int = 0

    def feed(self, files: list[Path]) -> list[Progress]:
        """Make all files visible at once and return the batches that processed them."""
        before = len(self.query.recentProgress)
        hidden = self.arriving.with_name(f"hidden-{self.fed}")
        hidden.mkdir(parents=True)
        for file in files:
            os.link(file, hidden / file.name)
        hidden.rename(self.arriving / f"{self.fed:05}")
        self.fed += 1
        self.query.processAllAvailable()
        return [progress(one) for one in self.query.recentProgress[before:] if one["numInputRows"]]


class Streams:
    """The methods that the benchmark calls."""

    def __init__(self) -> None:
        self._spark: SparkSession
        self._sinks: dict[str, tuple[Sink, SparkSession]] = {}
        self._open: dict[str, OpenStream] = {}

    def start_spark(self, master: str, jars: str, settings: dict[str, str]) -> str:
        """Start Spark and describe the hardware and the libraries of this environment."""
        builder = SparkSession.builder.master(master).appName("benchmarks")
        for key, value in settings.items():
            builder = builder.config(key, value)
        if jars:
            builder = builder.config("spark.jars", jars).config("spark.sql.extensions", JVM_EXTENSIONS)
        self._spark = builder.getOrCreate()
        self._spark.sparkContext.setLogLevel("ERROR")
        return machine()

    def large_batch(
        self, sink: str, warm_up: list[Path], files: list[Path], rows: int, folder: Path, partitions: int
    ) -> dict[str, Any]:
        """Write the files into a new table in one batch, after a small one; return times, files and bytes."""
        self.open(sink, warm_up, folder, partitions)
        since = time.time()
        batches = self.feed(sink, files)
        self.close(sink)
        written = [path for path in folder.rglob("*.parquet") if "checkpoint" not in path.parts]
        assert len(batches) == 1, f"{sink}: {len(batches)} batches instead of one"
        if SINKS[sink].keeps_rows:
            found = sum(pq.read_metadata(path).num_rows for path in written if "_delta_log" not in path.parts)
            wanted = rows + sum(pq.read_metadata(path).num_rows for path in warm_up)
            assert found == wanted, f"{sink}: {found:,} rows were written, not {wanted:,}"
        size = sum(path.stat().st_size for path in written)
        shutil.rmtree(folder)
        return {**batches[0], "tasks": self._task_ms(since), "files": len(written), "bytes": size}

    def small_batches(self, sink: str, source: Path, folder: Path) -> list[Progress]:
        """Run a batch for each file, as fast as possible."""
        rows = self._rows(sink, source, files_per_batch=1)
        folder.mkdir(parents=True)
        made, _ = self._sink(sink)
        query = made.start(made.writer(rows, folder).trigger(availableNow=True), folder)
        query.awaitTermination()
        batches = [progress(one) for one in query.recentProgress if one["numInputRows"]]
        shutil.rmtree(folder)
        return batches

    def rate(self, sink: str, folder: Path, rows_per_second: int, seconds: int) -> None:
        """Run a batch each second, of rows whose values are their time (microseconds since 1970)."""
        made, session = self._sink(sink)
        folder.mkdir()
        rows = session.readStream.format("rate").option("rowsPerSecond", rows_per_second).load()
        value = functions.unix_micros("timestamp").cast("string")
        rows = rows.select(functions.col("value").cast("string").alias("key"), value.alias("value"))
        query = made.start(made.writer(rows, folder).trigger(processingTime="1 second"), folder)
        query.awaitTermination(seconds)
        query.stop()

    def write_tables(self, source: Path, folder: Path) -> dict[str, dict[str, str]]:
        """Write the rows into a Delta and an Iceberg table, and return where they are."""
        penstock.register(self._spark)
        rows = self._spark.read.parquet(str(source))
        path, warehouse = str(folder / "delta"), str(folder / "iceberg")
        rows.write.format("penstock.delta").mode("append").save(path)
        iceberg = {"warehouse": warehouse, "table": "lake.lineitem"}
        rows.write.format("penstock.iceberg").mode("append").options(**iceberg).save()
        in_warehouse = Path(warehouse) / "lake" / "lineitem"
        metadata = str(max((in_warehouse / "metadata").glob("*.metadata.json")))
        data = str(in_warehouse / "data")
        return {
            "delta": {"format": "penstock.delta", "path": path, "data": path},
            "iceberg": {"format": "penstock.iceberg", **iceberg, "metadata": metadata, "data": data},
        }

    def read_table(self, reader: str, table: dict[str, str], columns: list[str]) -> tuple[float, int]:
        """Read a table into nothing; return the seconds and the number of its rows."""
        _activate(self._spark)
        start = time.perf_counter()
        observed = Observation()
        rows = READERS[reader](self._spark, table, columns)
        rows = rows.observe(observed, functions.count(functions.lit(1)).alias("rows"))
        rows.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - start, int(observed.get["rows"])

    def open(self, sink: str, files: list[Path], folder: Path, partitions: int = 1) -> list[Progress]:
        """Start a query into a table of this number of partitions; its first batch has these files."""
        arriving = folder.with_name(f"{folder.name}_arriving")
        arriving.mkdir(parents=True)
        folder.mkdir()
        rows = self._rows(sink, arriving, files[0])
        if partitions > 1:  # neighbouring rows have different partitions
            number = functions.abs(functions.xxhash64(*rows.columns)) % partitions
            rows = rows.withColumn(PARTITION, number.cast("int"))
        made, _ = self._sink(sink)
        query = made.start(made.writer(rows, folder), folder)
        self._open[sink] = OpenStream(query, arriving, folder)
        return self.feed(sink, files)

    def feed(self, sink: str, files: list[Path]) -> list[Progress]:
        return self._open[sink].feed(files)

    def close(self, sink: str) -> None:
        stream = self._open.pop(sink)
        stream.query.stop()
        shutil.rmtree(stream.arriving)
        _release_memory()

    def _sink(self, name: str) -> tuple[Sink, SparkSession]:
        is_new = name not in self._sinks
        if is_new:
            self._sinks[name] = (SINKS[name](), self._spark.newSession())
        sink, session = self._sinks[name]
        _activate(session)
        if is_new:
            sink.set_up(session)
        return sink, session

    def _task_ms(self, since: float) -> float:
        """Return the milliseconds of jobs since then; the rest of a batch's time is planning and commit."""
        context: Any = self._spark.sparkContext
        jobs = context._jsc.sc().statusStore().jobsList(None)  # the newest first
        total_ms = 0.0
        for job in (jobs.apply(position) for position in range(jobs.size())):
            start_ms = job.submissionTime().get().getTime()
            if start_ms < since * 1000:
                break
            total_ms += job.completionTime().get().getTime() - start_ms
        return total_ms

    def _rows(
        self, sink: str, folder: Path, example: Path | None = None, files_per_batch: int | None = None
    ) -> DataFrame:
        _, session = self._sink(sink)
        schema: StructType = session.read.parquet(str(example or folder)).schema
        reader = session.readStream.schema(schema)
        if files_per_batch is not None:
            return reader.option("maxFilesPerTrigger", files_per_batch).parquet(str(folder))
        return reader.parquet(f"{folder}/*")


def _release_memory() -> None:
    """Release memory of glibc, which keeps a gigabyte for each large batch that foreachBatch collects."""
    ctypes.CDLL(None).malloc_trim(0)


def _activate(session: SparkSession) -> None:
    """Spark looks Python data sources up in the active session, not in that of the query."""
    jvm: Any = session._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)


def progress(reported: Any) -> Progress:
    return {**reported["durationMs"], "rows": reported["numInputRows"]}


def main() -> None:
    streams = Streams()
    with Connection(int(sys.argv[1])) as connection:
        while True:
            try:
                name, arguments = connection.recv()
            except EOFError:
                return
            try:
                connection.send((True, getattr(streams, name)(**arguments)))
            except Exception:  # noqa: BLE001  raised again in the calling process
                connection.send((False, traceback.format_exc()))


if __name__ == "__main__":
    main()
