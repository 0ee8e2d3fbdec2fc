"""Benchmark of decoupled delivery: a query with one batch per second, and a table of few, large files.

    python -m benchmarks.delivery [--minutes 10] [--outage-seconds 120] [--write]

One Spark writes the same rows, in 4 tasks per batch, into three tables at once:

    coupled      Delta: each batch is a table commit
    decoupled    Delta: a delivery process commits and compacts
    outage       Iceberg in a REST catalog, decoupled; the catalog hangs in the middle of the run

Another engine than the writer reads each table every few seconds. At the end Spark is killed with SIGKILL and
not started again; all prepared batches must still be delivered. The exit code is 1 if a target is missed.
`--write` puts the report into docs/benchmarks/.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
from benchmarks.delivery.batches import STREAM_HEADER, batches_of, plot, stream_row
from benchmarks.delivery.processes import process, wait_for
from benchmarks.report import Report, write_index
from servers.maven import MavenUnreachableError
from servers.started import Servers

from penstock.committers.contract import StreamKey
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing import DeltaTable, IcebergTable
from penstock.testing.table import Table

TASKS, ROWS_PER_SECOND = 4, 400
DELIVER_AFTER_S = 60
READ_EVERY_S = 5
FILES_MAX, COMMITS_MAX = 40, 20
FRESHNESS_SLACK_S = 10
DELIVERY_TIMEOUT_S = 180
PACE_MIN = 0.9
"""The three streams and their readers share the machine, so a batch may take more than a second."""


@dataclass
class Target:
    """A table, its sink, and the results of its reads."""

    name: str
    table: Table
    format: str
    options: Mapping[str, str]
    is_decoupled: bool
    catalog: Mapping[str, str] = field(default_factory=dict)
    """Catalog properties for the delivery process."""
    root: Path = Path()
    reads: int = 0
    problems: list[str] = field(default_factory=list)
    rows: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delivery", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--outage-seconds", type=float, default=120)
    parser.add_argument("--write", action="store_true", help="put the report into docs/benchmarks/")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, ExitStack() as stack:
        servers = stack.enter_context(Servers(Path(folder)))
        report = run(Path(folder), servers, arguments.minutes * 60, arguments.outage_seconds)
    print(report.markdown)
    if arguments.write:
        report.write()
        write_index()
    return 0 if report.holds else 1


def run(root: Path, servers: Servers, seconds: float, outage_s: float) -> Report:
    targets = list(_targets(root, servers))
    journal, store_url = root / "journal.jsonl", f"sqlite:///{root}/store.sqlite"
    settings = {
        "rows_per_second": ROWS_PER_SECOND,
        "tasks": TASKS,
        "journal": str(journal),
        "sinks": {
            one.name: {"format": one.format, "options": _all_options(one, root, store_url)} for one in targets
        },
    }
    driver = [sys.executable, "-m", "benchmarks.delivery.driver", json.dumps(settings)]
    with ExitStack() as stack:
        log = stack.enter_context((root / "processes.log").open("w"))
        spark = stack.enter_context(process(driver, log))
        wait_for(lambda: journal.exists(), 120, "the first batch", root)
        with open_store(store_url) as store:
            wait_for(lambda: len(store.streams()) == len(targets), 120, "all streams", root)
        delivery = stack.enter_context(process(_deliver(store_url, targets), log))
        stop = threading.Event()
        readers = [threading.Thread(target=_read, args=(one, stop), daemon=True) for one in targets]
        for reader in readers:
            reader.start()
        _run_with_outage(seconds, outage_s, servers if len(targets) > 2 else None, journal)
        os.killpg(spark.pid, signal.SIGKILL)
        spark.wait()
        with open_store(store_url) as store:
            wait_for(lambda: not _pending(store), DELIVERY_TIMEOUT_S, "the last deliveries", root)
            time.sleep(1)
            stop.set()
            for reader in readers:
                reader.join()
            delivery.send_signal(signal.SIGTERM)
            ended = delivery.wait(60)
            return _report(targets, store, journal, ended, outage_s)


# Processes ------------------------------------------------------------------------------------------


def _targets(root: Path, servers: Servers) -> Iterator[Target]:
    for name, is_decoupled in (("coupled", False), ("decoupled", True)):
        folder = root / name
        options = {"path": str(folder)}
        yield Target(name, DeltaTable(folder), "penstock.delta", options, is_decoupled, root=root)
    try:
        catalog, _ = servers.rest_catalog()
    except MavenUnreachableError as error:
        print(f"The catalog outage is not measured: {error}", file=sys.stderr)
        return
    properties = catalog.properties
    options = {"table": "bench.rows", "catalog": "rest", **{f"catalog.{k}": v for k, v in properties.items()}}
    table = IcebergTable("bench.rows", catalog="rest", catalog_properties=properties)
    yield Target("outage", table, "penstock.iceberg", options, True, properties, root)


def _all_options(target: Target, root: Path, store_url: str) -> dict[str, str]:
    options = {
        **target.options,
        "checkpointLocation": str(root / f"{target.name}-checkpoint"),
        "store": store_url,
    }
    if target.is_decoupled:
        options |= {"delivery": "decoupled", "deliverAfterSeconds": str(DELIVER_AFTER_S), "eventTime": "at"}
    return options


def _deliver(store_url: str, targets: list[Target]) -> list[str]:
    command = [str(Path(sys.executable).with_name("penstock")), "deliver", "--store", store_url]
    for target in targets:
        for key, value in target.catalog.items():
            command += ["--catalog", f"{key}={value}"]
    return command


def _run_with_outage(seconds: float, outage_s: float, servers: Servers | None, journal: Path) -> None:
    """Wait while the streams run, and suspend the catalog in the middle."""
    before = max((seconds - outage_s) / 2, 0)
    _wait(before, journal)
    stopped = nullcontext() if servers is None else servers.rest_catalog()[1].stopped()
    with stopped:
        (journal.parent / "outage").write_text(json.dumps([time.time(), time.time() + outage_s]))
        _wait(outage_s, journal)
    _wait(max(seconds - before - outage_s, 0), journal)


def _wait(seconds: float, journal: Path) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 30))
        batches = sum(1 for line in journal.read_text().splitlines() if '"batch"' in line)
        print(f"{batches} batches", file=sys.stderr)


def _read(target: Target, stop: threading.Event) -> None:
    """Read the table repeatedly and check that each id up to the last one is there once."""
    while True:
        is_last = stop.wait(READ_EVERY_S)
        try:
            with duckdb.connect() as connection:
                relation = target.table.relation(connection)
                result = connection.sql(f"SELECT count(*), count(DISTINCT id), max(id) FROM {relation}")
                rows, distinct, last = result.fetchall()[0]
        except Exception as error:  # noqa: BLE001  the table does not exist yet, or the catalog is suspended
            if target.rows and not (target.catalog and _is_outage(target.root)):
                target.problems.append(f"could not be read: {error}")
        else:
            target.reads += 1
            target.rows = rows
            if rows != distinct or (rows and last != rows - 1):
                target.problems.append(f"{rows} rows, {distinct} ids up to {last}")
        if is_last:
            return


def _is_outage(root: Path) -> bool:
    """Return True if the catalog is suspended, or was when the read began."""
    noted = root / "outage"
    if not noted.exists():
        return False
    start, end = json.loads(noted.read_text())
    return bool(start <= time.time() <= end + 2 * READ_EVERY_S)


# The page -------------------------------------------------------------------------------------------


def _pending(store: SqlManifestStore) -> int:
    return sum(stream.pending for stream in store.streams())


def _stream(store: SqlManifestStore, name: str) -> StreamKey:
    return next(stream.key for stream in store.streams() if stream.query_name == name)


def _report(
    targets: list[Target], store: SqlManifestStore, journal: Path, exit_code: int, outage_s: float
) -> Report:
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    report = Report(
        "delivery",
        "One batch per second: coupled and decoupled delivery",
        "One Spark writes the same rows into three tables at once, in 4 tasks per batch. Then it is killed "
        "and not started again.",
        command="make bench-delivery",
    )
    rows: list[Sequence[object]] = []
    problems: list[str] = []
    medians: dict[str, float] = {}
    for target in targets:
        stream = _stream(store, target.name)
        batches = batches_of(target.name, lines)
        medians[target.name] = statistics.median(line["ms"] for line in batches)
        with duckdb.connect() as connection:
            version = target.table.read(connection)
        files, commits = len(version.live), len(version.tokens)
        rows.append(stream_row(target.name, batches, commits, files, target.rows, target.reads))
        prepared = sum(record.rows for record in store.history(stream, 100_000))
        report.bound(f"{target.name}: prepared rows that are in the table", prepared, "==", target.rows)
        report.bound(f"{target.name}: reads that failed or were wrong", len(target.problems), "==", 0)
        problems += [f"- {target.name}: {problem}" for problem in target.problems[:3]]
        if not target.is_decoupled:
            continue
        if target.name == "decoupled":
            report.bound("decoupled: files", files, "<=", FILES_MAX)
            report.bound("decoupled: table commits", commits, "<=", COMMITS_MAX)
            ages = sorted(_ages(store, stream))
            p95 = ages[int(0.95 * (len(ages) - 1))]
            report.bound(
                "decoupled: freshness p95, s", round(p95, 1), "<=", DELIVER_AFTER_S + FRESHNESS_SLACK_S
            )
        else:
            start, end = json.loads((journal.parent / "outage").read_text())
            during = [line for line in batches if start < line["time"] < end]
            slowest = max((line["ms"] for line in during), default=0.0)
            without = len(during) / (end - start)
            with_it = (len(batches) - len(during)) / (
                batches[-1]["time"] - batches[0]["time"] - (end - start)
            )
            what = f"outage: batches per second in {outage_s:.0f} s without a catalog, relative to with it"
            report.bound(what, round(without / with_it, 2), ">=", PACE_MIN)
            report.bound("outage: slowest batch during it, s", round(slowest / 1000, 1), "<=", 5)
    ratio = medians["decoupled"] / medians["coupled"]
    report.bound("decoupled: median batch time, relative to coupled", round(ratio, 2), "<=", 1.0)
    report.bound("delivery process: exit code after SIGTERM", exit_code, "==", 0)
    report.table(STREAM_HEADER, rows)
    report.text("Commits and files of the table in the catalog are those of its newest snapshots.")
    if problems:
        report.text("\n".join(problems))
    report.plot("The time of each batch", plot(lines))
    return report


def _ages(store: SqlManifestStore, stream: StreamKey) -> Iterator[float]:
    """Yield the seconds from prepare until readable of each delivered batch."""
    delivered_at = {one.delivery_id: one.finished_at for one in store.deliveries.recent(stream, 10_000)}
    for record in store.history(stream, 100_000):
        finished = delivered_at.get(record.delivery_id or -1)
        if finished is not None:
            yield (finished - record.prepared_at).total_seconds()


if __name__ == "__main__":
    sys.exit(main())
