"""Ids of batch writes, and how long a batch write may commit.

A batch write has no checkpoint, and its manifest is in memory unless the option `store` is given. After a
crash only the time shows that it cannot be committed any more. So its id, which is part of its files' names,
contains when it began and a digest of the table's id. A commit after `COMMIT_WITHIN` is refused, and clean-up
may delete the files after `GIVEN_UP_AFTER`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from .contract import BATCH_WRITE_PREFIX

COMMIT_WITHIN = timedelta(days=6)
"""A batch write that began longer ago is not committed."""
GIVEN_UP_AFTER = COMMIT_WITHIN + timedelta(days=1)
"""Clean-up takes a batch write that began longer ago for given up. The extra day is for a commit request that
was checked just in time, and for clocks that differ."""

_ID = re.compile(
    BATCH_WRITE_PREFIX + r"(?P<began>\d{10,11})-(?P<table>[0-9a-f]{8})"
    r"-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)


@dataclass(frozen=True, slots=True)
class BatchWrite:
    """What the id of a batch write says. `table` is a digest of the table's own id."""

    began_at: datetime
    table: str

    def is_into(self, table_id: str | None) -> bool:
        return table_id is not None and self.table == _digest(table_id)


def batch_write_id(began_at: datetime, table_id: str, unique: str) -> str:
    """
    Args:
        table_id: the table's own id, as its metadata has it
        unique: a UUID in its usual spelling
    """
    return f"{BATCH_WRITE_PREFIX}{int(began_at.timestamp())}-{_digest(table_id)}-{unique}"


def batch_write_of(query_id: str) -> BatchWrite | None:
    """None for ids of streams, and of batch writes of earlier versions, which do not say when they began."""
    match = _ID.fullmatch(query_id)
    if match is None:
        return None
    return BatchWrite(datetime.fromtimestamp(int(match["began"]), timezone.utc), match["table"])


def _digest(table_id: str) -> str:
    return hashlib.sha256(table_id.encode()).hexdigest()[:8]
