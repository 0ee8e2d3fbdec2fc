"""Measures the peak memory of a Python worker that writes a large partition of a stream."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks import data
from benchmarks.measure import Options, peak_memory_bytes, print_progress
from benchmarks.report import Report
from benchmarks.writer import BATCH_ROWS, delta_plan, iceberg_plan

from penstock.committers.contract import AttemptId
from penstock.writers.delta.table_format import DeltaFormat
from penstock.writers.parquet.data_files import DataFileWriter
from penstock.writers.parquet.file_names import FileNames
from penstock.writers.parquet.write_config import WriteConfig
from penstock.writers.row_log.route_names import RouteColumns
from penstock.writers.row_log.routes import RouteWriter, RouteWriters

GIGABYTES, QUICK_GIGABYTES = 5.0, 0.5
MEGABYTE = 10**6
SOURCE_ROWS = 600_121
"""Rows of lineitem at a tenth of scale factor 1, read repeatedly, each time into new memory."""
ONE_MAX_MB, MANY_MAX_MB, MANY, TABLES = 400, 600, 1000, 500
CASES = {
    "penstock.delta, one table partition": ("delta", 1, ONE_MAX_MB),
    "penstock.iceberg, one table partition": ("iceberg", 1, ONE_MAX_MB),
    f"penstock.delta, {MANY:,} table partitions": ("delta", MANY, MANY_MAX_MB),
    f"penstock.delta, {TABLES} tables (`routeBy`)": ("routes", TABLES, MANY_MAX_MB),
}
"""By name: the table format, the number of table partitions, and the bound."""
CASES_ON_S3 = {
    "penstock.delta, one table partition, on S3": ("delta", 1),
    "penstock.iceberg, one table partition, on S3": ("iceberg", 1),
    f"penstock.delta, {MANY:,} table partitions, on S3": ("delta", MANY),
}


def run(options: Options) -> Report:
    gigabytes = QUICK_GIGABYTES if options.is_quick else GIGABYTES
    source = str(data.lineitem(SOURCE_ROWS).files[0])
    report = Report(
        "memory",
        "Memory of a worker",
        f"A separate process writes {gigabytes:g} GB of lineitem rows, in Arrow batches of "
        f"{BATCH_ROWS:,}, with the default options, to a local disk and to S3 (moto's server, in another "
        "process). The peak is the most memory that it used since its start (`VmHWM`), including the "
        "interpreter and its libraries. The first line is the interpreter, its libraries, and the read of "
        "the rows.",
    )
    peaks = {"nothing written": peak_memory_bytes(consume, source, gigabytes) / MEGABYTE}
    for name, (table_format, partitions, most) in CASES.items():
        if options.wants(name):
            peaks[name] = peak_memory_bytes(write, source, gigabytes, table_format, partitions) / MEGABYTE
            print_progress(f"  {name}: {peaks[name]:,.0f} MB")
            report.bound(name, peaks[name], "<=", most, " MB")
    from servers.s3 import BUCKET, s3_properties, s3_server  # the measured process does not load it

    with s3_server() as storage:
        of = {"delta": storage, "iceberg": s3_properties(storage)}
        for name, case in CASES_ON_S3.items():
            if options.wants(name):
                on_s3 = (f"s3://{BUCKET}/{case[0]}", of[case[0]])
                peaks[name] = peak_memory_bytes(write, source, gigabytes, *case, on_s3) / MEGABYTE
                print_progress(f"  {name}: {peaks[name]:,.0f} MB")
    report.table(("", "peak, MB"), peaks.items())
    return report


# The measured process -------------------------------------------------------------------------------


def write(
    source: str,
    gigabytes: float,
    table_format: str,
    partitions: int,
    on_s3: tuple[str, dict[str, str]] | None = None,
) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        schema = pq.read_schema(source)
        plan = (iceberg_plan if table_format == "iceberg" else delta_plan)(folder, _small(schema))
        if partitions > 1:
            columns = [*_small(schema), pa.field("p", pa.int32())]
            plan = WriteConfig(folder, {}, pa.schema(columns), DeltaFormat(("p",)))
        if on_s3:
            plan = replace(plan, location=on_s3[0], storage_options=on_s3[1])
        writer: DataFileWriter | RouteWriter
        if table_format == "routes":
            routes = RouteWriters(folder, {}, RouteColumns(("p",)), plan.row_schema)
            writer = routes.open(AttemptId("bench", "run", 0, 0, 0))
        else:
            writer = DataFileWriter(plan, FileNames("bench", "run", 0, 0, 0))
        for number, batch in enumerate(rows(source, gigabytes)):
            if partitions > 1:
                numbers = [(number * 7 + row * 7919) % partitions for row in range(batch.num_rows)]
                batch = batch.append_column("p", pa.array(numbers, pa.int32()))
            writer.write(batch)
        writer.finish()


def consume(source: str, gigabytes: float) -> None:
    for _ in rows(source, gigabytes):
        pass


def rows(source: str, gigabytes: float) -> Iterator[pa.RecordBatch]:
    """Yield batches that own their memory, like those that Spark sends through a socket."""
    size_bytes = 0
    while True:
        with pq.ParquetFile(source) as parquet:
            for read in parquet.iter_batches(BATCH_ROWS):
                batch = read.cast(_small(read.schema))
                message = batch.serialize().to_pybytes()
                yield pa.ipc.read_record_batch(pa.py_buffer(message), batch.schema)
                size_bytes += batch.nbytes
                if size_bytes > gigabytes * 1e9:
                    return


def _small(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field for field in schema]
    )
