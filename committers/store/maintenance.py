"""When each maintenance step of a table was last done, so that intervals survive a restart of the delivery
process.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import sqlalchemy as sa

from ..contract import StreamKey
from . import queries
from .part import StorePart
from .tables import maintenance, streams

WHOLE = "stream"
"""The step that stands for all work on a stream, also for what has no interval of its own."""


class SqlMaintenance(StorePart):
    """Maintenance steps of all streams. Each method is one short database transaction.

    Methods raise `RetryableError` if the database does not answer. `note` raises `CommitStateUnknownError` if
    the database does not answer the COMMIT.
    """

    def done(self, stream: StreamKey) -> Mapping[str, datetime]:
        """When each step was last done; steps that were never done are left out."""
        query = sa.select(maintenance.c.step, maintenance.c.done_at).join(streams)
        rows = self._database.rows(query.where(queries.is_stream(stream)))
        return {row.step: row.done_at for row in rows}

    def note(self, stream: StreamKey, step: str, at: datetime) -> None:
        """Record that a step was done.

        Raises:
            RetryableError: the store does not know the stream.
        """
        with self._database.write() as connection:
            stream_id = self._lock(connection, stream)
            statement = queries.insert_into(connection, maintenance).values(
                stream_id=stream_id, step=step, done_at=at
            )
            connection.execute(
                statement.on_conflict_do_update(index_elements=["stream_id", "step"], set_={"done_at": at})
            )
