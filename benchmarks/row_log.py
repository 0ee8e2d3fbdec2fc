"""Compares a task that writes the row log with plain Parquet files, on the same batches and one core."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
from benchmarks.measure import Options, interleaved, medians, one_core, print_progress, ratio
from benchmarks.report import Report, bars
from benchmarks.writer import BATCH_ROWS, delta_plan, penstock, plain, sources

from penstock.committers.contract import AttemptId, Batch, DataFile, StreamKey
from penstock.committers.row_log.log import LoggedBatch, RowLog
from penstock.writers.row_log.writer import RowLogWriters

OURS, PLAIN, DELTA = "penstock, row log", "pyarrow", "penstock.delta"
SHARE_MIN = 0.8
BATCH = Batch(StreamKey("bench", "https://bench.example/"), 0, "0" * 64)


def run(options: Options) -> Report:
    report = Report(
        "row_log",
        "Writing the row log",
        f"Arrow batches of {BATCH_ROWS:,} rows are written by a task to a row log, by `pyarrow.parquet` with "
        f"its defaults (`{PLAIN}`, as in a simple sink) and by a task of `{DELTA}`, to a local disk and on "
        f"one core. Seconds are processor time, medians of {options.repeat} interleaved runs; `times as "
        "fast` is the median of their ratios. `read` is what a delivery takes to read the row log. The rows "
        "are those of [writer.md](writer.md).",
    )
    with one_core(), tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        for title, rows in sources(options):
            _compare(report, title, rows, options, Path(folder))
    return report


def _compare(report: Report, title: str, table: pa.Table, options: Options, folder: Path) -> None:
    cases: dict[str, Callable[[Path], None]] = {
        OURS: partial(row_log, table=table),
        PLAIN: partial(plain, table=table),
        DELTA: partial(penstock, table=table, plan=delta_plan),
    }
    print_progress(f" {title}")
    seconds = interleaved(
        {name: partial(_seconds, write, folder / name) for name, write in cases.items()},
        options.repeat,
        warm_up=1,
    )
    shown = medians(seconds)
    speeds = {name: table.num_rows / middle / 1e6 for name, middle in shown.items()}
    report.text(f"## {title}: {table.num_rows:,} rows × {table.num_columns} columns")
    report.table(
        ("", "seconds", "million rows / s", "MB", "times as fast"),
        [
            (f"`{name}`", shown[name], speeds[name], _megabytes(folder / name), ratio(seconds, PLAIN, name))
            for name in cases
        ],
    )
    report.text(f"read: {_read(folder / OURS, table.num_rows):.2g} s.")
    report.plot(f"Rows written, {title}", bars(speeds, "million rows a second"), title.partition(" ")[0])
    what = f"{title}: `{OURS}`, as fast as `{PLAIN}`"
    report.bound(what, ratio(seconds, PLAIN, OURS), ">=", SHARE_MIN, " ×")


def row_log(folder: Path, table: pa.Table) -> None:
    writers = RowLogWriters(str(folder), {}, lambda _: None)
    writer = writers.open(AttemptId(BATCH.stream.query_id, "run", BATCH.batch_id, 0, 0))
    for batch in table.to_batches(BATCH_ROWS):
        writer.write(batch)
    writer.finish()


def _seconds(write: Callable[[Path], None], folder: Path) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    start = time.process_time()
    write(folder)
    return time.process_time() - start


def _read(folder: Path, rows: int) -> float:
    """Return the seconds for all rows, which must be there."""
    files = [
        DataFile(str(file.relative_to(folder)), file.stat().st_size, rows) for file in folder.rglob("*.arrow")
    ]
    start = time.process_time()
    found = sum(one.rows.num_rows for one in RowLog(str(folder), {}).read(LoggedBatch.of(BATCH, files)))
    assert found == rows
    return time.process_time() - start


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
