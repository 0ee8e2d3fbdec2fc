"""Loads rows into the table itself, in a transaction that the task prepares. Executors only."""

from __future__ import annotations

from dataclasses import dataclass

from ...committers.database.staging import StagingTable
from ..database.prepared_writer import PreparedWriters
from .staging_writer import MySqlStagingWriters


@dataclass(frozen=True, slots=True)
class MySqlPreparedWriters(PreparedWriters, MySqlStagingWriters):
    """See `PreparedWriters`."""

    def loaded_sql(self, staged: StagingTable) -> str:
        return self.table_sql
