"""What tests of the delivery process share: a decoupled stream with prepared batches, and its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.stored_lake import YOUNG, Lake

from penstock.committers.store.sql import open_store
from penstock.committers.store.status import StreamStatus
from penstock.datasource.stored.table_access import TableAccess
from penstock.delivery.attempts import DeliveryListener, DeliveryReport, ServiceSettings
from penstock.delivery.context import DeliveryContext
from penstock.delivery.service import DeliveryService
from penstock.testing.conformance import Query

QUERY = "8d9a1c2b-5a0f-4f4e-9d3e-000000000001"
SOON: dict[str, Any] = {"deliverAfterSeconds": "1"}
NO_SECRETS = TableAccess({}, {})
QUICK = ServiceSettings(poll_s=0.05, lease_s=2.0, maintains=False)


class DecoupledLake(Lake):
    """A decoupled stream whose batches are prepared, with two rows each."""

    def decouple(self, checkpoint: str = "", **options: str) -> None:
        """Register the stream with these options and the table's own, as the start of its query does."""
        given = {**self.lake.options, **options}
        settings = {"delivery": "decoupled", "checkpoint": checkpoint, "options": given}
        self.store.register_stream(self.stream, self.kind, "ids", self.table_id, json.dumps(settings))

    def decouple_another(self, query_id: str) -> None:
        """Register a stream of another query into the same table, without batches."""
        key = replace(self.stream, query_id=query_id)
        self.store.register_stream(key, self.kind, "ids", self.table_id, self.status.settings)

    def fill(self, batches: int, first: int = 0) -> None:
        for batch_id in range(first, first + batches):
            self.prepare(batch_id, self.write(batch_id, YOUNG))

    @property
    def status(self) -> StreamStatus:
        (status,) = [one for one in self.store.streams() if one.key == self.stream]
        return status

    @property
    def left(self) -> int:
        return self.store.deliveries.backlog(self.stream).batches

    def row_ids(self) -> list[object]:
        return [row[0] for row in self.rows()]


def decoupled(folder: Path, kind: str = "delta", batches: int = 4, **options: str) -> DecoupledLake:
    lake = DecoupledLake(folder, None, QUERY, kind)
    lake.decouple(**options)
    lake.fill(batches)
    return lake


class QueryBacklog:
    """The decoupled batches of a query into any destination, with two rows for each task.

    Args:
        store_url: None for SQLite
    """

    def __init__(self, query: Query, folder: Path, store_url: str | None = None) -> None:
        self.store_url = store_url or f"sqlite:///{folder}/store.db"
        self.store = open_store(self.store_url)
        self.query = query.with_options(delivery="decoupled", schemaEvolution="addColumns")
        self.columns = ["id"]
        self.batches = self.rows = 0

    def add_column(self) -> None:
        self.columns.append("twice")

    def fill(self, batches: int, first: int = 0, *, tasks: int = 1, overwrite: bool = False) -> None:
        """As the driver does it.

        Args:
            first: the number of batches before, at least
        """
        assert self.batches >= first
        for _ in range(batches):
            parts = [self._part() for _ in range(tasks)]
            batch = self.query.batch(self.batches)
            self.query.run(self.store, batch, *parts, overwrite=overwrite)
            self.batches += 1

    def _part(self) -> pa.Table:
        ids = [self.rows + 1, self.rows + 2]
        self.rows += 2
        return pa.table({name: pa.array(ids, pa.int64()) for name in self.columns})

    @property
    def status(self) -> StreamStatus:
        return self.query.status(self.store)

    @property
    def left(self) -> int:
        """Batches that wait."""
        return self.store.deliveries.backlog(self.status.key).batches


class RecordingListener(DeliveryListener):
    """Keeps all events."""

    def __init__(self) -> None:
        self.reports: list[DeliveryReport] = []
        self.failures: list[tuple[StreamStatus, Exception, float | None]] = []
        self.polls: list[int] = []

    def on_poll(self, store: str, streams: Sequence[StreamStatus], now: datetime) -> None:
        self.polls.append(len(streams))

    def on_delivery(self, report: DeliveryReport) -> None:
        self.reports.append(report)

    def on_failure(self, stream: StreamStatus, error: Exception, wait_s: float | None) -> None:
        self.failures.append((stream, error, wait_s))

    @property
    def triggers(self) -> list[str]:
        return [report.delivered.delivery.trigger for report in self.reports]


def context_of(
    *listeners: DeliveryListener, settings: ServiceSettings = QUICK, stop: threading.Event | None = None
) -> DeliveryContext:
    return DeliveryContext(
        access=NO_SECRETS, settings=settings, listeners=listeners, stop=stop or threading.Event()
    )


@contextmanager
def serving(
    lake: Lake, *listeners: DeliveryListener, settings: ServiceSettings = QUICK
) -> Iterator[threading.Thread]:
    """A delivery service on the lake's store, which ends with the block."""
    stop = threading.Event()
    service = DeliveryService(lake.store, context_of(*listeners, settings=settings, stop=stop))
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def wait_until(is_so: Callable[[], bool], seconds: float = 120.0) -> None:
    ends_at = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < ends_at, "time-out"
        time.sleep(0.02)


def start_cli(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    """`penstock` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
