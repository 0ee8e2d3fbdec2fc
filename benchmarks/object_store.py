"""Measures requests and time of a small batch into a table on S3.

The server is moto's, on the loopback. Each batch has one file; no commit opens it, so it is not written. The
benchmark alternates with commits of the same file into another table by the table library alone.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.commits import commit_by_deltalake, commit_by_pyiceberg
from benchmarks.measure import Options, print_progress
from benchmarks.report import Report, lines
from benchmarks.streams import Stream, named_files
from pyiceberg.catalog import load_catalog
from servers.s3 import BUCKET, s3_properties, s3_server

from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink

ROUNDS, QUICK_ROUNDS = 60, 12
FIRST = 2
"""Rounds that are not counted: they create the table and load libraries."""
LOGGED_S = 0.05
"""The server logs a request after its response."""
REQUESTS_MAX = 10

OURS = ("penstock.delta", "penstock.iceberg")
_Commit = Callable[[], object]
_REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) (/\S*) HTTP/")


@dataclass(frozen=True)
class Round:
    """One commit."""

    requests: Counter[str]
    ms: float

    @property
    def count(self) -> int:
        return sum(self.requests.values())


def run(options: Options) -> Report:
    rounds = options.rows or (QUICK_ROUNDS if options.is_quick else ROUNDS)
    report = Report(
        "object_store",
        "A small batch into a table on S3",
        "Batches of one file, planned and committed as on Spark's driver in a process that runs as long as "
        "the stream, with default settings; Iceberg has a SQL catalog. The benchmark alternates with commits "
        "of the same file into another table by the library alone (`deltalake`: load, "
        "`create_write_transaction`; `pyiceberg`: load, `fast_append`), without a plan or a token. The "
        "server is moto's on this machine, so the milliseconds are the server's; over a network each request "
        "takes tens of milliseconds. Spark plans and commits in two processes, which needs two more "
        "requests, because one reads what the other has written. The data files do not exist.",
    )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        log = Path(folder, "requests.log")
        with log.open("wb") as log_file, s3_server(log=log_file) as storage, log.open("rb") as requests:
            commits = {**_delta(Path(folder), storage), **_iceberg(Path(folder), storage)}
            measured: dict[str, list[Round]] = {name: [] for name in commits}
            for number in range(rounds):
                for name, commit in commits.items():
                    measured[name].append(_measure(commit, requests))
                counts = ", ".join(f"{name} {taken[-1].count}" for name, taken in measured.items())
                print_progress(f"  batch {number}: requests of {counts}")
    _report_results(report, {name: taken[FIRST:] for name, taken in measured.items()})
    return report


def _delta(folder: Path, storage: Mapping[str, str]) -> dict[str, _Commit]:
    def stream(name: str) -> Stream:
        location, store = f"s3://{BUCKET}/{name}", f"sqlite:///{folder}/{name}.db"
        return Stream(DeltaSink(DeltaOptions(path=location, store=store, storage_options=dict(storage))))

    ours, others, file = stream("ours"), stream("others"), named_files("delta", 1)
    others.run(file)
    return {
        "penstock.delta": lambda: ours.run(file),
        "deltalake alone": lambda: commit_by_deltalake(others, 1),
    }


def _iceberg(folder: Path, storage: Mapping[str, str]) -> dict[str, _Commit]:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"s3://{BUCKET}/warehouse",
        **s3_properties(storage),
    }

    def stream(name: str) -> Stream:
        store = f"sqlite:///{folder}/{name}.db"
        return Stream(
            IcebergSink(IcebergOptions(table=f"bench.{name}", store=store, catalog_properties=properties))
        )

    ours, others, file = stream("ours"), stream("others"), named_files("iceberg", 1)
    others.run(file)
    catalog = load_catalog("default", **properties)
    return {
        "penstock.iceberg": lambda: ours.run(file),
        "pyiceberg alone": lambda: commit_by_pyiceberg(others, catalog, "bench.others", 1),
    }


def _measure(commit: Callable[[], object], requests: IO[bytes]) -> Round:
    time.sleep(LOGGED_S)
    requests.read()
    started = time.perf_counter()
    commit()
    ms = (time.perf_counter() - started) * 1000
    time.sleep(LOGGED_S)
    return Round(Counter(_kind(*found) for found in _REQUEST.findall(requests.read())), ms)


def _kind(method: bytes, path: bytes) -> str:
    if b"list-type" in path:
        return "LIST"
    return method.decode()


def _report_results(report: Report, measured: dict[str, list[Round]]) -> None:
    for name in OURS:
        requests = statistics.median(one.count for one in measured[name])
        report.bound(f"requests of a batch, median, {name}", requests, "<=", REQUESTS_MAX)
    kinds = sorted({kind for taken in measured.values() for one in taken for kind in one.requests})
    report.table(
        ("", "ms", "requests", "at most", *kinds),
        (
            (
                f"`{name}`",
                statistics.median(one.ms for one in taken),
                statistics.median(one.count for one in taken),
                max(one.count for one in taken),
                *(statistics.median(one.requests[kind] for one in taken) for kind in kinds),
            )
            for name, taken in measured.items()
        ),
    )
    report.text(
        "The maximum of Delta is a batch with a log checkpoint, for which the library reads the table. "
        "Between log checkpoints, the library alone reads each later entry more than once. In Iceberg, three "
        "requests delete the oldest metadata file once the table has more than it keeps; a batch does not "
        "wait for Penstock's."
    )
    series = {name: (_numbers(taken), [one.count for one in taken]) for name, taken in measured.items()}
    report.plot("Requests of each batch", lines(series, "batch", "requests"))


def _numbers(taken: Sequence[Round]) -> list[int]:
    return list(range(FIRST, FIRST + len(taken)))
