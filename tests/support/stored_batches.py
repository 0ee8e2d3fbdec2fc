"""Batches and deliveries for tests of the store."""

from __future__ import annotations

from datetime import timedelta

from tests.support.stores import START

from penstock.committers.contract import Batch, Manifest, ManifestState, StreamKey
from penstock.committers.deliveries.contract import Delivery, Lease
from penstock.committers.store.sql import SqlManifestStore

STREAM = StreamKey("8d9a1c", "s3://lake/flights")
UNKNOWN = StreamKey("unknown", "s3://lake/flights")
PREPARED, COMMITTED, ABORTED = ManifestState.PREPARED, ManifestState.COMMITTED, ManifestState.ABORTED
HOUR = timedelta(hours=1)


def batch(batch_id: int, digest: str = "") -> Batch:
    return Batch(STREAM, batch_id, digest or f"d{batch_id}")


def own(batch_id: int) -> Manifest:
    content = b"files of %d" % batch_id
    return Manifest(batch(batch_id), "test", 3, content, files=2, rows=10, size_bytes=1000, is_empty=False)


def merged(*batch_ids: int, content: bytes = b"merged") -> Manifest:
    return Manifest(
        batch(batch_ids[-1]),
        "test",
        3,
        content,
        files=1,
        rows=10 * len(batch_ids),
        size_bytes=900 * len(batch_ids),
        is_empty=False,
        oldest_event_at=START - HOUR,
        merged=tuple(batch(batch_id) for batch_id in batch_ids),
    )


def fill(store: SqlManifestStore, batches: int, first: int = 0) -> None:
    for batch_id in range(first, first + batches):
        store.prepare(own(batch_id), "r1")


def deliver(
    store: SqlManifestStore,
    lease: Lease,
    *batch_ids: int,
    is_compacted: bool = False,
    name: bytes = b"merged",
) -> Delivery:
    """Prepared, not committed."""
    given = merged(*batch_ids, content=name)
    return store.deliveries.prepare(lease, given, "age", is_compacted=is_compacted)


def states(store: SqlManifestStore) -> dict[int, ManifestState]:
    return {record.batch.batch_id: record.state for record in reversed(store.history(STREAM, 10_000))}


def names(store: SqlManifestStore, state: ManifestState) -> list[bytes]:
    """The contents that clean-up gets to see: here they stand for the files that they name."""
    return [manifest.content for manifest in store.manifests(STREAM, state)]
