"""A writer's memory is bounded by its options, not by the number of rows or of table partitions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MEBIBYTE = 1024 * 1024

COMMON = """
import json
import sys
from dataclasses import astuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.committers.contract import DataFile, SortField
from penstock.writers.parquet.compaction import choose_groups, rewrite_group
from penstock.writers.parquet.data_files import DataFileWriter
from penstock.writers.delta.table_format import DeltaFormat
from penstock.writers.parquet.file_names import FileNames
from penstock.writers.parquet.write_config import WriteConfig


def peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def columns(start, repeats):
    # Ids, the same numbers without order, and these as texts.
    ids = pa.array(range(start, start + 10_000))
    mixed = pc.bit_wise_and(pc.multiply(ids, 2654435761), 0xFFFFFFFF)
    return ids, mixed, pc.binary_repeat(mixed.cast(pa.string()), repeats)
"""

SCRIPT = """
path, partitions, batches, buffer_bytes_max = sys.argv[1], *map(int, sys.argv[2:])
schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("p", pa.int64())])
plan = WriteConfig(
    path, {}, schema, DeltaFormat(("p",) if partitions else ()), buffer_bytes_max=buffer_bytes_max,
    sort=(SortField(("text",)),), target_file_bytes=64 * 1024 * 1024,
    compression="snappy",
)
writer = DataFileWriter(plan, FileNames("query", "run", 0, 0, 0))


def batch(number):
    ids, mixed, text = columns(number * 10_000, 8)
    count = max(partitions, 1)
    p = pc.subtract(mixed, pc.multiply(pc.divide(mixed, count), count))
    return pa.record_batch([ids, text, p], schema=schema)


size = 0
rows = batch(0)
writer.write(rows.slice(0, 1))
base = peak_bytes()
for number in range(batches):
    rows = batch(number)
    size += rows.nbytes
    writer.write(rows)
files = writer.finish()
assert sum(file.rows for file in files) == batches * 10_000 + 1
print(size, peak_bytes() - base)
"""


@pytest.mark.parametrize("partitions", [0, 50, pytest.param(1000, marks=pytest.mark.slow)])
def test_peak_memory_stays_under_the_documented_bound(partitions: int, tmp_path: Path) -> None:
    """A task's rows are many times the bound; see DataFileWriter for the bound."""
    buffer_bytes_max = 16 * MEBIBYTE
    batches = 150
    arguments = [str(tmp_path), str(partitions), str(batches), str(buffer_bytes_max)]
    done = subprocess.run(
        [sys.executable, "-c", COMMON + SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    size, peak = map(int, done.stdout.split())
    assert size > 8 * buffer_bytes_max
    assert peak < 4 * buffer_bytes_max + 80 * MEBIBYTE, f"{peak / MEBIBYTE:.0f} MiB"


COMPACTION = """
path, step, rows, buffer_bytes_max = *sys.argv[1:3], *map(int, sys.argv[3:])
schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
plan = WriteConfig(path, {}, schema, DeltaFormat(), buffer_bytes_max=buffer_bytes_max, compression="snappy")


def batches(first):
    for start in range(first, first + rows, 10_000):
        ids, _, text = columns(start, 30)
        yield pa.record_batch([ids, text], schema=schema)


if step == "write":
    for number in range(3):
        writer = DataFileWriter(plan, FileNames("query", "run", number, 0, 0))
        for batch in batches(number * rows):
            writer.write(batch)
        for file in writer.finish():
            print(json.dumps(astuple(file)[:3]))
else:
    (group,) = choose_groups([DataFile(*json.loads(line)) for line in sys.stdin], plan.target_file_bytes)
    base = peak_bytes()
    new = rewrite_group(plan, FileNames("query", "delivery", 3, 0, 0), group)
    assert sum(file.rows for file in new) == 3 * rows
    print(peak_bytes() - base)
"""


def test_compaction_reads_files_piece_by_piece(tmp_path: Path) -> None:
    """Each source is one row group, and in memory many times what the writer may hold."""
    buffer_bytes_max, rows = 16 * MEBIBYTE, 600_000

    def run(step: str, given: str = "") -> str:
        arguments = [str(tmp_path), step, str(rows), str(buffer_bytes_max if step == "read" else 2**40)]
        command = [sys.executable, "-c", COMMON + COMPACTION, *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout

    peak = int(run("read", run("write")))
    assert rows * 300 > 10 * buffer_bytes_max
    assert peak < 4 * buffer_bytes_max + 80 * MEBIBYTE + 160 * MEBIBYTE, f"{peak / MEBIBYTE:.0f} MiB"
