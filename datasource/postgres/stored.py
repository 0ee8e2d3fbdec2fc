"""Postgres tables for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...committers.contract import DataFile, Manifest
from ...committers.errors import TableChangedError
from ...committers.postgres.address import PostgresAddress
from ...committers.postgres.content import decode
from ...committers.postgres.staging import staging_path
from ..destinations import DestinationType, with_prefix
from ..stored.stored_table import TableNow
from .credentials import advice_for, settings_for
from .options import OPTIONS, PostgresOptions, require_driver

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.cleaning.cleanup import NameParser
    from ...committers.contract import Batch, StreamKey
    from ...committers.postgres.cleanup import PostgresCleanableTable
    from ...committers.postgres.committer import PostgresCommitter
    from ...committers.postgres.connection import PostgresServer
    from ...committers.store.sql import SqlManifestStore
    from ..stored.batch_rows import WaitingRows
    from ..stored.table_access import TableAccess
    from .sink import PostgresSink


@dataclass(frozen=True, slots=True)
class StoredPostgres:
    """See `StoredTable`."""

    stream: StreamKey
    access: TableAccess

    def committer(self) -> PostgresCommitter:
        server, address = self._server()
        from ...committers.postgres.committer import PostgresCommitter

        return PostgresCommitter(server, address)

    def now(self) -> TableNow | None:
        table = self.committer()
        oid = table.table_id(self.stream.query_id)
        return None if oid is None else TableNow(oid, table.version(self.stream.query_id))

    def read(self, column: str, value: str) -> pa.Table | None:
        """See `Readable`."""
        from ...committers.postgres.table import read_rows

        server, address = self._server()
        with server.transaction("Nothing was read") as cursor:
            return read_rows(cursor, address, column, value)

    def batch_rows(self, manifest: Manifest, store: SqlManifestStore) -> Iterator[WaitingRows]:
        """See `HoldsRows`."""
        server, _ = self._server()
        from ...committers.postgres.staged_rows import each_batch
        from ...committers.postgres.staging import StagingName, missing_tables
        from ..stored.batch_rows import WaitingRows

        content = decode(manifest)
        with server.transaction("Nothing was read") as cursor:
            for staged in content.staged:
                if missing_tables(cursor, (staged,)):
                    raise TableChangedError(f"The staging table {staged.path} is missing.")
                name, first = StagingName.parse(staged.name), 0
                for rows in each_batch(cursor, content, staged):
                    yield WaitingRows(0 if name is None else name.partition, first, rows)
                    first += rows.num_rows

    def cleanable(self, store: SqlManifestStore) -> PostgresCleanableTable:
        server, address = self._server()
        from ...committers.postgres.cleanup import PostgresCleanableTable

        def pending() -> Iterator[Batch]:
            streams = (one.key for one in store.streams() if one.key.table_uri == self.stream.table_uri)
            return (record.batch for stream in streams for record in store.pending(stream))

        return PostgresCleanableTable(server, address, pending)

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        from ...committers.postgres.cleanup import name_parser

        return name_parser(streams)

    def moves_rows(self) -> bool:
        return True

    def _server(self) -> tuple[PostgresServer, PostgresAddress]:
        require_driver()
        from ...committers.postgres.connection import PostgresServer

        address = PostgresAddress.parse(self.stream.table_uri)
        settings = settings_for(address, self.access, address.uri)
        return PostgresServer(settings, address.uri, advice_for(address, self.access)), address


def _sink_of(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> PostgresSink:
    """Return the sink of a stream, with the credentials of this process."""
    require_driver()
    from psycopg.conninfo import make_conninfo

    from .sink import PostgresSink

    address = PostgresAddress.parse(stream.table_uri)
    settings = settings_for(address, access, address.uri)
    given = with_prefix("storage.", options, access.storage)
    parsed = PostgresOptions.parse({**given, "url": make_conninfo("", **settings)})
    return PostgresSink(parsed, advice=advice_for(address, access))


def _staging_tables_of(manifest: Manifest) -> list[DataFile]:
    query_id = manifest.batch.stream.query_id
    return [
        DataFile(staging_path(query_id, table.schema, table.name), table.size_bytes, table.rows)
        for table in decode(manifest).staged
    ]


DESTINATION = DestinationType(
    kind="postgres",
    data_source="penstock.datasource.postgres.source:PostgresDataSource",
    options=OPTIONS,
    sink=_sink_of,
    stored_table=StoredPostgres,
    files_of=_staging_tables_of,
    records=lambda stream, sink: sink.records(stream.query_id),
    remains="the fence table, which is for all queries of the schema",
)
