"""A store as an operator may find it, made by the calls of queries and delivery processes."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

import pyarrow as pa

from penstock.committers.contract import NO_LETTERS, Batch, DataFile, Manifest, ManifestState, StreamKey
from penstock.committers.dead_letters import dead_letter
from penstock.committers.deliveries.contract import DeliveryState
from penstock.committers.file_tables.manifest import LakeManifest, build_manifest
from penstock.committers.store.sql import SqlManifestStore, open_store

HOSTILE = "<script>alert(1)</script>"
REFUSAL = (
    "SchemaMismatchError: column amount is string, and the table's is decimal(10, 2). Cast it in the "
    "query, or alter the table."
)
OUTAGE = (
    "RetryableError: the service does not answer: HTTP 503 from https://ingest.example/v1/rows. Nothing is "
    "lost."
)


@dataclass
class Clock:
    now: datetime

    def __call__(self) -> datetime:
        return self.now


def query_id(number: int) -> str:
    return f"{number:08d}-7c1e-4b8a-9d3e-5f2a6b7c8d9e"


class ShownStore:
    """
    Args:
        batches: of each stream
        until: the time of the newest batches
    """

    def __init__(self, url: str, batches: int, until: datetime | None = None) -> None:
        self.until = until or datetime.now(timezone.utc)
        self.clock = Clock(self.until)
        self.store: SqlManifestStore = open_store(url, self.clock, lease_clock=self.clock)
        self.url = url
        self._batches = batches
        self._random = random.Random(4711)
        self._streams = 0

    def add_everything(self) -> None:
        """Add a stream in each state, with dead letters and skipped batches, and one with a hostile name."""
        self.parked("payments", "iceberg", "prod:shop.payments")
        self.failing("notifications", "http", "https://ingest.example/v1/rows")
        self.with_letters("customers", "opensearch", "https://search.example/customers")
        self.decoupled("orders", "delta", "s3://lake/shop/orders", waiting=3)
        self.decoupled("clicks", "delta", "s3://lake/web/clicks", rows=48_000)
        self.coupled("sessions", "iceberg", "prod:web.sessions", waiting=1)
        self.coupled("flights", "delta", "/lake/flights")
        self.coupled("inventory", "ducklake", "prod:warehouse.inventory")
        self.decoupled("prices", "kafka", "kafka.example:9092/prices", rows=2_000)
        self.coupled("ledger", "postgres", "postgresql://db.example:5432/bank?table=ledger")

    # Streams ----------------------------------------------------------------------------------------

    def decoupled(self, name: str, kind: str, uri: str, *, waiting: int = 2, rows: int = 6_000) -> StreamKey:
        """Add a stream of which a delivery process commits six batches at a time."""
        key = self._register(name, kind, uri, "decoupled")
        each, first = timedelta(seconds=20), self.until - timedelta(seconds=20 * self._batches)
        left: list[Manifest] = []
        for number in range(self._batches):
            self.clock.now = first + each * number
            left.append(self._prepare(key, kind, number, rows))
            to_deliver = self._batches - 1 - waiting - number
            if to_deliver == 0 or (len(left) == 6 and to_deliver > 5):
                self._deliver(key, left, number)
                left = []
        self.clock.now = self.until
        self.store.maintenance.note(key, "compact", self.until - timedelta(minutes=4))
        self.store.maintenance.note(key, "expire", self.until - timedelta(hours=9))
        self.store.maintenance.note(key, "stream", self.until - timedelta(minutes=4))
        return key

    def coupled(self, name: str, kind: str, uri: str, *, waiting: int = 0) -> StreamKey:
        key = self._register(name, kind, uri, "coupled")
        first = self.until - timedelta(seconds=30 * self._batches)
        for number in range(self._batches):
            self.clock.now = first + timedelta(seconds=30 * number)
            manifest = self._prepare(key, kind, number, 12_000)
            if number < self._batches - waiting:
                self.clock.now += timedelta(seconds=0.3 + self._random.expovariate(2))
                self.store.finish(manifest.batch, ManifestState.COMMITTED, table_version=number + 1)
        self.clock.now = self.until
        return key

    def parked(self, name: str, kind: str, uri: str) -> StreamKey:
        key = self.decoupled(name, kind, uri, waiting=min(14, self._batches - 1), rows=9_000)
        first = self._batches - min(14, self._batches - 1)
        why = f"the table has refused batch {first} five times"
        at = self.until - timedelta(minutes=4)
        self._set_state(key, DeliveryState(tries=5, error=REFUSAL, parked_at=at, parked_why=why))
        return key

    def failing(self, name: str, kind: str, uri: str) -> StreamKey:
        key = self.decoupled(name, kind, uri, waiting=min(8, self._batches - 1), rows=900)
        self._set_state(
            key, DeliveryState(tries=3, retry_at=self.until + timedelta(seconds=40), error=OUTAGE)
        )
        return key

    def with_letters(self, name: str, kind: str, uri: str) -> StreamKey:
        """Add a stream with two dead letters in the store, and a batch that an operator has skipped."""
        key = self.coupled(name, kind, uri, waiting=2)
        first, second = self.store.pending(key)
        row = pa.RecordBatch.from_pylist([{"id": 81, "email": HOSTILE, "score": "n/a"}])
        message = "mapper_parsing_exception: failed to parse field [score] of type [float]"
        letters = [
            dead_letter(row, "commit", 0, number, "does_not_fit", message, at=self.until)
            for number in range(2)
        ]
        given = {first.batch.batch_id: letters}
        self.store.finish(first.batch, ManifestState.COMMITTED, dead_letters=given, dropped_rows=2)
        self.store.deliveries.skip(key, second.batch.batch_id, "ops", "corrupt source file")
        return key

    def hostile(self) -> StreamKey:
        """Add a stream whose names, errors and reasons are HTML, with a password in its address."""
        key = self.decoupled(HOSTILE, "delta", f"s3://user:hunter22@lake/{HOSTILE}\"'><img src=x>", waiting=1)
        state = DeliveryState(tries=1, error=f"{HOSTILE} postgresql://app:hunter22@db.example/x")
        self._set_state(key, state)
        self.store.deliveries.park(key, HOSTILE, f"{HOSTILE} \x1b[31m")
        return key

    # Calls of the store -----------------------------------------------------------------------------

    def _register(self, name: str, kind: str, uri: str, delivery: str) -> StreamKey:
        self._streams += 1
        self.clock.now = self.until - timedelta(days=12)
        key = StreamKey(query_id(self._streams), uri)
        settings = {
            "delivery": delivery,
            "checkpoint": f"/checkpoints/{self._streams}",
            "options": {"path": uri},
        }
        self.store.register_stream(key, kind, name, "t1", json.dumps(settings))
        self.store.claim(key, "run-1")
        return key

    def _prepare(self, key: StreamKey, kind: str, number: int, rows: int) -> Manifest:
        rows = max(int(self._random.gauss(rows, rows / 6)), 1)
        size = int(rows * 61.3)
        manifest = self._manifest(key, kind, number, [DataFile(f"part-{number}-0.parquet", size, rows)])
        self.store.prepare(manifest, "run-1")
        return manifest

    def _manifest(self, key: StreamKey, kind: str, number: int, files: Sequence[DataFile]) -> Manifest:
        content = LakeManifest(
            "delta", "append", "t1", number, '{"type":"struct","fields":[]}', (), (), tuple(files)
        )
        batch = Batch(key, number, hashlib.sha256(f"{key} {number}".encode()).hexdigest())
        return replace(build_manifest(batch, content), kind=kind)

    def _deliver(self, key: StreamKey, batches: Sequence[Manifest], number: int) -> None:
        self.clock.now += timedelta(seconds=1 + self._random.expovariate(1))
        rows = sum(one.rows for one in batches)
        merged = self._manifest(
            key, batches[-1].kind, batches[-1].batch.batch_id, [DataFile("m", rows * 48, rows)]
        )
        whole = replace(merged, merged=tuple(one.batch for one in batches))
        lease = self.store.deliveries.acquire(key, "delivery-1", 30)
        assert lease is not None
        delivery = self.store.deliveries.prepare(lease, whole, "age", is_compacted=len(batches) > 1)
        self.clock.now += timedelta(seconds=1.5 + self._random.expovariate(1))
        assert self.store.deliveries.finish(delivery, number + 1, NO_LETTERS)
        self.store.deliveries.release(lease)

    def _set_state(self, key: StreamKey, state: DeliveryState) -> None:
        lease = self.store.deliveries.acquire(key, "delivery-1", 30)
        assert lease is not None
        self.store.deliveries.set_state(lease, state)
        self.store.deliveries.release(lease)
