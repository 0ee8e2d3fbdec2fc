"""A decoupled stream into a Postgres table whose driver has only prepared its batches, two rows each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.backlogs import QUERY, QueryBacklog, context_of
from tests.support.postgres import PostgresQuery, query_into

from penstock.committers.contract import ManifestState
from penstock.committers.store.delivery_queries import DeliveryPhase
from penstock.delivery.attempts import DeliveryListener
from penstock.delivery.drain import Drained, drain


class PostgresBacklog(QueryBacklog):
    """
    Args:
        url: of a database with an empty schema
        store_url: None for SQLite
    """

    query: PostgresQuery

    def __init__(self, url: str, folder: Path, store_url: str | None = None, **options: str) -> None:
        super().__init__(query_into(url, QUERY, **options), folder, store_url)

    def drain(self, *listeners: DeliveryListener) -> Drained:
        """As `penstock deliver --once`."""
        (drained,) = drain(self.store, context_of(*listeners))
        return drained

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
