"""Tombstones of a MySQL table."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ..database import tombstones
from ..database.contract import Cursor
from ..database.tombstones import PRUNED_MIN
from ..errors import RetryableError
from .address import literal

LOCK_TIMEOUT_S = 30
_COLUMNS = """
SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
"""


@dataclass(frozen=True, slots=True)
class Tombstones(tombstones.Tombstones):
    """See `tombstones.Tombstones`. The key is no unique one: that could be too long for an index with the id
    of the table.
    """

    def create(self, cursor: Cursor) -> None:
        """See `tombstones.Tombstones`. This commits."""
        wanted = dict(self.columns())
        there = cursor.execute(_COLUMNS, (self.address.schema, self.name)).fetchall()
        for name, kind in ((str(name), self.own.normalized(kind)) for name, kind in there):
            if wanted.get(name, kind) != kind:
                change = self.own.definition(cursor, wanted[name])
                cursor.execute(f"ALTER TABLE {self.sql} MODIFY COLUMN {name} {change} NOT NULL")
        if there:
            return
        columns = "".join(
            f"{name} {self.own.definition(cursor, kind)} NOT NULL, " for name, kind in wanted.items()
        )
        what = f"penstock, deleted keys of {self.address.sql}"[:200]
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self.sql} ({self.own.id_column} varchar(64) NOT NULL, {columns}"
            f"expires_at datetime(6) NOT NULL, KEY ({', '.join(self.keys())}), KEY (expires_at)) "
            f"ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT {literal(what)}"
        )

    def begin(self, cursor: Cursor) -> None:
        """See `tombstones.Tombstones`. Until the connection ends, which the commit closes."""
        name = f"penstock_{hashlib.sha256(self.sql.encode()).hexdigest()[:40]}"
        ((is_locked,),) = cursor.execute("SELECT GET_LOCK(%s, %s)", (name, LOCK_TIMEOUT_S)).fetchall()
        if not is_locked:
            raise RetryableError(
                f"Another query has been changing the {self.address.title} for {LOCK_TIMEOUT_S} s. The batch "
                "was not committed."
            )

    def prune(self, cursor: Cursor, added: int) -> None:
        cursor.execute(
            f"DELETE FROM {self.sql} WHERE expires_at < UTC_TIMESTAMP(6) ORDER BY expires_at "
            f"LIMIT {max(PRUNED_MIN, 2 * added)}"
        )

    @property
    def until(self) -> str:
        return f"UTC_TIMESTAMP(6) + INTERVAL {int(self.changes.tombstones_s * 1_000_000)} MICROSECOND"
