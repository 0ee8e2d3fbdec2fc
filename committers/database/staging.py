"""Staging tables: the rows of one task attempt, durable and invisible until their batch is committed.

Their names and comments identify query and batch, so that clean-up finds unneeded ones. Importable on
executors.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from ..contract import AttemptId, Batch

PREFIX = "penstock_"

PREPARED = "(prepared)"
"""In place of the schema: the rows are in a prepared transaction. See `prepared`."""

DELETES = "penstock_deletes"
"""Column of the staging tables of changes: whether the row deletes its key."""
ORDER = "penstock_order_"
"""Beginning of the names of columns with the order of changes, as far as the table does not get it."""
KEPT = "penstock_kept"
"""Column of the staging tables of changes whose rows may keep columns: see `kept_values`."""
NUMBER = "penstock_number"
"""Column with the place of a row among those of its key in its batch, from 1."""
BATCH, SOURCE, PLACE = "penstock_batch", "penstock_source", "penstock_place"
"""Columns of rows that a commit has collected: batch, number of the staging table, and the id there."""
ROW = "penstock_row"
"""Column with the numbers of the rows of a staging table, where the database has no other ids of rows."""
RESERVED = (DELETES, ORDER, KEPT, NUMBER, BATCH, SOURCE, PLACE, ROW)
"""Names that commits use beside those of the table's columns."""

_COMMENT = re.compile(r"penstock, staged at (\S+) by (.+)", re.DOTALL)
_NAME = re.compile(rf"{PREFIX}([0-9a-f]{{12}})_(\d{{1,19}})_(\d{{1,10}})_[0-9a-f]{{10}}")


@dataclass(frozen=True, slots=True)
class StagingTable:
    """A staging table filled by a task attempt; or its prepared transaction."""

    schema: str
    name: str
    rows: int
    size_bytes: int
    """Size of the rows as they were sent."""

    @property
    def is_prepared(self) -> bool:
        return self.schema == PREPARED

    @property
    def path(self) -> str:
        """Name for display and for clean-up."""
        return f"{self.schema}.{self.name}"


StagingTables: TypeAlias = tuple[StagingTable, ...]
"""The payload: one table per task, or none if it had no rows."""


@dataclass(frozen=True, slots=True)
class StagingName:
    """Parsed name of a staging table."""

    query_hash: str
    batch_id: int
    partition: int = field(default=0, compare=False)

    @classmethod
    def parse(cls, path: str) -> StagingName | None:
        """None if it is not the name of a staging table."""
        match = _NAME.fullmatch(path.rpartition(".")[2])
        return None if match is None else cls(match[1], int(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True)
class StagingComment:
    """Parsed comment of a staging table."""

    staged_at: datetime
    """By the server's clock."""
    query_id: str

    @classmethod
    def parse(cls, comment: str) -> StagingComment | None:
        """None if it is not the comment of a staging table."""
        match = _COMMENT.fullmatch(comment)
        try:
            return None if match is None else cls(datetime.fromisoformat(match[1]), match[2])
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"penstock, staged at {self.staged_at.isoformat()} by {self.query_id}"


def parsed_name(staged: StagingTable) -> StagingName:
    name = StagingName.parse(staged.name)
    assert name is not None, staged.name  # see `content.decode`
    return name


def query_hash(query_id: str, table_sql: str) -> str:
    """The part of the name that identifies query and table."""
    return _hash(f"{query_id} {table_sql}", 12)


def staging_name(attempt: AttemptId, table_sql: str) -> str:
    """At most 63 bytes, and unique for each attempt."""
    own = _hash(f"{attempt.run_id} {attempt.attempt}", 10)
    stream = query_hash(attempt.query_id, table_sql)
    return f"{PREFIX}{stream}_{attempt.batch_id}_{attempt.partition}_{own}"


def refused_name(batch: Batch, table_sql: str) -> str:
    """The table of the rows that the destination table refused when it got the batch. Clean-up treats it as
    a staging table.
    """
    stream = query_hash(batch.stream.query_id, table_sql)
    return f"{PREFIX}{stream}_{batch.batch_id}_0_{_hash(f'refused {batch.digest}', 10)}"


def staging_path(query_id: str, schema: str, name: str) -> str:
    """The path of a staging table for clean-up. A query id contains no slash."""
    return f"{query_id}/{schema}.{name}"


def _hash(text: str, chars: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:chars]
