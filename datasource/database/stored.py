"""Database tables for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...committers.contract import DataFile, Manifest
from ...committers.database.content import Manifests
from ...committers.database.staging import staging_path
from ...committers.errors import TableChangedError
from ..stored.stored_table import TableNow

if TYPE_CHECKING:
    from ...committers.cleaning.cleanup import NameParser
    from ...committers.contract import Batch, StreamKey
    from ...committers.database.cleanup import DatabaseCleanableTable
    from ...committers.database.committer import DatabaseCommitter
    from ...committers.database.dialect import Dialect
    from ...committers.database.server import DatabaseServer
    from ...committers.store.sql import SqlManifestStore
    from ..stored.batch_rows import WaitingRows
    from ..stored.table_access import TableAccess


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

    def committer(self) -> DatabaseCommitter:
        server, address = self.server()
        from ...committers.database.committer import DatabaseCommitter

        return DatabaseCommitter(server, self.dialect, address)

    def now(self) -> TableNow | None:
        """See `StoredTable`. Creates no missing database."""
        server, _ = self.server()
        if server.is_missing():
            return None
        table = self.committer()
        oid = table.table_id(self.stream.query_id)
        return None if oid is None else TableNow(oid, table.version(self.stream.query_id))

    def batch_rows(self, manifest: Manifest, store: SqlManifestStore) -> Iterator[WaitingRows]:
        """See `HoldsRows`."""
        server, _ = self.server()
        from ...committers.database.staged_rows import each_batch
        from ...committers.database.staging import StagingName
        from ..stored.batch_rows import WaitingRows

        content, dialect = self.dialect.manifests.decode(manifest), self.dialect
        with server.transaction("Nothing was read") as cursor:
            for staged in content.staged:
                if not all(dialect.exist(cursor, [staged])):
                    raise TableChangedError(f"The staging table {staged.path} is missing.")
                name, first = StagingName.parse(staged.name), 0
                for rows in each_batch(cursor, dialect, content, staged):
                    yield WaitingRows(0 if name is None else name.partition, first, rows)
                    first += rows.num_rows

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


def staging_tables_of(manifest: Manifest, manifests: Manifests) -> list[DataFile]:
    query_id = manifest.batch.stream.query_id
    return [
        DataFile(staging_path(query_id, table.schema, table.name), table.size_bytes, table.rows)
        for table in manifests.decode(manifest).staged
    ]
