"""The manifest stores of a simulation: in memory, or the real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa
from tests.simulation.memory_store import Clock, MemoryStore

from penstock.committers.contract import (
    Batch,
    Manifest,
    ManifestRecord,
    ManifestState,
    StreamKey,
)
from penstock.committers.deliveries.contract import Delivery, Lease
from penstock.committers.store import manifest_queries, queries
from penstock.committers.store.contract import Prepared, PrepareRequest
from penstock.committers.store.database import Database
from penstock.committers.store.deliveries import SqlDeliveries
from penstock.committers.store.sql import SqlManifestStore
from penstock.committers.store.tables import IS_PREPARED, leases, manifests, metadata, streams


class CheckedDeliveries(SqlDeliveries):
    """The real ones, and what must hold of each change whatever the table's own guards would catch."""

    def prepare(self, lease: Lease, manifest: Manifest, trigger: str, *, is_compacted: bool) -> Delivery:
        """Only the holder of the lease, only batches that are pending and free, and none is left out."""
        last, held = manifest.batch.batch_id, self._held(lease.stream)
        free = [one for one in self._pending(lease.stream) if one.batch.batch_id <= last]
        before = self.unfinished(lease.stream)
        delivery = super().prepare(lease, manifest, trigger, is_compacted=is_compacted)
        assert held == (lease.holder, lease.fence), "a delivery was prepared without the lease"
        assert before is None, "a stream has two unfinished deliveries"
        assert [one.batch for one in free] == list(manifest.batches), "a delivery leaves a batch out"
        assert all(one.delivery_id is None for one in free), "a batch is in two deliveries"
        return delivery

    def skip(self, stream: StreamKey, batch_id: int, who: str, why: str, **options: Any) -> bool:
        """Not what a delivery may bring into the table."""
        taken = [one.batch.batch_id for one in self._pending(stream) if one.delivery_id is not None]
        is_skipped = super().skip(stream, batch_id, who, why, **options)
        assert not is_skipped or batch_id not in taken, "a batch was skipped while it is delivered"
        return is_skipped

    def finish(self, delivery: Delivery, table_version: int | None, *refused: Any) -> bool:
        """Only the one that is PREPARED."""
        now = self.unfinished(delivery.manifest.batch.stream)
        finished = super().finish(delivery, table_version, *refused)
        is_it = now is not None and now.manifest.content == delivery.manifest.content
        assert finished == (is_it and now is not None and now.delivery_id == delivery.delivery_id)
        return finished

    def _held(self, stream: StreamKey) -> tuple[str, int] | None:
        query = sa.select(leases.c.holder, leases.c.fence).join(streams).where(queries.is_stream(stream))
        with self._database.read() as connection:
            row = connection.execute(query.where(leases.c.expires_at.is_not(None))).one_or_none()
        return None if row is None else (row.holder, row.fence)

    def _pending(self, stream: StreamKey) -> list[ManifestRecord]:
        query = sa.select(manifests).where(queries.of_stream(stream), IS_PREPARED)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(manifests.c.batch_id))
            return [manifest_queries.to_record(stream, row) for row in rows]


class RealStore(SqlManifestStore):
    """The real store, on SQLite in memory or on Postgres, with what may become of it as a whole.

    Args:
        url: of a Postgres database, which is emptied; None for SQLite
    """

    def __init__(self, clock: Clock, url: str | None = None) -> None:
        super().__init__(Database(url) if url else Database("sqlite://", in_memory=True), clock, clock)
        self.deliveries = CheckedDeliveries(self._database, clock, clock)
        self.lose()

    def lose(self) -> None:
        with self.engine.begin() as connection:
            for table in reversed(metadata.sorted_tables):
                connection.execute(table.delete())

    def back_up(self) -> Any:
        with self.engine.connect() as connection:
            return {
                table: [dict(row) for row in connection.execute(table.select()).mappings()]
                for table in metadata.sorted_tables
            }

    def restore(self, backup: Any) -> None:
        self.lose()
        with self.engine.begin() as connection:
            for table, rows in backup.items():
                if rows:
                    connection.execute(table.insert(), rows)

    def stream_keys(self) -> Sequence[StreamKey]:
        return [stream.key for stream in self.streams()]

    def prepare_all(self, requests: Sequence[PrepareRequest], run_id: str) -> Sequence[Prepared]:
        """Only the holder of the claim prepares, and replaces only what was given up, or is as expected."""
        batches = [one.manifest.batch for one in requests]
        earlier = [self.record(batch.stream, batch.batch_id) for batch in batches]
        prepared = super().prepare_all(requests, run_id)
        with self.engine.connect() as connection:
            for batch in batches:
                assert queries.holder(connection, batch.stream) == run_id, "prepared without the claim"
        for before, request, one in zip(earlier, requests, prepared, strict=True):
            is_free = before is None or before.state is ManifestState.ABORTED or before == request.replacing
            assert is_free or one.record == before, "replaced a manifest that held for the batch"
        return prepared

    def finish(self, batch: Batch, state: ManifestState, **options: Any) -> bool:
        """Only what is PREPARED, with this digest and as expected, is finished."""
        before = self.record(batch.stream, batch.batch_id)
        finished = super().finish(batch, state, **options)
        was_pending = before is not None and before.state is ManifestState.PREPARED and before.batch == batch
        is_taken = before is not None and before.delivery_id is not None and state is ManifestState.ABORTED
        is_other = options.get("expected") not in (None, before)
        assert finished == (was_pending and not is_taken and not is_other), "the mark is no compare-and-set"
        return finished


SimulatedStore: TypeAlias = MemoryStore | RealStore
