"""Measures commands and an idle delivery process on a store with many streams.

Bulk SQL creates the streams: half of them send requests and are delivered by a delivery process, half write
Delta tables coupled. Nothing is pending. Each command runs in a process of its own, as an operator or cron
starts it. Then the driver of a coupled stream deletes a long history of old records.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import sqlalchemy as sa
from benchmarks.histories import add_history, execute
from benchmarks.measure import Options, print_progress
from benchmarks.postgres import postgres_url
from benchmarks.report import Report
from benchmarks.store import manifest_of

from penstock.committers.contract import Batch, StreamKey
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.committers.store.tables import deliveries, manifests, metadata, progress, streams
from penstock.datasource.committing import PRUNING_S, prune
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink

STREAMS = 10_000
BATCHES = 20
"""Committed batches of each stream."""
OLD_BATCHES = 100_000
"""Of the one stream whose old records are deleted."""
PRUNINGS_MAX = 100
TIMEOUT_S = 600.0
IDLE_S, IDLE_AFTER_S = 60.0, 30.0
"""How long the idle process is measured, and how long after its start."""
AGO = timedelta(hours=2)
"""When the batches were committed."""


@dataclass(frozen=True)
class Spent:
    """What one command took."""

    seconds: float
    cpu: float
    """Processor seconds of the command, without the database server."""
    has_ended: bool = True

    @property
    def shown(self) -> str:
        return f"{self.seconds:,.1f}" if self.has_ended else f"over {self.seconds:,.0f}"


COMMANDS = {
    "status": (("status",), 3.0),
    "status --json": (("status", "--json"), 3.0),
    "gc": (("gc",), None),
    "deliver --once, first": (("deliver", "--once"), 5.0),
    "deliver --once, again": (("deliver", "--once"), 5.0),
}
"""The command, and its bound in seconds."""
IDLE_SHARE_MAX = 5.0


def run(options: Options) -> Report:
    count = options.rows or (1_000 if options.is_quick else STREAMS)
    report = Report(
        "many_streams",
        "Many streams in one store",
        f"A store with {count:,} streams of {BATCHES} committed batches each, made by SQL: half decoupled to "
        "an HTTP service, half coupled into Delta tables. Nothing is pending, no stream was ever maintained. "
        "Seconds of each command with the start of its process. Processor seconds are without the database "
        "server; the targets apply to them, as other programs of the machine do not affect them.",
    )
    rows: list[tuple[object, ...]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-streams-")))
        for database in ("sqlite", "postgres"):
            if options.wants(database):
                url = f"sqlite:///{folder}/penstock.db"
                url = url if database == "sqlite" else stack.enter_context(postgres_url())
                with open_store(url) as store:
                    add_streams(store, folder, count)
                print_progress(f"  {database}: {count:,} streams")
                rows += _measured(report, database, url, folder)
        report.table(("database", "what", "seconds", "processor seconds"), rows)
        _report_pruning(report, folder, 10_000 if options.is_quick else OLD_BATCHES)
    return report


def _report_pruning(report: Report, folder: Path, old: int) -> None:
    """Commit batches of a coupled stream whose store has a long history."""
    url = f"sqlite:///{folder}/old.db"
    sink = DeltaSink(DeltaOptions(path=f"{folder}/old", store=url))
    rows = []
    with open_store(url) as store:
        stream = StreamKey(f"{0:08d}-2222-3333-4444-555555555555", f"{folder}/old")
        store.register_stream(stream, "delta")
        add_history(store, manifest_of(old), old, datetime.now(timezone.utc) - timedelta(days=30))
        for number in range(old, old + 100 * PRUNINGS_MAX, 100):
            started = time.perf_counter()
            prune(sink, store, Batch(stream, number, "d"))
            seconds = time.perf_counter() - started
            left = len(store.history(stream, old))
            rows.append((number, seconds, left))
            if left <= 1:
                break
    report.text(
        f"A coupled stream with {old:,} old batches and SQLite: each hundredth batch deletes old records "
        f"until none is left, or for {PRUNING_S:.0f} s."
    )
    report.table(("batch", "seconds", "records left"), rows)


def _measured(report: Report, database: str, url: str, folder: Path) -> Iterator[tuple[object, ...]]:
    for name, (command, seconds_max) in COMMANDS.items():
        spent = _run(*command, "--store", url, folder=folder)
        print_progress(f"  {database}, {name}: {spent.shown} s, {spent.cpu:.2f} s of a processor")
        if seconds_max is not None:
            report.bound(f"{database}: `{name}`", spent.cpu, "<=", seconds_max, " s of a processor")
        yield database, f"`{name}`", spent.shown, spent.cpu
    share = _idle_share(url, folder)
    print_progress(f"  {database}, idle: {share:.2f} % of a core")
    report.bound(f"{database}: idle delivery process", share, "<=", IDLE_SHARE_MAX, " % of a core")
    yield database, "idle delivery process, % of a core", share, ""


def _run(*arguments: str, folder: Path) -> Spent:
    before, started = _cpu_of_children(), time.perf_counter()
    process = _start(*arguments, folder=folder)
    try:
        process.wait(TIMEOUT_S)
        has_ended = True
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        has_ended = False
    return Spent(time.perf_counter() - started, _cpu_of_children() - before, has_ended)


def _idle_share(url: str, folder: Path) -> float:
    """Return the percentage of a core that a delivery process with nothing to deliver takes."""
    process = _start("deliver", "--store", url, folder=folder)
    try:
        time.sleep(IDLE_AFTER_S)
        before = _cpu_of(process.pid)
        time.sleep(IDLE_S)
        return (_cpu_of(process.pid) - before) / IDLE_S * 100
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(*arguments: str, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", *arguments], stdout=output, stderr=output
        )


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_of(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Streams ------------------------------------------------------------------------------------------------


def add_streams(store: SqlManifestStore, folder: Path, count: int, batches: int = BATCHES) -> None:
    """Add streams with committed batches; those with an even number are decoupled."""
    at = datetime.now(timezone.utc) - AGO
    with store.engine.connect() as connection, connection.begin():
        rows = [_stream(number, folder, batches, at) for number in range(count)]
        connection.execute(sa.insert(streams), rows)
        ids = connection.execute(sa.select(streams.c.id, streams.c.kind)).all()
        for first in range(0, len(ids), 1000):
            some = ids[first : first + 1000]
            rows = [_manifest(one, batch, at) for one, _ in some for batch in range(batches)]
            connection.execute(sa.insert(manifests), rows)
            decoupled = [one for one, kind in some if kind == "http"]
            connection.execute(sa.insert(deliveries), [_delivery(one, batches, at) for one in decoupled])
            connection.execute(sa.insert(progress), [_progress(one, batches, at) for one in decoupled])
    for table in metadata.sorted_tables:
        execute(store, f"ANALYZE {table.name}")


def _stream(number: int, folder: Path, batches: int, at: datetime) -> dict[str, object]:
    is_decoupled = number % 2 == 0
    uri = f"https://service.example/rows/{number}" if is_decoupled else f"{folder}/tables/{number}"
    options = {"url": uri, "rowLog": f"{folder}/logs/{number}"} if is_decoupled else {"path": uri}
    settings = {"delivery": "decoupled", "checkpoint": f"{folder}/checkpoints/{number}", "options": options}
    return {
        "query_id": f"{number:08d}-2222-3333-4444-555555555555",
        "table_uri": uri,
        "kind": "http" if is_decoupled else "delta",
        "query_name": f"stream{number}",
        "created_at": at,
        "table_id": "",
        "table_version": batches,
        "table_batch_id": batches - 1,
        "committed_batches": batches,
        "committed_rows": 100 * batches,
        "committed_bytes": 1000 * batches,
        "settings": json.dumps(settings) if is_decoupled else "",
        "tries": 0,
        "error": "",
        "isolate_until": -1,
        "parked_by": "",
        "parked_why": "",
        "pruned_up_to": -1,
    }


_OF_BATCHES = {
    "kind": "http",
    "version": 1,
    "files": 1,
    "is_empty": False,
    "content_sha256": "0" * 64,
    "reason": "",
}


def _manifest(stream_id: int, batch_id: int, at: datetime) -> dict[str, object]:
    return {
        **_OF_BATCHES,
        "stream_id": stream_id,
        "batch_id": batch_id,
        "state": "COMMITTED",
        "digest": f"{batch_id:064d}",
        "rows": 100,
        "size_bytes": 1000,
        "run_id": "r1",
        "prepared_at": at,
        "finished_at": at,
        "table_version": batch_id,
    }


def _delivery(stream_id: int, batches: int, at: datetime) -> dict[str, object]:
    return {
        **_OF_BATCHES,
        "stream_id": stream_id,
        "first_batch_id": 0,
        "last_batch_id": batches - 1,
        "digest": f"{batches - 1:064d}",
        "batches": batches,
        "state": "COMMITTED",
        "trigger": "age",
        "is_compacted": False,
        "rows": 100 * batches,
        "size_bytes": 1000 * batches,
        "source_files": batches,
        "source_bytes": 1000 * batches,
        "oldest_prepared_at": at,
        "fence": 1,
        "prepared_at": at,
        "finished_at": at,
        "table_version": batches,
        "content": b"",
    }


def _progress(stream_id: int, batches: int, at: datetime) -> dict[str, object]:
    given = {"revision": batches, "batch_id": batches - 1, "digest": f"{batches - 1:064d}", "changed_at": at}
    return {"stream_id": stream_id, **given, "next_digest": "", "next_rows_id": "", "next_position": 0}
