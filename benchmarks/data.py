"""Generates the rows of the streams once, as Parquet files below build/, for all benchmarks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from benchmarks.measure import print_progress
from notebooks.flights import read_flights

CACHE = Path(__file__).parents[1] / "build" / "benchmarks"
LINEITEM_ROWS = 6_001_215
"""Rows of lineitem at scale factor 1."""
PARTS = 8


@dataclass(frozen=True)
class Source:
    """A folder of Parquet files that a stream reads."""

    folder: Path
    rows: int

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.parquet"))


def lineitem(rows: int = LINEITEM_ROWS) -> Source:
    """TPC-H's largest table, with 16 columns: decimals, dates, and strings of low and high cardinality."""
    scale = rows / LINEITEM_ROWS
    folder = CACHE / f"lineitem-{rows}"
    if not folder.exists():
        print_progress(f"Generating lineitem, {rows:,} rows")
        made = _fresh(folder)
        program = Path(sys.executable).with_name("tpchgen-cli")
        options = [f"--scale-factor={scale}", "--tables=lineitem", f"--parts={PARTS}"]
        subprocess.run([program, "parquet", *options, f"--output-dir={made}"], check=True)
        for file in list(made.glob("lineitem/*.parquet")):
            file.rename(made / file.name)
        made.rename(folder)
    return _source(folder)


def flights(rows: int) -> Source:
    """The flights that left New York in 2013, repeated to about this number of rows."""
    years = max(round(rows / 336_776), 1)
    folder = CACHE / f"flights-{years}-years"
    if not folder.exists():
        print_progress(f"Preparing the flights, {years} times")
        made = _fresh(folder)
        one = read_flights()
        for part in range(min(PARTS, years)):
            copies = years * (part + 1) // PARTS - years * part // PARTS if years >= PARTS else 1
            pq.write_table(pa.concat_tables([one] * copies), made / f"flights-{part:03}.parquet")
        made.rename(folder)
    return _source(folder)


def small_files(files: int, rows: int) -> Source:
    """The first flights of 2013 in files of this number of rows."""
    folder = CACHE / f"flights-{files}-files-of-{rows}"
    if not folder.exists():
        made = _fresh(folder)
        table = read_flights()
        for number in range(files):
            path = made / f"flights-{number:05}.parquet"
            pq.write_table(table.slice(number * rows, rows), path)
            os.utime(path, (1_000_000_000 + number,) * 2)  # Spark reads files in the order of their time
        made.rename(folder)
    return _source(folder)


def _fresh(folder: Path) -> Path:
    """Create an empty folder next to it, which is renamed when it is complete."""
    made = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    return made


def _source(folder: Path) -> Source:
    rows = sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
    return Source(folder, rows)


def as_from_spark(table: pa.Table) -> pa.Table:
    """Cast string views to strings, because Spark has no string views."""
    fields = [
        field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields)).combine_chunks()


def generated_rows(rows: int) -> pa.Table:
    """A sequence, times, strings of low and high cardinality, and numbers."""
    return rows_with(pa.array(range(rows), pa.int64()))


def rows_with(ids: pa.Array) -> pa.Table:
    """The generated rows with these ids (int64)."""
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
        }
    )


def _modulo(numbers: pa.Array, divisor: int) -> pa.Array:
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, divisor), divisor))


def with_partition(table: pa.Table, partitions: int) -> pa.Table:
    """Add a partition column in which neighbouring rows differ, which is the hardest case."""
    numbers = pa.array(range(table.num_rows), pa.int64())
    mixed = pc.bit_wise_and(pc.multiply(numbers, 2654435761), 0xFFFFFFFF)
    return table.append_column("p", _modulo(mixed, partitions).cast(pa.int32()))
