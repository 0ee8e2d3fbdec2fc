"""Records of expired Iceberg snapshots: the files to delete after the grace period.

A record is written before the snapshots are removed from the table, so that a crash leaves no unknown files.
The store does not interpret the content, which lists the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from ..errors import ManifestCorruptError
from . import queries
from .contents import sha256_of
from .part import StorePart
from .tables import expiries


@dataclass(frozen=True, slots=True)
class Expiry:
    """Snapshots of one table that are removed in one commit, and the files to delete some time later."""

    expiry_id: str
    """Unique id."""
    table_uri: str
    """Address of the table, for display only."""
    table_id: str
    content: bytes = field(repr=False)
    planned_at: datetime
    expired_at: datetime | None = None
    """When the snapshots were known to be removed; None if the commit may not have succeeded."""
    deleted: int = 0
    """How many files are deleted, in the order of the content."""


class SqlExpiries(StorePart):
    """Expiry records of all tables. Each method is one short database transaction.

    Methods raise `RetryableError` if the database does not answer. Methods that write raise
    `CommitStateUnknownError` if the database does not answer the COMMIT.
    """

    def put(self, expiry: Expiry) -> None:
        """Insert or update an expiry record. Idempotent."""
        values = {
            "id": expiry.expiry_id,
            "table_uri": expiry.table_uri,
            "table_id": expiry.table_id,
            "planned_at": expiry.planned_at,
            "expired_at": expiry.expired_at,
            "deleted": expiry.deleted,
            "content": expiry.content,
            "content_sha256": sha256_of(expiry.content),
        }
        with self._database.write() as connection:
            statement = queries.insert_into(connection, expiries).values(values)
            connection.execute(
                statement.on_conflict_do_update(index_elements=["id"], set_={"expired_at": expiry.expired_at})
            )

    def add_deleted(self, expiry: Expiry, deleted: int) -> None:
        """Record that the first `deleted` files are deleted. The number never decreases: another process may
        be ahead.
        """
        is_less = sa.and_(expiries.c.id == expiry.expiry_id, expiries.c.deleted < deleted)
        with self._database.write() as connection:
            connection.execute(sa.update(expiries).where(is_less).values(deleted=deleted))

    def remove(self, expiry: Expiry) -> None:
        """Delete an expiry record. Idempotent."""
        with self._database.write() as connection:
            connection.execute(sa.delete(expiries).where(expiries.c.id == expiry.expiry_id))

    def of_table(self, table_id: str, expired_before: datetime | None = None) -> Sequence[Expiry]:
        """The table's expiry records in the order in which they were planned.

        Args:
            expired_before: leave out those that expired later than this

        Raises:
            ManifestCorruptError: the content does not match its checksum.
        """
        query = sa.select(expiries).where(expiries.c.table_id == table_id)
        if expired_before is not None:
            query = query.where(expiries.c.expired_at.is_(None) | (expiries.c.expired_at <= expired_before))
        rows = self._database.rows(query.order_by(expiries.c.planned_at, expiries.c.id))
        return [self._checked(row) for row in rows]

    def _checked(self, row: Row[Any]) -> Expiry:
        if sha256_of(row.content) != row.content_sha256:
            raise ManifestCorruptError(
                f"The expiry record {row.id} of the table {row.table_uri} in the store "
                f"{self._database.name} is damaged: its content does not match its checksum. Restore the "
                "store from a backup."
            )
        return Expiry(expiry_id=row.id, **queries.fields_in(row, Expiry))
