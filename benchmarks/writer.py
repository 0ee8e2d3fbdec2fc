"""Compares the data file writer with pyarrow on the same batches, on one core, and reads both files."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks import data
from benchmarks.data import as_from_spark, generated_rows, with_partition
from benchmarks.files import write_file
from benchmarks.measure import Options, Samples, interleaved, medians, one_core, print_progress, ratio
from benchmarks.report import Report, bars
from deltalake import write_deltalake

from penstock.writers.delta.table_format import DeltaFormat
from penstock.writers.iceberg.table_format import IcebergFormat
from penstock.writers.parquet.data_file_config import ROW_GROUP_ROWS, ParquetOptions
from penstock.writers.parquet.data_files import DataFileWriter
from penstock.writers.parquet.file import PAGE_ROWS
from penstock.writers.parquet.file_names import FileNames
from penstock.writers.parquet.write_config import WriteConfig

BATCH_ROWS = 10_000
"""Spark's default (spark.sql.execution.arrow.maxRecordsPerBatch)."""

FLIGHT_ROWS = 4_000_000
QUICK_ROWS = 500_000
PARTITIONS = 200
ROUNDS_OF_SCANS = 3
"""A scan is short, so the minimum of this number of scans is used."""

PLAIN = "pyarrow"
GATHERED = "pyarrow, large row groups"
ENCODER = "pyarrow, files as ours"
DUCKDB = "duckdb"
POLARS = "polars"
DELTA = "penstock.delta"
ICEBERG = "penstock.iceberg"
SPLIT = f"penstock.delta, {PARTITIONS} partitions"
SPLIT_BY_DELTALAKE = f"deltalake, {PARTITIONS} partitions"
LONG_GROUPS = "penstock.delta, row groups of 1,000,000"
SHORT_PAGES = "penstock.delta, pages of 20,000"
"""Arrow's default."""

READ = (PLAIN, DELTA, ICEBERG, LONG_GROUPS, SHORT_PAGES, SPLIT, SPLIT_BY_DELTALAKE)

SPEEDUP_MIN, SPLIT_MIN, SIZE_MAX, SCAN_MIN = 2, 0.6, 1, 1


def run(options: Options) -> Report:
    report = Report(
        "writer",
        "Writing and reading Parquet",
        f"Arrow batches of {BATCH_ROWS:,} rows are written by the data file writer, by `pyarrow.parquet` "
        f"with its defaults (`{PLAIN}`: each batch is a row group, as in a simple sink; `{GATHERED}`: all "
        f"rows collected first; `{ENCODER}`: with Penstock's row groups, codec and encodings, but without "
        "checks, statistics, several files or protection against crashes, the minimum of Arrow's encoder), "
        f"and by `{DUCKDB}` and `{POLARS}` (collected, with zstd and row groups of the same size), all on "
        f"one core. Penstock has row groups of {ROW_GROUP_ROWS:,} rows and pages of {PAGE_ROWS:,} unless "
        f"another number is given. Its row groups in {PARTITIONS} table partitions are smaller, because "
        f"their rows share a buffer of 128 MB. `{SPLIT_BY_DELTALAKE}` is `write_deltalake` with its "
        "defaults; each of its files has one row group. Seconds are processor time, medians of "
        f"{options.repeat} interleaved runs; `times as fast` is the median of their ratios. The flights "
        "are real, and repeated. The rows of the last section are generated: a sequence, times, strings of "
        "low and high cardinality, numbers.",
    )
    with one_core(), tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        for title, rows in sources(options):
            _compare(report, title, rows, options, Path(folder) / title)
    return report


def sources(options: Options) -> Iterator[tuple[str, pa.Table]]:
    rows = options.rows or (QUICK_ROWS if options.is_quick else None)
    yield "lineitem", _table(data.lineitem(rows or data.LINEITEM_ROWS))
    yield "flights", _table(data.flights(rows or FLIGHT_ROWS))
    yield "generated rows", generated_rows(rows or FLIGHT_ROWS)


def _table(source: data.Source) -> pa.Table:
    return as_from_spark(pa.concat_tables(pq.read_table(file) for file in source.files))


# Writing --------------------------------------------------------------------------------------------


def plain(folder: Path, table: pa.Table) -> None:
    with pq.ParquetWriter(folder / "plain.parquet", table.schema) as writer:
        for batch in table.to_batches(BATCH_ROWS):
            writer.write_batch(batch)


def gathered(folder: Path, table: pa.Table) -> None:
    pq.write_table(pa.Table.from_batches(table.to_batches(BATCH_ROWS)), folder / "gathered.parquet")


def encoded(folder: Path, table: pa.Table) -> None:
    write_file(folder, table.to_batches(BATCH_ROWS))


def by_duckdb(folder: Path, table: pa.Table) -> None:
    import duckdb

    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("gathered", table)
        connection.execute(
            f"COPY gathered TO '{folder}/duckdb.parquet' "
            f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP_ROWS})"
        )


def by_polars(folder: Path, table: pa.Table) -> None:
    rows = one_core_polars().from_arrow(table)
    rows.write_parquet(folder / "polars.parquet", compression="zstd", row_group_size=ROW_GROUP_ROWS)


def one_core_polars() -> Any:
    os.environ["POLARS_MAX_THREADS"] = "1"  # polars reads it at import
    import polars as pl

    return pl


def penstock(folder: Path, table: pa.Table, plan: Callable[[str, pa.Schema], WriteConfig]) -> None:
    writer = DataFileWriter(plan(str(folder), table.schema), FileNames("bench", "run", 0, 0, 0))
    for batch in table.to_batches(BATCH_ROWS):
        writer.write(batch)
    writer.finish()


def split_by_deltalake(folder: Path, table: pa.Table) -> None:
    batches = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(BATCH_ROWS))
    write_deltalake(folder, batches, partition_by=["p"], mode="overwrite")


def delta_plan(location: str, schema: pa.Schema, **layout: Any) -> WriteConfig:
    return WriteConfig(location, {}, schema, DeltaFormat(), **layout)


def split_plan(location: str, schema: pa.Schema) -> WriteConfig:
    return WriteConfig(location, {}, schema, DeltaFormat(("p",)))


def iceberg_plan(location: str, schema: pa.Schema) -> WriteConfig:
    fields = [
        field.with_metadata({"PARQUET:field_id": str(number)}) for number, field in enumerate(schema, start=1)
    ]
    return WriteConfig(location, {}, pa.schema(fields), IcebergFormat())


def _compare(report: Report, title: str, table: pa.Table, options: Options, folder: Path) -> None:
    split = with_partition(table, PARTITIONS)
    cases: dict[str, Callable[[Path], None]] = {
        PLAIN: partial(plain, table=table),
        GATHERED: partial(gathered, table=table),
        ENCODER: partial(encoded, table=table),
        DUCKDB: partial(by_duckdb, table=table),
        POLARS: partial(by_polars, table=table),
        DELTA: partial(penstock, table=table, plan=delta_plan),
        ICEBERG: partial(penstock, table=table, plan=iceberg_plan),
        SPLIT: partial(penstock, table=split, plan=split_plan),
        SPLIT_BY_DELTALAKE: partial(split_by_deltalake, table=split),
        LONG_GROUPS: partial(penstock, table=table, plan=partial(delta_plan, row_group_rows=1_000_000)),
        SHORT_PAGES: partial(
            penstock, table=table, plan=partial(delta_plan, parquet=ParquetOptions(page_rows=20_000))
        ),
    }
    cases = {name: write for name, write in cases.items() if options.wants(name)}
    print_progress(f" {title}")
    seconds = interleaved(
        {name: partial(_written, write, folder / name) for name, write in cases.items()},
        options.repeat,
        warm_up=1,
    )
    sizes = {name: _megabytes(folder / name) for name in cases}
    report.text(f"## {title}: {table.num_rows:,} rows × {table.num_columns} columns")
    report.table(
        ("", "seconds", "million rows / s", "MB", "times as fast"),
        (
            (f"`{name}`", middle, table.num_rows / middle / 1e6, sizes[name], ratio(seconds, PLAIN, name))
            for name, middle in medians(seconds).items()
        ),
    )
    speeds = {name: table.num_rows / middle / 1e6 for name, middle in medians(seconds).items()}
    report.plot(f"Rows written, {title}", bars(speeds, "million rows a second"), title.partition(" ")[0])
    for ours in (DELTA, ICEBERG):
        what = f"{title}: `{ours}`"
        report.bound(f"{what}, as fast as `{PLAIN}`", ratio(seconds, PLAIN, ours), ">=", SPEEDUP_MIN, " ×")
        report.bound(f"{what}, size relative to `{PLAIN}`", _share(sizes, ours, PLAIN), "<=", SIZE_MAX, " ×")
    speed = ratio(seconds, DELTA, SPLIT)
    report.bound(f"{title}: {PARTITIONS} partitions, as fast as one", speed, ">=", SPLIT_MIN, " ×")
    _scan(report, title, options, {name: folder / name for name in READ if name in cases})


def _share(sizes: dict[str, float], one: str, other: str) -> float | None:
    return sizes[one] / sizes[other] if one in sizes and other in sizes else None


def _written(write: Callable[[Path], None], folder: Path) -> float:
    for file in folder.rglob("*.parquet"):
        file.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    start = time.process_time()
    write(folder)
    return time.process_time() - start


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*.parquet")) / 1e6


# Reading --------------------------------------------------------------------------------------------


def _scan(report: Report, title: str, options: Options, folders: dict[str, Path]) -> None:
    """Read all columns of all rows."""
    report.text("Reading all columns of these files, all rows, on one core:")
    rows = []
    for reader, scan in READERS.items():
        print_progress(f" {title}, read by {reader}")
        with scan() as read:
            cases = {name: partial(_least, read, str(path)) for name, path in folders.items()}
            seconds: Samples = interleaved(cases, options.repeat, warm_up=1)
        rows.append((reader, *medians(seconds).values()))
        for ours in (DELTA, ICEBERG):
            what = f"{title}: `{ours}`, read by {reader} as fast as `{PLAIN}`"
            report.bound(what, ratio(seconds, PLAIN, ours), ">=", SCAN_MIN, " ×")
    report.table(("seconds", *(f"`{name}`" for name in folders)), rows)


def _least(read: Callable[[str], Any], path: str) -> float:
    seconds = []
    for _ in range(ROUNDS_OF_SCANS):
        start = _processor_seconds()
        read(path)
        seconds.append(_processor_seconds() - start)
    return min(seconds)


def _processor_seconds() -> float:
    """Processor seconds of this process and its child processes, such as Spark."""
    others = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(times.user + times.system for times in others)


@contextmanager
def _by_duckdb() -> Iterator[Callable[[str], Any]]:
    import duckdb

    with duckdb.connect(config={"threads": 1}) as connection:
        yield lambda path: connection.execute(
            f"SELECT {_each_column(path)} FROM '{path}/**/*.parquet'"
        ).fetchall()


def _each_column(path: str) -> str:
    """Return an aggregate of all columns that a reader cannot compute from statistics."""
    file = next(Path(path).rglob("*.parquet"))
    return ", ".join(f'bit_xor(hash("{name}"))' for name in pq.read_schema(file).names)


@contextmanager
def _by_polars() -> Iterator[Callable[[str], Any]]:
    pl = one_core_polars()
    yield lambda path: pl.read_parquet(f"{path}/**/*.parquet")


@contextmanager
def _by_spark() -> Iterator[Callable[[str], Any]]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "2g").config("spark.log.level", "ERROR").getOrCreate()
    try:
        yield lambda path: spark.read.parquet(path).write.format("noop").mode("overwrite").save()
    finally:
        spark.stop()


READERS = {"duckdb": _by_duckdb, "polars": _by_polars, "Spark": _by_spark}
