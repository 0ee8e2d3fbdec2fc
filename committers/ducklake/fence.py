"""The fence table: the token of each query, in a table of the DuckLake itself.

A commit updates the query's row in the transaction that adds the files. Of two transactions that read the
same row, DuckLake commits one: an update conflicts with every other change of the table since the snapshot
that it has read. Two inserts do not conflict, so the first commit of a query also updates a row of nobody.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ..contract import BATCH_WRITE_PREFIX, Batch, Token
from .address import DuckLakeAddress
from .connection import Lake

FENCE_TABLE = "penstock_fence"

_COLUMNS = (
    "query_id VARCHAR, table_name VARCHAR, table_id VARCHAR, batch_id BIGINT, digest VARCHAR, "
    "origins VARCHAR, committed_at TIMESTAMP WITH TIME ZONE"
)
_OF_QUERY = "query_id = ? AND table_name = ?"


@dataclass(frozen=True, slots=True)
class FenceRow:
    """The row of one query and table."""

    batch_id: int
    digest: str
    table_id: str

    @property
    def token(self) -> Token:
        return Token(self.batch_id, self.digest)


def create(lake: Lake, address: DuckLakeAddress) -> None:
    """Create the fence with the row that first commits update. Of two processes, one gets a conflict."""
    if not is_there(lake, address):
        fence = lake.table(address.schema, FENCE_TABLE)
        lake.rows(f"CREATE TABLE {fence} ({_COLUMNS})")
        lake.rows(f"INSERT INTO {fence} VALUES ('', '', '', -1, '', '[]', now())")


def is_there(lake: Lake, address: DuckLakeAddress) -> bool:
    """Return True if a committed snapshot has the fence."""
    return bool(lake.find_table(address.schema, FENCE_TABLE))


def read(lake: Lake, address: DuckLakeAddress, query_id: str) -> FenceRow | None:
    """The query's row; None if it has committed nothing."""
    if not is_there(lake, address):
        return None
    fence = lake.table(address.schema, FENCE_TABLE)
    found = lake.rows(
        f"SELECT batch_id, digest, table_id FROM {fence} WHERE {_OF_QUERY}", query_id, address.table
    )
    return FenceRow(*found[0]) if found else None


def update(
    lake: Lake, address: DuckLakeAddress, batch: Batch, table_id: str, origins: Sequence[str], *, is_new: bool
) -> None:
    """Make the batch the query's token."""
    fence, query_id = lake.table(address.schema, FENCE_TABLE), batch.stream.query_id
    if is_new:
        lake.rows(f"UPDATE {fence} SET committed_at = now() WHERE query_id = ''")
        lake.rows(
            f"INSERT INTO {fence} VALUES (?, ?, ?, ?, ?, ?, now())",
            query_id,
            address.table,
            table_id,
            batch.batch_id,
            batch.digest,
            json.dumps(list(origins)),
        )
    else:
        lake.rows(
            f"UPDATE {fence} SET batch_id = ?, digest = ?, table_id = ?, origins = ?, committed_at = now() "
            f"WHERE {_OF_QUERY}",
            batch.batch_id,
            batch.digest,
            table_id,
            json.dumps(list(origins)),
            query_id,
            address.table,
        )
    if query_id.startswith(BATCH_WRITE_PREFIX):  # those of old batch writes are no longer read
        lake.rows(
            f"DELETE FROM {fence} WHERE starts_with(query_id, ?) AND epoch(now()) - epoch(committed_at) > ?",
            BATCH_WRITE_PREFIX,
            7 * 86_400,
        )


def accept(lake: Lake, address: DuckLakeAddress, query_id: str, table_id: str) -> None:
    """Accept this table as the one that the query wrote."""
    if is_there(lake, address):
        fence = lake.table(address.schema, FENCE_TABLE)
        lake.rows(f"UPDATE {fence} SET table_id = ? WHERE {_OF_QUERY}", table_id, query_id, address.table)


def remove(lake: Lake, address: DuckLakeAddress, query_id: str) -> None:
    """Remove the row of a query that has ended for good."""
    fence = lake.table(address.schema, FENCE_TABLE)
    lake.rows(f"DELETE FROM {fence} WHERE {_OF_QUERY}", query_id, address.table)


def last_of_origin(lake: Lake, address: DuckLakeAddress, origin: str, table_id: str) -> str | None:
    """The query that was the last to commit to the table from this origin."""
    if not is_there(lake, address):
        return None
    fence = lake.table(address.schema, FENCE_TABLE)
    found = lake.rows(
        f"SELECT query_id, origins FROM {fence} WHERE table_name = ? AND table_id = ? "
        "ORDER BY committed_at DESC",
        address.table,
        table_id,
    )
    return next((str(query_id) for query_id, origins in found if origin in json.loads(origins)), None)
