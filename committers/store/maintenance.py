"""When which step of a table's maintenance was done last, so that intervals outlive a delivery process."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ..contract import StreamKey
from . import queries
from .database import Database
from .tables import maintenance, streams


class SqlMaintenance:
    """The steps of all streams. Every method is one short database transaction.

    Any method may raise `RetryableError` when the database does not answer; `note` may raise
    `CommitStateUnknownError` when the answer to the database's own COMMIT got lost.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def done(self, stream: StreamKey) -> Mapping[str, datetime]:
        """When each step was done last; without those that never were."""
        query = sa.select(maintenance.c.step, maintenance.c.done_at).join(streams)
        with self._database.read() as connection:
            return {
                row.step: row.done_at for row in connection.execute(query.where(queries.is_stream(stream)))
            }

    def note(self, stream: StreamKey, step: str, at: datetime) -> None:
        """The step was done.

        Raises:
            RetryableError: the stream is not known.
        """
        with self._database.write() as connection:
            insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
            stream_id = queries.lock_known_stream(connection, stream, self._database.name)
            statement = insert(maintenance).values(stream_id=stream_id, step=step, done_at=at)
            connection.execute(
                statement.on_conflict_do_update(index_elements=["stream_id", "step"], set_={"done_at": at})
            )
