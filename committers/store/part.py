"""What the parts of the store have in common: the database, and the lock of a stream."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from ..contract import StreamKey
from . import queries
from .database import Clock, Database


class StorePart:
    """A part of the store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _lock(self, connection: Connection, stream: StreamKey) -> int:
        return queries.lock_known_stream(connection, stream, self._database.name)


class ClockedPart(StorePart):
    """A part of the store that records times."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database)
        self._clock = clock
