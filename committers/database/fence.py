"""The fence table: the token of each query, stored next to the tables that the queries write.

A commit locks the query's row, so that two drivers commit one after the other and the second one sees what
the first has done. The row is updated in the transaction that moves the rows.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..contract import BATCH_WRITE_PREFIX, Batch, Token
from .contract import Cursor, TableAddress

FENCE_TABLE = "penstock_fence"
REFUSED_TABLE = "penstock_refused"
_NO_BATCH = -1


@dataclass(frozen=True, slots=True)
class FenceRow:
    """The row of one query and table."""

    batch_id: int
    digest: str
    version: int
    """Number of commits that the query has made to the table."""
    table_id: str

    @property
    def token(self) -> Token | None:
        return None if self.batch_id == _NO_BATCH else Token(self.batch_id, self.digest)


class Fence(ABC):
    """The statements of the fence table of one database. Has no state.

    The columns are `query_id`, `table_name`, `batch_id`, `digest`, `version`, the id of the table, `origins`
    and `committed_at`, which has a default; the first two are the primary key.
    """

    column_types: ClassVar[Mapping[str, str]]
    """Of `query_id`, `table_name`, `batch_id`, `digest`, `table_id`, `origins` and `committed_at`; of other
    columns with texts as `text`, of bytes as `content`.
    """
    table_options: ClassVar[str] = ""
    """What follows the columns, with `{comment}`."""
    id_column: ClassVar[str] = "table_id"
    insert: ClassVar[str]
    """Inserts `{columns}` with `{values}` into `{fence}` unless the row is there. Waits for another
    transaction that is inserting it.
    """
    for_update: ClassVar[str] = " FOR UPDATE"
    """Locks the row that a query selects. Empty if the database does not lock rows: then a transaction that
    changes a row which another one has changed must fail.
    """

    now: ClassVar[str] = "CURRENT_TIMESTAMP"
    """The time of `committed_at`."""

    @property
    def default_time(self) -> str:
        return self.now

    @abstractmethod
    def is_there(self, cursor: Cursor, address: TableAddress) -> bool:
        """Return True if the fence table exists."""

    @abstractmethod
    def prune(self, cursor: Cursor, address: TableAddress) -> None:
        """Delete the rows of old batch writes, which are no longer read, if the user may do so. Must not wait
        for other batch writes, which may be doing this.
        """

    def origins(self, origins: Sequence[str]) -> Any:
        """The value of the column `origins`."""
        return json.dumps(list(origins), ensure_ascii=False)

    def create(self, cursor: Cursor, address: Any) -> None:
        """Create the table if it is missing."""
        types = self.column_types
        kinds = {name: types[name] for name in ("query_id", "table_name", "batch_id", "digest")}
        kinds |= {
            "version": types["batch_id"],
            self.id_column: types["table_id"],
            "origins": types["origins"],
        }
        columns = [f"{name} {kind} NOT NULL" for name, kind in kinds.items()]
        columns.append(f"committed_at {types['committed_at']} NOT NULL DEFAULT {self.default_time}")
        columns.append("PRIMARY KEY (query_id, table_name)")
        self._create(cursor, address, FENCE_TABLE, columns, "the last batch of each query")

    def _create(self, cursor: Cursor, address: Any, name: str, columns: Sequence[str], comment: str) -> None:
        table = address.names.qualified(address.schema, name)
        options = self.table_options.format(comment=f"penstock, {comment}")
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)}){options}")

    def read(self, cursor: Cursor, address: TableAddress, query_id: str) -> FenceRow | None:
        """The query's row; None if it has committed nothing."""
        if not self.is_there(cursor, address):
            return None
        row = cursor.execute(self._select(address), (query_id, address.table)).fetchone()
        return None if row is None else FenceRow(*row)

    def commits(self, cursor: Cursor, address: TableAddress) -> tuple[tuple[str, int], ...]:
        """Return the queries that have committed to the table, and the number of commits of each."""
        if not self.is_there(cursor, address):
            return ()
        rows = cursor.execute(
            f"SELECT query_id, version FROM {_sql(address)} WHERE table_name = %s AND batch_id >= 0 "
            "ORDER BY query_id",
            (address.table,),
        ).fetchall()
        return tuple((str(query_id), int(version)) for query_id, version in rows)

    def lock(self, cursor: Cursor, address: TableAddress, query_id: str, table_id: str) -> FenceRow:
        """Lock the query's row until this transaction ends; insert it if there is none.

        Waits for another transaction that holds the row, including one that is inserting it, and then reads
        its result.
        """
        columns = f"query_id, table_name, batch_id, digest, version, {self.id_column}, origins"
        values = (query_id, address.table, _NO_BATCH, "", 0, table_id, self.origins(()))
        places = ", ".join(["%s"] * len(values))
        cursor.execute(self.insert.format(fence=_sql(address), columns=columns, values=places), values)
        statement = self._select(address) + self.for_update
        row = cursor.execute(statement, (query_id, address.table)).fetchone()
        assert row is not None
        return FenceRow(*row)

    def update(
        self, cursor: Cursor, address: TableAddress, batch: Batch, table_id: str, origins: Sequence[str]
    ) -> None:
        """Make the batch the query's token."""
        query_id = batch.stream.query_id
        cursor.execute(
            f"UPDATE {_sql(address)} SET batch_id = %s, digest = %s, version = version + 1, "
            f"{self.id_column} = %s, origins = %s, committed_at = {self.now} "
            "WHERE query_id = %s AND table_name = %s",
            (batch.batch_id, batch.digest, table_id, self.origins(origins), query_id, address.table),
        )
        if query_id.startswith(BATCH_WRITE_PREFIX):
            self.prune(cursor, address)

    def accept(self, cursor: Cursor, address: TableAddress, query_id: str, table_id: str) -> None:
        """Accept the table with this id as the one that the query wrote."""
        if self.is_there(cursor, address):
            cursor.execute(
                f"UPDATE {_sql(address)} SET {self.id_column} = %s WHERE query_id = %s AND table_name = %s",
                (table_id, query_id, address.table),
            )

    def remove(self, cursor: Cursor, address: TableAddress, query_id: str) -> None:
        """Remove the row of a query that has ended for good."""
        if self.is_there(cursor, address):
            cursor.execute(
                f"DELETE FROM {_sql(address)} WHERE query_id = %s AND table_name = %s",
                (query_id, address.table),
            )

    def last_of_origin(self, cursor: Cursor, address: TableAddress, origin: str, table_id: str) -> str | None:
        """The query that was the last to commit to the table from this origin."""
        rows = cursor.execute(
            f"SELECT query_id, origins FROM {_sql(address)} WHERE table_name = %s AND {self.id_column} = %s "
            "AND batch_id >= 0 ORDER BY committed_at DESC",
            (address.table, table_id),
        ).fetchall()
        return next((str(query_id) for query_id, origins in rows if origin in json.loads(origins)), None)

    def _select(self, address: TableAddress) -> str:
        return (
            f"SELECT batch_id, digest, version, {self.id_column} FROM {_sql(address)} "
            "WHERE query_id = %s AND table_name = %s"
        )


class FenceAndRefused(Fence):
    """The fence of `OneRefusedTable`, with the table of refused rows beside it."""

    count: ClassVar[str]
    """Counts the tables of a schema that have one of two names."""
    week_ago: ClassVar[str]
    """The time of `now` a week ago."""
    skip_locked: ClassVar[str] = " FOR UPDATE SKIP LOCKED"
    """Locks the rows that a query selects, and does not wait for rows that others have locked."""

    def is_there(self, cursor: Cursor, address: TableAddress) -> bool:
        """See `Fence`. True if both tables are there."""
        names = (address.schema, FENCE_TABLE, REFUSED_TABLE)
        ((count,),) = cursor.execute(self.count, names).fetchall()
        return int(count) == 2

    def create(self, cursor: Cursor, address: Any) -> None:
        super().create(cursor, address)
        types, text = self.column_types, self.column_types["text"]
        kinds = {name: types[name] for name in ("query_id", "table_name", "batch_id")}
        kinds |= {"letter_id": types["query_id"], **dict.fromkeys(("row_id", "code", "message"), text)}
        kinds |= {"refused_at": types.get("refused_at", text), "content": types["content"]}
        columns = [f"{name} {kind} NOT NULL" for name, kind in kinds.items()]
        columns.append("PRIMARY KEY (query_id, table_name, batch_id, letter_id)")
        comment = "refused rows until the manifest store has them"
        self._create(cursor, address, REFUSED_TABLE, columns, comment)

    def prune(self, cursor: Cursor, address: Any) -> None:
        rows = cursor.execute(
            f"SELECT query_id FROM {_sql(address)} WHERE query_id LIKE %s AND table_name = %s "
            f"AND committed_at < {self.week_ago}{self.skip_locked}",
            (f"{BATCH_WRITE_PREFIX}%", address.table),
        ).fetchall()
        for (query_id,) in rows:
            self.remove(cursor, address, query_id)

    def remove(self, cursor: Cursor, address: Any, query_id: str) -> None:
        super().remove(cursor, address, query_id)
        if self.is_there(cursor, address):
            refused = address.refused_sql.replace("%", "%%")
            delete = f"DELETE FROM {refused} WHERE query_id = %s AND table_name = %s"
            cursor.execute(delete, (query_id, address.table))


def _sql(address: TableAddress) -> str:
    """The fence table's name for a statement with parameters, in which percent signs are doubled."""
    return address.fence_sql.replace("%", "%%")
