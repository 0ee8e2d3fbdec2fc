"""Ids of batch writes, and the time limit for committing one.

A batch write has no checkpoint, and its manifest is in memory unless the option `store` is set. After a
crash, only the elapsed time shows that it can no longer be committed. So its id, which is part of its file
names, contains its start time and a digest of the table id. A commit after `COMMIT_WITHIN` is rejected, and
clean-up may delete the files after `GIVEN_UP_AFTER`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from ..contract import BATCH_WRITE_PREFIX

COMMIT_WITHIN = timedelta(days=6)
"""Time limit for committing a batch write, from its start."""
GIVEN_UP_AFTER = COMMIT_WITHIN + timedelta(days=1)
"""Clean-up considers a batch write abandoned after this time. The extra day covers a commit request that
passed the check just in time, and clock differences.
"""

_ID = re.compile(
    BATCH_WRITE_PREFIX + r"(?P<began>\d{10,11})-(?P<table>[0-9a-f]{8})"
    r"-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)


@dataclass(frozen=True, slots=True)
class BatchWrite:
    """Parsed id of a batch write. `table` is a digest of the table's own id."""

    began_at: datetime
    table: str

    def is_into(self, table_id: str | None) -> bool:
        return table_id is not None and self.table == _digest(table_id)


def batch_write_id(began_at: datetime, table_id: str, unique: str) -> str:
    """
    Args:
        table_id: the table's own id, from its metadata
        unique: a UUID in canonical form
    """
    return f"{BATCH_WRITE_PREFIX}{int(began_at.timestamp())}-{_digest(table_id)}-{unique}"


def batch_write_of(query_id: str) -> BatchWrite | None:
    """Parse the id; None for ids of streams and for batch writes of earlier versions, which have no start
    time.
    """
    match = _ID.fullmatch(query_id)
    if match is None:
        return None
    return BatchWrite(datetime.fromtimestamp(int(match["began"]), timezone.utc), match["table"])


def _digest(table_id: str) -> str:
    return hashlib.sha256(table_id.encode()).hexdigest()[:8]
