"""What a small batch into a Delta table on S3 asks of the object store: requests, and time.

The server is moto's, on the loopback. Each batch has one file, which no commit opens, so none is written. In
turn with it the same file committed into another table by the Delta library alone.
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

from benchmarks.commits import commit_by_deltalake
from benchmarks.measure import Options, say
from benchmarks.report import Report, lines
from benchmarks.streams import Stream, named_files
from tests.s3_server import BUCKET, s3_server

from penstock.datasource.options.delta import DeltaOptions
from penstock.datasource.sinks.delta import DeltaSink

ROUNDS, QUICK_ROUNDS = 60, 12
FIRST = 2
"""Rounds that do not count: the table is created, libraries are loaded."""
LOGGED_S = 0.05
"""The server tells of a request after it has answered."""
REQUESTS_MAX = 10

OURS, LIBRARY = "penstock.delta", "deltalake alone"
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
        "A small batch into a Delta table on S3",
        "Batches of one file, planned and committed as on Spark's driver in a process that lives as long as "
        "the stream, with default settings; in turn with as many of the same file into another table "
        "by the library alone (`deltalake`: load, `create_write_transaction`), which neither plans nor looks "
        "for a token. The server is moto's on this machine, so the milliseconds are its own: over a network "
        "each request costs tens of them. Spark plans in another process than it commits in, which takes two "
        "requests more: the one reads what the other has written. Files are named and never written.",
    )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        log = Path(folder, "requests.log")
        with log.open("wb") as told, s3_server(log=told) as storage, log.open("rb") as requests:
            ours, others = (_stream(name, Path(folder), storage) for name in ("ours", "others"))
            file = named_files("delta", 1)
            others.run(file)
            commits: dict[str, Callable[[], object]] = {
                OURS: lambda: ours.run(file),
                LIBRARY: lambda: commit_by_deltalake(others, 1),
            }
            measured: dict[str, list[Round]] = {name: [] for name in commits}
            for number in range(rounds):
                for name, commit in commits.items():
                    measured[name].append(_measure(commit, requests))
                counts = ", ".join(f"{name} {taken[-1].count}" for name, taken in measured.items())
                say(f"  batch {number}: requests of {counts}")
    _tell(report, {name: taken[FIRST:] for name, taken in measured.items()})
    return report


def _stream(name: str, folder: Path, storage: Mapping[str, str]) -> Stream:
    return Stream(
        DeltaSink(
            DeltaOptions(
                path=f"s3://{BUCKET}/{name}",
                store=f"sqlite:///{folder}/{name}.db",
                storage_options=dict(storage),
            )
        )
    )


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
    what = "log checkpoint" if path.endswith((b".parquet", b"_last_checkpoint")) else "log entry"
    return f"{method.decode()} {what}"


def _tell(report: Report, measured: dict[str, list[Round]]) -> None:
    ours = [one.count for one in measured[OURS]]
    report.bound("requests of a batch, median", statistics.median(ours), "<=", REQUESTS_MAX)
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
        "At most: with a log checkpoint, which the library reads the table for. Between two of them the "
        "library alone reads each entry since the last one, more than once."
    )
    series = {name: (_numbers(taken), [one.count for one in taken]) for name, taken in measured.items()}
    report.plot("Requests of each batch", lines(series, "batch", "requests"))


def _numbers(taken: Sequence[Round]) -> list[int]:
    return list(range(FIRST, FIRST + len(taken)))
