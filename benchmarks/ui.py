"""Measures the page of `penstock ui` on a store with many streams, over HTTP.

Bulk SQL creates the streams as for `many_streams`. The page is served by a process of its own. Each path is
asked several times, one request after the other.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from urllib.request import urlopen

from benchmarks.many_streams import BATCHES, STREAMS, add_streams
from benchmarks.measure import Options, print_progress
from benchmarks.postgres import postgres_url
from benchmarks.report import Report
from servers.ports import free_port, wait_for

from penstock.committers.store.sql import open_store

REPEATS = 10
SECONDS_MAX = 1.0
PATHS = {
    "the first page": "/",
    "the last page": "/?page=1000000",
    "a search": "/?q=stream777&sort=name",
    "a state and a destination, by rows": "/?only=IDLE&kind=http&sort=rows",
}


def run(options: Options) -> Report:
    count = options.rows or (1_000 if options.is_quick else STREAMS)
    report = Report(
        "ui",
        "The page of many streams",
        f"`penstock ui` on a store with {count:,} streams of {BATCHES} committed batches each, made by SQL: "
        "half decoupled to an HTTP service, half coupled into Delta tables. A page lists 50 streams. Seconds "
        f"from the request to the whole answer, {REPEATS} requests each, after one that is not measured.",
    )
    rows: list[tuple[object, ...]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-ui-")))
        for database in ("sqlite", "postgres"):
            if options.wants(database):
                url = f"sqlite:///{folder}/penstock.db"
                url = url if database == "sqlite" else stack.enter_context(postgres_url())
                with open_store(url) as store:
                    add_streams(store, folder, count)
                print_progress(f"  {database}: {count:,} streams")
                with _served(url, folder) as address:
                    rows += _measured(report, database, address)
    report.table(("database", "what", "seconds, p50", "longest", "KiB"), rows)
    return report


def _measured(report: Report, database: str, address: str) -> Iterator[tuple[object, ...]]:
    first = _asked(f"{address}/")
    stream = re.search(r'href="(/streams/[^"]+)"', first.decode())
    assert stream is not None
    for name, path in {**PATHS, "one stream": stream[1]}.items():
        _asked(address + path)
        seconds = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            answer = _asked(address + path)
            seconds.append(time.perf_counter() - began)
        print_progress(f"  {database}, {name}: {median(seconds):.3f} s")
        report.bound(f"{database}: {name}", max(seconds), "<=", SECONDS_MAX, " s")
        yield database, name, median(seconds), max(seconds), len(answer) / 1024


def _asked(url: str) -> bytes:
    with urlopen(url) as response:
        content: bytes = response.read()
    return content


@contextmanager
def _served(store: str, folder: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "penstock.cli", "ui", "--store", store, "--port", str(port)]
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_for(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
