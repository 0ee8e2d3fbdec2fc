"""A decoupled stream into a Postgres table whose driver has only prepared its batches, two rows each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.backlogs import QUERY, context_of
from tests.support.postgres import query_into

from penstock.committers.contract import ManifestState
from penstock.committers.store.delivery_queries import DeliveryPhase
from penstock.committers.store.sql import open_store
from penstock.committers.store.status import StreamStatus
from penstock.delivery.attempts import DeliveryListener
from penstock.delivery.drain import Drained, drain

DECOUPLED = {"delivery": "decoupled", "schemaEvolution": "addColumns"}


class PostgresBacklog:
    """
    Args:
        url: of a database with an empty schema
        store_url: None for SQLite
    """

    def __init__(self, url: str, folder: Path, store_url: str | None = None, **options: str) -> None:
        self.store_url = store_url or f"sqlite:///{folder}/store.db"
        self.store = open_store(self.store_url)
        self.query = query_into(url, QUERY, **DECOUPLED, **options)
        self.columns = ["id"]
        self.batches = self.rows = 0

    def add_column(self) -> None:
        self.columns.append("twice")

    def fill(self, batches: int, first: int = 0, *, tasks: int = 1, overwrite: bool = False) -> None:
        """As the driver does it, each batch with two rows for each task.

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

    def drain(self, *listeners: DeliveryListener) -> Drained:
        """As `penstock deliver --once`."""
        (drained,) = drain(self.store, context_of(*listeners))
        return drained

    @property
    def status(self) -> StreamStatus:
        (status,) = self.store.streams()
        return status

    @property
    def left(self) -> int:
        return self.store.deliveries.backlog(self.status.key).batches

    @property
    def states(self) -> dict[int, ManifestState]:
        return {r.batch.batch_id: r.state for r in self.store.history(self.status.key, 1000)}

    @property
    def merged(self) -> list[int]:
        """Batches of each delivery in the table, in order."""
        recent = self.store.deliveries.recent(self.status.key, 1000)
        return [one.batches for one in reversed(recent) if one.phase is DeliveryPhase.COMMITTED]

    def commits(self) -> int:
        """Of this query to the table."""
        rows: list[tuple[Any, ...]] = self.query.sql("SELECT version FROM penstock_fence")
        return int(rows[0][0])
