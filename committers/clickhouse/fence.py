"""The tokens of all queries that write to a database, as columns of one table.

ClickHouse has no transactions, and its rows cannot be compared and set. The columns of a table can: ALTER
TABLE checks all its changes under a lock, and takes effect as a whole, by renaming one file. The fence is a
table of the engine Null, which has no rows. A query has two columns in it:

- `q<hash>`, once it has committed a batch
- `q<hash>_<number>`, whose comment is the token, as JSON

A commit replaces the second one by the next number, in one ALTER. It fails if the first one of two drivers
has done that, or if a driver that was paused knows only an earlier number. Numbers only increase.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from ..contract import BATCH_WRITE_PREFIX, Batch
from ..database.contract import Cursor
from ..database.fence import FENCE_TABLE, Fence, FenceRow
from ..database.staging import query_hash
from ..errors import RetryableError, TableChangedError
from .address import ClickHouseAddress, literal, quoted
from .connection import COLUMN_EXISTS, NO_SUCH_COLUMN, ClickHouseError
from .table import exist

NO_BATCH = -1
_KEPT = timedelta(days=7)
_COLUMNS = (
    "SELECT name, comment FROM system.columns WHERE database = %s AND table = %s AND position(name, '_') > 0"
)
NOW = "SELECT toUnixTimestamp64Micro(now64(6))"
_THERE = "SELECT 1 FROM system.tables WHERE database = %s AND name = %s"


@dataclass(frozen=True, slots=True)
class ClickHouseFenceRow(FenceRow):
    """A token of a query and table."""

    number: int = NO_BATCH
    """Of its column; -1: there is none."""
    query_id: str = ""
    table_name: str = ""
    origins: tuple[str, ...] = ()
    committed_at: str = ""
    rows_in: str = ""
    """The table from which the rows of the batch are moved; it does not exist once they are."""
    replaces: bool = False
    """True: its rows replace those of the same key, so that it does no harm to move them again."""
    rows_version: int = 0
    """The greatest version that the query has given to rows that are changed by key; 0: none."""


class ClickHouseFence(Fence):
    """See `Fence`. Rows are not locked, see `advance`."""

    def is_there(self, cursor: Cursor, address: ClickHouseAddress) -> bool:  # type: ignore[override]
        return bool(cursor.execute(_THERE, (address.schema, FENCE_TABLE)).fetchall())

    def create(self, cursor: Cursor, address: ClickHouseAddress) -> None:
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {address.fence_sql} (penstock UInt8) ENGINE = Null")

    def read(self, cursor: Cursor, address: ClickHouseAddress, query_id: str) -> ClickHouseFenceRow | None:  # type: ignore[override]
        """
        Raises:
            TableChangedError: somebody has altered the fence.
        """
        key = _key(address, query_id)
        names = (f"{_COLUMNS} AND startsWith(name, %s)", (address.schema, FENCE_TABLE, f"{key}_"))
        found = [_row(name, comment) for name, comment in cursor.execute(*names).fetchall()]
        if len(found) > 1 or any(row is None for row in found):
            raise TableChangedError(
                f"The columns {key}_… of {address.fence_sql} are not those that Penstock has made. They are "
                f"the token of query {query_id}. Nothing was committed. Restore the table."
            )
        return found[0] if found else None

    def lock(  # type: ignore[override]
        self, cursor: Cursor, address: ClickHouseAddress, query_id: str, table_id: str
    ) -> ClickHouseFenceRow:
        """Read the token, or what is there before the first batch. Nothing is locked: see `advance`."""
        first = ClickHouseFenceRow(NO_BATCH, "", 0, table_id, query_id=query_id, table_name=address.table)
        return self.read(cursor, address, query_id) or first

    def next_row(
        self,
        row: ClickHouseFenceRow,
        batch: Batch,
        table_id: str,
        origins: Sequence[str],
        rows_in: str,
        *,
        replaces: bool = False,
        rows_version: int = 0,
    ) -> ClickHouseFenceRow:
        """The token after a commit."""
        now = datetime.now(timezone.utc).isoformat()
        number, version = row.number + 1, row.version + 1
        return ClickHouseFenceRow(
            batch.batch_id, batch.digest, version, table_id, number, row.query_id, row.table_name,
            tuple(origins), now, rows_in, replaces, max(row.rows_version, rows_version),
        )  # fmt: skip

    def next_rows_version(self, cursor: Cursor, address: ClickHouseAddress) -> int:
        """A version for the rows of a commit: the time of the server in microseconds; but greater than those
        of all commits before, of all queries of the table, if the clock was set back.
        """
        ((now,),) = cursor.execute(NOW).fetchall()
        given = (row.rows_version for row in self.rows(cursor, address))
        return max(int(now), 1 + max(given, default=0))

    def advance(
        self,
        cursor: Cursor,
        address: ClickHouseAddress,
        row: ClickHouseFenceRow,
        following: ClickHouseFenceRow,
    ) -> bool:
        """Replace a token by the following one. Return False if another process has replaced it.

        Raises:
            ClickHouseError: the server failed, or has not answered.
        """
        key = _key(address, row.query_id)
        comment = literal(json.dumps(asdict(following), ensure_ascii=False))
        add = f"ADD COLUMN {quoted(f'{key}_{following.number}')} UInt8 COMMENT {comment}"
        first = (
            f"ADD COLUMN {quoted(key)} UInt8"
            if row.number == NO_BATCH
            else f"DROP COLUMN {quoted(f'{key}_{row.number}')}"
        )
        try:
            send(cursor, f"ALTER TABLE {address.fence_sql} {first}, {add}")
        except ClickHouseError as error:
            if error.code in (*NO_SUCH_COLUMN, *COLUMN_EXISTS):
                return False
            raise
        if row.query_id.startswith(BATCH_WRITE_PREFIX):
            self.prune(cursor, address)
        return True

    def accept(self, cursor: Cursor, address: ClickHouseAddress, query_id: str, table_id: str) -> None:  # type: ignore[override]
        row = self.read(cursor, address, query_id)
        if row is not None:
            accepted = replace(row, number=row.number + 1, table_id=table_id, rows_in="")
            self.advance(cursor, address, row, accepted)

    def remove(self, cursor: Cursor, address: ClickHouseAddress, query_id: str) -> None:  # type: ignore[override]
        """
        Raises:
            RetryableError: rows of the last batch are not in the table yet.
        """
        row = self.read(cursor, address, query_id)
        if row is not None and exist(cursor, address.schema, [row.rows_in]):
            raise RetryableError(
                f"Rows of batch {row.batch_id} of query {query_id} wait in {row.rows_in}, and are moved when "
                "the token of the query is read: run penstock recover. The token was not removed."
            )
        if row is not None:
            self._drop(cursor, address, row)

    def prune(self, cursor: Cursor, address: ClickHouseAddress) -> None:  # type: ignore[override]
        before = (datetime.now(timezone.utc) - _KEPT).isoformat()
        for row in self.rows(cursor, address):
            is_old = row.query_id.startswith(BATCH_WRITE_PREFIX) and row.committed_at < before
            if is_old and not exist(cursor, address.schema, [row.rows_in]):
                self._drop(cursor, address, row)

    def last_of_origin(  # type: ignore[override]
        self, cursor: Cursor, address: ClickHouseAddress, origin: str, table_id: str
    ) -> str | None:
        of_table = [row for row in self.rows(cursor, address) if row.table_id == table_id]
        committed = [row for row in of_table if row.token is not None and origin in row.origins]
        return max(committed, key=lambda row: row.committed_at).query_id if committed else None

    def rows(self, cursor: Cursor, address: ClickHouseAddress) -> list[ClickHouseFenceRow]:
        """The tokens of all queries of the table."""
        found = cursor.execute(_COLUMNS, (address.schema, FENCE_TABLE)).fetchall()
        rows = (_row(name, comment) for name, comment in found)
        return [row for row in rows if row is not None and row.table_name == address.table]

    def _drop(self, cursor: Cursor, address: ClickHouseAddress, row: ClickHouseFenceRow) -> None:
        key = _key(address, row.query_id)
        token = quoted(f"{key}_{row.number}")
        cursor.execute(f"ALTER TABLE {address.fence_sql} DROP COLUMN {token}, DROP COLUMN {quoted(key)}")


def send(cursor: Cursor, statement: str) -> None:
    """Send the statement that decides about a batch."""
    cursor.execute(statement)


def _key(address: ClickHouseAddress, query_id: str) -> str:
    return f"q{query_hash(query_id, address.sql)}"


def _row(name: str, comment: str) -> ClickHouseFenceRow | None:
    """None if the column is not a token."""
    try:
        fields: dict[str, Any] = json.loads(comment)
        return ClickHouseFenceRow(
            **{**fields, "origins": tuple(fields["origins"]), "number": int(name.rpartition("_")[2])}
        )
    except (ValueError, TypeError, KeyError):
        return None
