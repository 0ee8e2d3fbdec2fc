"""Clean-up of staging tables: lists those in the database with their age, and drops them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..cleaning.cleanup import ListedFile, NameParser
from ..contract import Batch, StreamKey, Token
from .contract import TableAddress
from .dialect import Dialect
from .prepared import PreparedOfQuery, names_of
from .server import DatabaseServer
from .staging import (
    StagingComment,
    StagingName,
    StagingTable,
    query_hash,
    refused_name,
    staging_path,
)


class DatabaseCleanableTable:
    """See `CleanableTable`. Its "files" are the staging tables of the database.

    Their paths are `query id/schema.name`, see `staging_path`.

    Args:
        pending: returns the batches of the table that the store has not marked. Tables of refused rows of
            these are left out.
    """

    def __init__(
        self,
        server: DatabaseServer,
        dialect: Dialect,
        address: TableAddress,
        pending: Callable[[], Iterable[Batch]] = lambda: (),
    ) -> None:
        self._server = server
        self._dialect = dialect
        self._address = address
        self._pending = pending

    def id_and_tokens(self, query_ids: Iterable[str]) -> tuple[str | None, Mapping[str, Token]]:
        with self._server.transaction("Nothing was dropped") as cursor:
            table = self._dialect.load(cursor, self._address)
            fence = self._dialect.fence
            rows = {query_id: fence.read(cursor, self._address, query_id) for query_id in query_ids}
        tokens = {query_id: row.token for query_id, row in rows.items() if row is not None and row.token}
        return None if table is None else table.table_id, tokens

    def files(self) -> Iterator[ListedFile]:
        with self._server.transaction("Nothing was dropped") as cursor:
            rows = list(self._dialect.staging_comments(cursor, self._address))
        held = {refused_name(batch, self._address.sql) for batch in self._pending()}
        for schema, name, size_bytes, comment in rows:
            parsed = StagingComment.parse(comment)
            if name in held:
                continue
            if StagingName.parse(name) is not None and parsed is not None:
                yield ListedFile(staging_path(parsed.query_id, schema, name), size_bytes, parsed.staged_at)

    def names(self) -> Iterator[set[str]]:
        """None: committed rows are in the table itself, and their staging tables are dropped."""
        return iter(())

    def delete_files(self, paths: Iterable[str]) -> int:
        tables: dict[str, list[StagingTable]] = {}
        for path in paths:
            query_id, _, staged = path.partition("/")
            schema, _, name = staged.rpartition(".")
            tables.setdefault(query_id, []).append(StagingTable(schema, name, 0, 0))
        return sum(
            drop_staged(self._server, self._dialect, self._address, query_id, staged)
            for query_id, staged in tables.items()
        )


@dataclass(frozen=True, slots=True)
class FenceRecords:
    """See `QueryRecords`: the query's row in the fence table."""

    server: DatabaseServer
    dialect: Dialect
    address: TableAddress
    query_id: str

    def found(self) -> Sequence[str]:
        with self.server.transaction("Nothing was removed") as cursor:
            row = self.dialect.fence.read(cursor, self.address, self.query_id)
        if row is None:
            return []
        return [
            f"the row query_id='{self.query_id}', table_name='{self.address.table}' of the fence table "
            f"{self.address.fence_sql}"
        ]

    def remove(self) -> None:
        settle(self.server, self.dialect, self.address, self.query_id)
        with self.server.transaction(f"The row of the fence table {self.address.fence_sql} stays") as cursor:
            self.dialect.fence.remove(cursor, self.address, self.query_id)


def drop_staged(
    server: DatabaseServer,
    dialect: Dialect,
    address: TableAddress,
    query_id: str,
    staged: Sequence[StagingTable],
) -> int:
    """Drop staging tables of a query, and roll back its prepared transactions; return their number."""
    prepared, dropped = names_of(staged), 0
    with server.transaction("Nothing was dropped") as cursor:
        table = dialect.load(cursor, address) if prepared else None
        dropped = dialect.drop(cursor, [one for one in staged if not one.is_prepared])
    if table is not None:
        dropped += PreparedOfQuery(server, dialect, address, query_id).roll_back(table.table_id, prepared)
    return dropped


def settle(server: DatabaseServer, dialect: Dialect, address: TableAddress, query_id: str) -> None:
    """End the prepared transactions of a query that have a verdict."""
    if dialect.prepared is None:
        return
    query = PreparedOfQuery(server, dialect, address, query_id)
    with server.transaction("Nothing was changed") as cursor:
        table = dialect.load(cursor, address)
        has_any = table is not None and query.has_any(cursor)
    if table is not None and has_any:
        query.settle(table.table_id)


@dataclass(frozen=True, slots=True)
class _Name:
    query_id: str
    batch_id: int


def name_parser(streams: Sequence[StreamKey], dialect: Dialect) -> NameParser:
    """Query and batch of a staging table, if it belongs to the table of these streams.

    The query id is read from a comment, which other users may change, so it is checked against the name.
    """
    table_sql = dialect.address_of(streams[0].table_uri).sql

    def parse(path: str) -> _Name | None:
        query_id, _, staged = path.partition("/")
        name = StagingName.parse(staged)
        if name is None or name.query_hash != query_hash(query_id, table_sql):
            return None
        return _Name(query_id, name.batch_id)

    return parse
