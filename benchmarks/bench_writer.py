"""What the data file writer costs beside a plain pyarrow writer on the same batches.

    python benchmarks/bench_writer.py [--rows 4000000] [--repeat 3]

Prints the machine, rows, seconds (the best of the repeats) and ratios; only the ratios travel.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.writers.data_files import DataFileWriter
from penstock.writers.delta.table_format import DeltaFormat
from penstock.writers.plan import FileNames, WritePlan

BATCH_ROWS = 10_000
"""What Spark hands over by default (spark.sql.execution.arrow.maxRecordsPerBatch)."""


def make_rows(rows: int) -> pa.Table:
    """Flights-like rows: a sequence, times, few and many different strings, numbers, a partition column."""
    ids = pa.array(range(rows), pa.int64())
    mixed = pc.bit_wise_and(pc.multiply(ids, 2654435761), 0xFFFFFFFF)
    words = pa.array([f"carrier-{i}" for i in range(30)])
    return pa.table(
        {
            "id": ids,
            "at": pc.add(pc.multiply(ids, 1_000_003), 1_700_000_000_000_000).cast(pa.timestamp("us", "UTC")),
            "carrier": words.take(_modulo(mixed, 30)),
            "tail": pc.binary_join_element_wise("N", mixed.cast(pa.string()), ""),
            "delay": pc.divide(mixed.cast(pa.float64()), 1e6),
            "distance": _modulo(mixed, 5000).cast(pa.int32()),
            "cancelled": pc.equal(_modulo(mixed, 50), 0),
            "p": _modulo(mixed, 200).cast(pa.int32()),
        }
    )


def _modulo(numbers: pa.Array, divisor: int) -> pa.Array:
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, divisor), divisor))


def plain(table: pa.Table, directory: str) -> None:
    """pyarrow with its defaults, one row group per batch as a naive sink does."""
    with pq.ParquetWriter(Path(directory) / "plain.parquet", table.schema) as writer:
        for batch in table.to_batches(BATCH_ROWS):
            writer.write_batch(batch)


def gathered(table: pa.Table, directory: str) -> None:
    """pyarrow with its defaults, but the same row groups and compression as ours."""
    pq.write_table(table, Path(directory) / "gathered.parquet", compression="zstd", row_group_size=1_000_000)


def penstock(table: pa.Table, directory: str, partition_by: tuple[str, ...]) -> None:
    plan = WritePlan(directory, {}, table.schema, DeltaFormat(partition_by), max_open_partitions=256)
    writer = DataFileWriter(plan, FileNames("bench", "run", 0, 0, 0))
    for batch in table.to_batches(BATCH_ROWS):
        writer.write(batch)
    writer.close()


def measure(write: Callable[[str], None], repeat: int) -> tuple[float, float]:
    """(best seconds, megabytes on disk)"""
    best = float("inf")
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as directory:
            start = time.perf_counter()
            write(directory)
            best = min(best, time.perf_counter() - start)
            size = sum(path.stat().st_size for path in Path(directory).rglob("*.parquet"))
    return best, size / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    table = make_rows(arguments.rows).combine_chunks()
    cases: dict[str, Callable[[str], None]] = {
        "pyarrow, a row group per batch, snappy": lambda directory: plain(table, directory),
        "pyarrow, 1M-row groups, zstd": lambda directory: gathered(table, directory),
        "penstock, 1 partition": lambda directory: penstock(table, directory, ()),
        "penstock, 200 partitions": lambda directory: penstock(table, directory, ("p",)),
    }
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", end=", ")
    print(f"pyarrow {pa.__version__}")
    print(f"{arguments.rows:,} rows x {table.num_columns} columns, batches of {BATCH_ROWS:,}\n")
    print(f"{'':40}{'seconds':>9}{'Mrows/s':>9}{'MB':>8}{'ratio':>7}")
    base = 0.0
    for name, write in cases.items():
        seconds, size = measure(write, arguments.repeat)
        base = base or seconds
        speed = arguments.rows / seconds / 1e6
        print(f"{name:40}{seconds:9.2f}{speed:9.2f}{size:8.1f}{base / seconds:7.2f}")


if __name__ == "__main__":
    main()
