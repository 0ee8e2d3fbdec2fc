"""What the store knows of expired snapshots: the files that go once nobody reads these snapshots any more.

Written down before the snapshots are removed from the table, so that no crash leaves files that nobody knows.
To the store the content, which names the files, is opaque.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Row

from ..errors import ManifestCorruptError
from .database import Database
from .tables import expiries


@dataclass(frozen=True, slots=True)
class Expiry:
    """Snapshots of one table that are removed in one commit, and what can be deleted some time after it."""

    expiry_id: str
    """Unique."""
    table_uri: str
    """For people."""
    table_id: str
    content: bytes = field(repr=False)
    planned_at: datetime
    expired_at: datetime | None = None
    """Since when the snapshots are known to be gone; None if the commit may not have landed."""
    deleted: int = 0
    """How many of the files are deleted, in the order in which the content lists them."""


class SqlExpiries:
    """The expiries of all tables. Every method is one short database transaction.

    Any method may raise `RetryableError` when the database does not answer; those that write may raise
    `CommitStateUnknownError` when the answer to the database's own COMMIT got lost.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, expiry: Expiry) -> None:
        """Write down an expiry, or what has become of it. Idempotent."""
        values = {
            "id": expiry.expiry_id,
            "table_uri": expiry.table_uri,
            "table_id": expiry.table_id,
            "planned_at": expiry.planned_at,
            "expired_at": expiry.expired_at,
            "deleted": expiry.deleted,
            "content": expiry.content,
            "content_sha256": _sha256(expiry.content),
        }
        with self._database.write() as connection:
            insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
            statement = insert(expiries).values(values)
            connection.execute(
                statement.on_conflict_do_update(index_elements=["id"], set_={"expired_at": expiry.expired_at})
            )

    def add_deleted(self, expiry: Expiry, deleted: int) -> None:
        """The first `deleted` files are gone. Never goes back: another process may be further on."""
        is_less = sa.and_(expiries.c.id == expiry.expiry_id, expiries.c.deleted < deleted)
        with self._database.write() as connection:
            connection.execute(sa.update(expiries).where(is_less).values(deleted=deleted))

    def remove(self, expiry: Expiry) -> None:
        """Forget an expiry. Idempotent."""
        with self._database.write() as connection:
            connection.execute(sa.delete(expiries).where(expiries.c.id == expiry.expiry_id))

    def of_table(self, table_id: str, expired_before: datetime | None = None) -> Sequence[Expiry]:
        """The table's expiries in the order in which they were planned.

        Args:
            expired_before: leave out those that are known to be expired, but not for so long

        Raises:
            ManifestCorruptError: the content is not what was written.
        """
        query = sa.select(expiries).where(expiries.c.table_id == table_id)
        if expired_before is not None:
            query = query.where(expiries.c.expired_at.is_(None) | (expiries.c.expired_at <= expired_before))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(expiries.c.planned_at, expiries.c.id)).all()
        return [self._checked(row) for row in rows]

    def _checked(self, row: Row[Any]) -> Expiry:
        if _sha256(row.content) != row.content_sha256:
            raise ManifestCorruptError(
                f"The expiry {row.id} of the table {row.table_uri} in the store {self._database.name} is "
                "damaged: its content is not what was written. Restore the store from a backup."
            )
        return Expiry(
            expiry_id=row.id,
            table_uri=row.table_uri,
            table_id=row.table_id,
            content=row.content,
            planned_at=row.planned_at,
            expired_at=row.expired_at,
            deleted=row.deleted,
        )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
