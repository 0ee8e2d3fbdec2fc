"""Measures how fast Spark reads tables through Penstock, and how long it takes to plan many files."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks import data
from benchmarks.measure import Options, interleaved, medians, ratio
from benchmarks.report import Report
from benchmarks.spark.process import LOCAL, Spark, find_peers, started
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from penstock import reader

QUICK_ROWS = 600_000
FILES, QUICK_FILES = 100_000, 10_000
TWO = ("l_orderkey", "l_comment")
PARQUET = "Spark's Parquet reader"
LIMIT = "pyarrow"
SHARE_MIN = 0.9
PLANNING_S_MAX = 5.0
LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg"}
ID = Schema(NestedField(1, "id", LongType()))
THOUSANDS = PartitionField(1, 1000, TruncateTransform(1000), "thousand")


def run(options: Options) -> Report:
    wanted = options.rows or (QUICK_ROWS if options.is_quick else data.LINEITEM_ROWS)
    given = data.lineitem(wanted)
    source, rows = given.folder, sum(pq.read_metadata(file).num_rows for file in given.files)
    files = QUICK_FILES if options.is_quick else FILES
    peers = find_peers()
    report = Report(
        "reading",
        "Reading tables",
        f"{rows:,} rows of lineitem in tables that Penstock has written, read by {LOCAL} into nothing "
        f"(`noop`); medians of {options.repeat} interleaved runs. Spark's Parquet reader reads the same "
        f"files; so does `{LIMIT}`, a source in Python that hands pyarrow's batches to Spark as they are. "
        f"{peers.missing_reason}",
    )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        with started(LOCAL, peers) as spark:
            report.machine = spark.machine
            tables: Mapping[str, Mapping[str, str]] = spark.call(
                "write_tables", source=source, folder=Path(folder)
            )
            for kind, table in tables.items():
                own = [PARQUET, *([f"{kind}-spark"] if peers.has(f"{kind}-spark") else []), LIMIT, "Penstock"]
                _measure(report, options, spark, rows, kind, table, own)
        _measure_planning(report, options, files, Path(folder))
    return report


def _measure(
    report: Report,
    options: Options,
    spark: Spark,
    rows: int,
    kind: str,
    table: Mapping[str, str],
    readers: Sequence[str],
) -> None:
    lines = []
    for what, columns in (("all columns", ()), ("two columns", TWO)):
        cases = {one: partial(_read, spark, one, table, columns, rows) for one in readers}
        seconds = interleaved(cases, options.repeat, warm_up=1)
        for one, median in medians(seconds).items():
            lines.append((what, one, median, rows / median / 1e6, ratio(seconds, PARQUET, one)))
        if not columns:
            report.bound(
                f"{kind}, all columns: speed, times that of {PARQUET}",
                ratio(seconds, PARQUET, "Penstock"),
                ">=",
                SHARE_MIN,
            )
    report.text(f"## {kind.capitalize()}")
    report.table(("", "reader", "seconds", "million rows/s", f"times as fast as {PARQUET}"), lines)


def _read(spark: Spark, one: str, table: Mapping[str, str], columns: Sequence[str], rows: int) -> float:
    seconds, found = spark.call("read_table", reader=one, table=dict(table), columns=list(columns))
    assert found == rows, f"{one} has read {found:,} rows of {rows:,}"
    return float(seconds)


# Planning -------------------------------------------------------------------------------------------------


def _measure_planning(report: Report, options: Options, count: int, folder: Path) -> None:
    tables = {
        "delta": _many_delta_files(folder / "many", count),
        "iceberg": _many_iceberg_files(folder, "lake.many", count),
    }
    partitioned = _many_iceberg_files(folder, "lake.partitioned", count, PartitionSpec(THOUSANDS))
    where = {"where": "id >= 1000 AND id < 2000"}
    own = {
        "iceberg": {"1,000 files, by their partition": partial(_plan, "iceberg", partitioned, where, 1000)}
    }
    lines = []
    for kind, given in tables.items():
        cases = {
            "all files": partial(_plan, kind, given, {}, count),
            "one file, by its bounds": partial(_plan, kind, given, {"where": "id = 7"}, 1),
            **own.get(kind, {}),
        }
        library = {f"all files, by {LIBRARIES[kind]} alone": partial(_plan_of_library, kind, given, count)}
        for case, median in medians(interleaved({**cases, **library}, options.repeat)).items():
            lines.append((kind, case, median))
            if case in cases:
                report.bound(
                    f"{kind}, {count:,} files, {case}: seconds to plan", median, "<=", PLANNING_S_MAX, " s"
                )
    report.text(
        f"## Planning a table with {count:,} files\n\nIn a Python process that has the libraries loaded."
    )
    report.table(("table", "planned", "seconds"), lines)


def _plan(kind: str, given: Mapping[str, str], more: Mapping[str, str], expected: int) -> float:
    start = time.perf_counter()
    found = sum(1 for _ in reader.open_table(f"penstock.{kind}", {**given, **more}).files())
    seconds = time.perf_counter() - start
    assert found == expected, f"{found:,} files instead of {expected:,}"
    return seconds


def _plan_of_library(kind: str, given: Mapping[str, str], expected: int) -> float:
    start = time.perf_counter()
    if kind == "delta":
        found = DeltaTable(given["path"]).get_add_actions(flatten=True).num_rows
    else:
        found = sum(
            1 for _ in _catalog(Path(given["warehouse"])).load_table(given["table"]).scan().plan_files()
        )
    seconds = time.perf_counter() - start
    assert found == expected, f"{found:,} files instead of {expected:,}"
    return seconds


def _many_delta_files(table: Path, count: int) -> Mapping[str, str]:
    """Write a log of files that are not there, and a checkpoint of it."""
    DeltaTable.create(str(table), pa.schema([("id", pa.int64())]))
    entry = table / "_delta_log" / f"{1:020d}.json"
    entry.write_text("\n".join(json.dumps(action) for action in _adds(count)))
    DeltaTable(str(table)).create_checkpoint()
    return {"path": str(table)}


def _adds(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        bounds = {"minValues": {"id": number}, "maxValues": {"id": number}, "nullCount": {"id": 0}}
        yield {
            "add": {
                "path": f"part-{number:06}.parquet",
                "partitionValues": {},
                "size": 100_000_000,
                "modificationTime": 0,
                "dataChange": True,
                "stats": json.dumps({"numRecords": 1, **bounds}),
            }
        }


def _many_iceberg_files(
    folder: Path, name: str, count: int, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
) -> Mapping[str, str]:
    """Commit files that are not there, a thousand to a manifest."""
    warehouse = folder / "warehouse"
    warehouse.mkdir(exist_ok=True)
    catalog = _catalog(warehouse)
    catalog.create_namespace_if_not_exists("lake")
    table = catalog.create_table(name, ID, partition_spec=spec)
    for first in range(0, count, 5000):
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for number in range(first, min(first + 5000, count)):
                partition = Record(*(number // 1000 * 1000 for _ in spec.fields))
                append.append_data_file(_data_file(table.location(), number, partition))
    return {"warehouse": str(warehouse), "table": name}


def _catalog(warehouse: Path) -> SqlCatalog:
    uri = f"sqlite:///{warehouse}/catalog.sqlite"
    return SqlCatalog("penstock", uri=uri, warehouse=f"file://{warehouse}")


def _data_file(location: str, number: int, partition: Record) -> DataFile:
    bound = number.to_bytes(8, "little")
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{location}/data/part-{number:06}.parquet",
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=1,
        file_size_in_bytes=100_000_000,
        value_counts={1: 1},
        null_value_counts={1: 0},
        lower_bounds={1: bound},
        upper_bounds={1: bound},
    )
    file.spec_id = 0
    return file
