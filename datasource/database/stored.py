"""Database tables for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...committers.contract import DataFile, Manifest
from ...committers.database.staging import staging_path
from ...committers.errors import TableChangedError
from ..destinations import DestinationType, with_prefix
from ..options.parsing import Option
from ..stored.stored_table import TableNow
from ..stored.table_access import TableAccess

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.cleaning.cleanup import NameParser
    from ...committers.contract import Batch, StreamKey
    from ...committers.database.cleanup import DatabaseCleanableTable
    from ...committers.database.committer import DatabaseCommitter
    from ...committers.database.content import TableContent
    from ...committers.database.contract import Cursor
    from ...committers.database.dialect import Dialect
    from ...committers.database.server import DatabaseServer
    from ...committers.database.staging import StagingTable
    from ...committers.store.sql import SqlManifestStore
    from ..stored.batch_rows import WaitingRows
    from .sink import DatabaseSink


@dataclass(frozen=True, slots=True)
class StoredDatabase(ABC):
    """See `StoredTable`."""

    stream: StreamKey
    access: TableAccess

    @property
    @abstractmethod
    def dialect(self) -> Dialect:
        """Of the table's database."""

    @abstractmethod
    def server(self) -> tuple[DatabaseServer, Any]:
        """The database of the table and the address of the table, with the credentials of this process."""

    @abstractmethod
    def sink(self, storage: Mapping[str, str]) -> DatabaseSink:
        """Return the sink of the stream, with the credentials of this process.

        Args:
            storage: the options `storage.*`
        """

    def committer(self) -> DatabaseCommitter:
        server, address = self.server()
        from ...committers.database.transaction import TransactionCommitter

        return TransactionCommitter(server, self.dialect, address)

    def now(self) -> TableNow | None:
        """See `StoredTable`. Creates no missing database."""
        server, _ = self.server()
        if server.is_missing():
            return None
        table = self.committer()
        oid = table.table_id(self.stream.query_id)
        return None if oid is None else TableNow(oid, table.version(self.stream.query_id))

    def read(self, column: str, value: str) -> pa.Table | None:
        """See `Readable`."""
        import pyarrow as pa

        from ...committers.database.dialect import array_of

        server, address = self.server()
        quoted, types = self.dialect.quoted, self.dialect.types
        with server.transaction("Nothing was read") as cursor:
            table = self.dialect.load(cursor, address)
            if table is None:
                return None
            names = [one.name for one in table.columns]
            select = f"SELECT {', '.join(map(quoted, names))} FROM {address.sql}".replace("%", "%%")
            found = cursor.execute(f"{select} WHERE {quoted(column)} = %s", (value,)).fetchall()
        columns = zip(*found, strict=True) if found else ([] for _ in names)
        kinds = [types.arrow_type(one.sql_type) for one in table.columns]
        return pa.table([array_of(values, kind) for values, kind in zip(columns, kinds, strict=True)], names)

    def batch_rows(self, manifest: Manifest, store: SqlManifestStore) -> Iterator[WaitingRows]:
        """See `HoldsRows`."""
        server, _ = self.server()
        from ...committers.database.staging import StagingName
        from ..stored.batch_rows import WaitingRows

        content, dialect = self.dialect.manifests.decode(manifest), self.dialect
        with server.transaction("Nothing was read") as cursor:
            for staged in content.staged:
                if not all(dialect.exist(cursor, [staged])):
                    raise TableChangedError(f"The staging table {staged.path} is missing.")
                name, first = StagingName.parse(staged.name), 0
                for rows in self.rows_of(cursor, content, staged):
                    yield WaitingRows(0 if name is None else name.partition, first, rows)
                    first += rows.num_rows

    def rows_of(
        self, cursor: Cursor, content: TableContent, staged: StagingTable
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a staging table, some at a time."""
        from ...committers.database.staged_rows import each_batch

        return each_batch(cursor, self.dialect, content, staged)

    def cleanable(self, store: SqlManifestStore) -> DatabaseCleanableTable:
        server, address = self.server()
        from ...committers.database.cleanup import DatabaseCleanableTable

        def pending() -> Iterator[Batch]:
            streams = (one.key for one in store.streams() if one.key.table_uri == self.stream.table_uri)
            return (record.batch for stream in streams for record in store.pending(stream))

        return DatabaseCleanableTable(server, self.dialect, address, pending)

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        from ...committers.database.cleanup import name_parser

        return name_parser(streams, self.dialect)

    def moves_rows(self) -> bool:
        return True


def destination(
    kind: str,
    stored: type[StoredDatabase],
    options: tuple[Option, ...],
    data_source: str,
    remains: str = "the tables penstock_fence and penstock_refused, which are for all queries of the schema",
) -> DestinationType:
    """
    Args:
        stored: the class of its stored tables
        data_source: its class
    """

    def staging_tables_of(manifest: Manifest) -> list[DataFile]:
        stream = manifest.batch.stream
        return [
            DataFile(staging_path(stream.query_id, table.schema, table.name), table.size_bytes, table.rows)
            for table in stored(stream, TableAccess({}, {})).dialect.manifests.decode(manifest).staged
        ]

    def sink_of(stream: StreamKey, given: Mapping[str, str], access: TableAccess) -> DatabaseSink:
        return stored(stream, access).sink(with_prefix("storage.", given, access.storage))

    return DestinationType(
        kind=kind,
        data_source=f"penstock.datasource.{kind}.source:{data_source}",
        options=options,
        sink=sink_of,
        stored_table=stored,
        files_of=staging_tables_of,
        records=lambda stream, sink: sink.records(stream.query_id),
        remains=remains,
    )
