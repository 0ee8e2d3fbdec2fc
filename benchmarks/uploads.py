"""Measures the requests and round trips of one task attempt's files on S3.

The server is moto's, on the loopback; a proxy delays each request like a network. The benchmark alternates
with Arrow's dataset writer on the public file systems of the two table libraries.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.dataset as ds
from benchmarks.measure import Options, print_progress
from benchmarks.report import Report, lines
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSystem, PyFileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO
from servers.lossy_proxy import lossy_proxy
from servers.s3 import BUCKET, s3_properties, s3_server

from penstock.committers.contract import PartitionField
from penstock.writers.delta.table_format import DeltaFormat
from penstock.writers.iceberg.table_format import IcebergFormat
from penstock.writers.parquet.data_files import DataFileWriter
from penstock.writers.parquet.file_names import FileNames
from penstock.writers.parquet.table_format import TableFormat
from penstock.writers.parquet.write_config import WriteConfig

FILES = (1, 20, 200)
FIRST = 1
"""Rounds that are not counted: they load libraries and open connections."""
ROWS = 100
"""Rows per file."""
DELAY_MS = 40
LOGGED_S = 0.05
"""The server logs a request after its response."""
REQUESTS_MAX = {"penstock.delta": 1, "penstock.iceberg": 2}
ROUND_TRIPS_MAX = 60
"""For 200 files."""

_Write = Callable[[pa.Table], object]


@dataclass(frozen=True)
class Task:
    """One task attempt's files."""

    seconds: float
    requests: int


def run(options: Options) -> Report:
    report = Report(
        "uploads",
        "The files of a task on S3",
        f"A task attempt writes {ROWS} rows into each of its table partitions, one file each, in a process "
        "that runs as long as the stream, with default settings. It alternates with Arrow's dataset writer "
        "on the file systems of the two table libraries. The server is moto's on this machine. A proxy "
        f"delays each request by {DELAY_MS} ms, like a network; below, this is one round trip. Nothing is "
        "committed.",
    )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        log = Path(folder, "requests.log")
        with (
            log.open("wb") as log_file,
            s3_server(log=log_file) as storage,
            lossy_proxy(storage["AWS_ENDPOINT_URL"], delay_ms=DELAY_MS) as network,
            log.open("rb") as requests,
        ):
            writers = _writers({**storage, "AWS_ENDPOINT_URL": network.url})
            measured = {
                (name, files): _Measured(write, files, [])
                for files in FILES
                for name, write in writers.items()
            }
            for number in range(FIRST + options.repeat):
                for (name, files), one in measured.items():
                    one.measure(requests)
                    print_progress(f"  {number}: {files} files by {name}: {one.tasks[-1].seconds:.2f} s")
    _report_results(report, {key: one.tasks[FIRST:] for key, one in measured.items()})
    return report


@dataclass(frozen=True)
class _Measured:
    write: _Write
    files: int
    tasks: list[Task]

    def measure(self, requests: IO[bytes]) -> None:
        count = ROWS * self.files
        rows = pa.table({"v": range(count), "p": [number % self.files for number in range(count)]})
        time.sleep(LOGGED_S)
        requests.read()
        started = time.perf_counter()
        self.write(rows)
        seconds = time.perf_counter() - started
        time.sleep(LOGGED_S)
        self.tasks.append(Task(seconds, requests.read().count(b" HTTP/1.1")))


def _writers(storage: dict[str, str]) -> dict[str, _Write]:
    properties = s3_properties(storage)
    by_p = IcebergFormat((PartitionField("p", ("p",), "identity"),))
    delta = PyFileSystem(DeltaStorageHandler(f"s3://{BUCKET}/others", options=storage))
    iceberg = PyArrowFileIO(properties).fs_by_scheme("s3", BUCKET)
    return {
        "penstock.delta": _ours(DeltaFormat(("p",)), storage),
        "penstock.iceberg": _ours(by_p, properties),
        "Arrow, deltalake's file system": _arrow(delta, ""),
        "Arrow, pyiceberg's file system": _arrow(iceberg, f"{BUCKET}/others/"),
    }


def _ours(table_format: TableFormat, storage: dict[str, str]) -> _Write:
    def write(rows: pa.Table) -> None:
        ids = [{"PARQUET:field_id": str(number)} for number in range(1, len(rows.schema) + 1)]
        schema = pa.schema(
            [column.with_metadata(field_id) for column, field_id in zip(rows.schema, ids, strict=True)]
        )
        plan = WriteConfig(f"s3://{BUCKET}/ours", storage, schema, table_format)
        writer = DataFileWriter(plan, FileNames("query", uuid.uuid4().hex, 0, 0, 0))
        for batch in rows.to_batches(max_chunksize=10_000):
            writer.write(batch)
        writer.finish()

    return write


def _arrow(filesystem: FileSystem, prefix: str) -> _Write:
    def write(rows: pa.Table) -> None:
        ds.write_dataset(
            rows,
            f"{prefix}{uuid.uuid4()}",
            format="parquet",
            filesystem=filesystem,
            partitioning=["p"],
            create_dir=False,
            existing_data_behavior="overwrite_or_ignore",
        )

    return write


def _report_results(report: Report, measured: dict[tuple[str, int], list[Task]]) -> None:
    trips = {
        key: statistics.median(task.seconds for task in tasks) * 1000 / DELAY_MS
        for key, tasks in measured.items()
    }
    each = {
        (name, files): statistics.median(task.requests for task in tasks) / files
        for (name, files), tasks in measured.items()
    }
    names = list(dict.fromkeys(name for name, _ in measured))
    for name, requests_max in REQUESTS_MAX.items():
        report.bound(f"requests per file of 200 files, {name}", each[name, 200], "<=", requests_max)
        report.bound(f"round trips of 200 files, {name}", trips[name, 200], "<=", ROUND_TRIPS_MAX)
    report.table(
        (
            "",
            *(f"requests per file, {files} files" for files in FILES),
            *(f"round trips, {files} files" for files in FILES),
        ),
        (
            (f"`{name}`", *(each[name, files] for files in FILES), *(trips[name, files] for files in FILES))
            for name in names
        ),
    )
    series = {name: (list(FILES), [trips[name, files] for files in FILES]) for name in names}
    report.plot("Round trips by the number of files", lines(series, "files", "round trips"))
