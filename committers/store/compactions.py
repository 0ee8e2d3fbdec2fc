"""Prepared compactions of tables that share their files, with the old and the new files.

A record is written before the first table is changed, and deleted when the compaction is committed to all
tables or given up. The store does not interpret the content.
"""

from __future__ import annotations

import sqlalchemy as sa

from ..contract import StreamKey
from ..errors import ManifestCorruptError, RetryableError
from . import queries
from .contents import sha256_of
from .part import ClockedPart
from .tables import compactions, streams


class SqlCompactions(ClockedPart):
    """At most one compaction of each stream. Each method is one short database transaction; errors as in
    `SqlManifestStore`.
    """

    def put(self, stream: StreamKey, content: bytes) -> None:
        """
        Raises:
            RetryableError: another process has prepared one, or the store does not know the stream.
        """
        values = {"prepared_at": self._clock(), "content": content, "content_sha256": sha256_of(content)}
        with self._database.write() as connection:
            stream_id = self._lock(connection, stream)
            there = sa.select(compactions.c.stream_id).where(compactions.c.stream_id == stream_id)
            if connection.scalar(there) is not None:
                raise RetryableError(
                    f"Another process compacts the tables of {stream}. Nothing was changed. The next run "
                    "continues what it leaves."
                )
            connection.execute(sa.insert(compactions).values(stream_id=stream_id, **values))

    def of_stream(self, stream: StreamKey) -> bytes | None:
        """Return the content of the prepared compaction; None if there is none.

        Raises:
            ManifestCorruptError: the content does not match its checksum.
        """
        query = sa.select(compactions).join(streams).where(queries.is_stream(stream))
        row = self._database.row(query)
        if row is None:
            return None
        if sha256_of(row.content) != row.content_sha256:
            raise ManifestCorruptError(
                f"The prepared compaction of {stream} in the store {self._database.name} is damaged: its "
                "content does not match its checksum. Nothing was changed. Restore the store from a backup."
            )
        return bytes(row.content)

    def remove(self, stream: StreamKey) -> None:
        """Delete the record. Idempotent."""
        with self._database.write() as connection:
            stream_id = self._lock(connection, stream)
            connection.execute(sa.delete(compactions).where(compactions.c.stream_id == stream_id))
