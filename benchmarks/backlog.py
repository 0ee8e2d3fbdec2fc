"""Measures how long the delivery of a backlog takes, by its length, without the destination.

Bulk SQL prepares the batches; then the delivery process reads, merges and marks them. Batches without rows
are delivered many at a time, and batches whose tasks have sent their rows one at a time. Neither needs the
service.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.histories import add_backlog
from benchmarks.measure import Options, print_progress
from benchmarks.postgres import postgres_url
from benchmarks.report import Report

from penstock.committers.contract import Batch, Manifest, StreamKey
from penstock.committers.requests.content import BATCHES_MAX, RequestManifests
from penstock.committers.requests.contract import Sent
from penstock.committers.store.sql import open_store
from penstock.datasource.http.sink import DESTINATION
from penstock.datasource.plug_ins import load
from penstock.datasource.settings import register_stream
from penstock.datasource.stored.table_access import TableAccess
from penstock.delivery.attempts import DeliveryListener, DeliveryReport, ServiceSettings
from penstock.delivery.context import DeliveryContext
from penstock.delivery.drain import drain

LENGTHS = (5_000, 20_000, 50_000)
RATIO_MAX = 1.5
QUERY = "11111111-2222-3333-4444-555555555555"
URL = "http://localhost:9/rows"
MANIFESTS = RequestManifests("http")
BATCH = Batch(StreamKey(QUERY, URL), 0, "")
WAYS = {
    "many at a time": (MANIFESTS.encode_files(BATCH, []), 4 * BATCHES_MAX),
    "one at a time": (MANIFESTS.encode_sent(BATCH, [Sent(1, 8)]), 100),
}
"""Manifests, and the number of batches to deliver."""


class StopAfter(DeliveryListener):
    """Stops the delivery after so many batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches
        self.context: DeliveryContext | None = None

    def on_delivery(self, report: DeliveryReport) -> None:
        self.left -= len(report.delivered.delivery.manifest.batches)
        if self.left <= 0 and self.context is not None:
            self.context.stop.set()


def run(options: Options) -> Report:
    report = Report(
        "backlog",
        "Delivery of a long backlog",
        "Processor seconds of the delivery process for 1,000 batches, by the number of batches that wait, "
        "without the database server and without what the destination needs. Many at a time: the first four "
        f"deliveries, of {BATCHES_MAX:,} batches each. One at a time: the first 100 deliveries.",
    )
    lengths = [length // 10 for length in LENGTHS] if options.is_quick else LENGTHS
    measured: dict[str, dict[int, float]] = {}
    for database in ("sqlite", "postgres"):
        for way, (manifest, batches) in WAYS.items():
            if options.wants(database):
                name = f"{database}, {way}"
                measured[name] = {
                    length: _delivered(database, manifest, length, batches) for length in lengths
                }
    shortest, longest = lengths[0], lengths[-1]
    for name, by_length in measured.items():
        what = f"{name}: {longest:,} batches relative to {shortest:,}"
        report.bound(what, by_length[longest] / by_length[shortest], "<=", RATIO_MAX)
    report.table(
        ("database, deliveries", *(f"{length:,} batches wait" for length in lengths)),
        ((name, *by_length.values()) for name, by_length in measured.items()),
    )
    return report


def _delivered(database: str, manifest: Manifest, length: int, batches: int) -> float:
    """Return the processor seconds for 1,000 batches."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-backlog-")))
        url = f"sqlite:///{folder}/store.db"
        if database == "postgres":
            url = stack.enter_context(postgres_url())
        store = stack.enter_context(open_store(url))
        given = {"url": URL, "delivery": "decoupled", "checkpointlocation": str(folder / "checkpoint")}
        sink: Any = load(DESTINATION.data_source)(given).sink()
        register_stream(sink, store, StreamKey(QUERY, sink.table_uri))
        add_backlog(store, manifest, length, datetime.now(timezone.utc))
        listener = StopAfter(min(batches, length))
        context = DeliveryContext(
            access=TableAccess({}, {}), settings=ServiceSettings(maintains=False), listeners=[listener]
        )
        listener.context = context
        started = time.process_time()
        (drained,) = drain(store, context)
        spent_s = (time.process_time() - started) * 1000 / drained.batches
        if drained.error or drained.failure or listener.left > 0:
            raise RuntimeError(f"the backlog was not delivered: {drained}")
    print_progress(f"  {database}, {batches:,} of {length:,}: {spent_s:.2f} s")
    return spent_s
