"""Postgres tables for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...committers.contract import DataFile, Manifest
from ...committers.errors import ConfigurationError, TableChangedError, shown
from ...committers.postgres.address import PostgresAddress
from ...committers.postgres.content import decode
from ...committers.postgres.staging import staging_path
from ..destinations import DestinationType, TableNow, with_prefix
from .options import OPTIONS, PostgresOptions, require_driver

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.cleanup import NameParser
    from ...committers.contract import Batch, StreamKey
    from ...committers.postgres.cleanup import PostgresCleanableTable
    from ...committers.postgres.committer import PostgresCommitter
    from ...committers.postgres.connection import PostgresServer
    from ...committers.store.sql import SqlManifestStore
    from ..batch_rows import WaitingRows
    from ..table_access import TableAccess
    from .sink import PostgresSink


@dataclass(frozen=True, slots=True)
class StoredPostgres:
    """See `StoredTable`. User and password come from libpq's environment, not from the store."""

    stream: StreamKey

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
        from ..batch_rows import WaitingRows

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
        check_password_is_for(address)
        return PostgresServer(address.settings, address.uri), address


def check_password_is_for(address: PostgresAddress) -> None:
    """Refuse to send PGPASSWORD to a server that only the store names: it may ask for the password in clear
    text.

    Raises:
        ConfigurationError: PGPASSWORD is set, and the environment does not name this server.
    """
    named = os.environ.get("PGHOST"), os.environ.get("PGPORT", "5432")
    if "PGPASSWORD" in os.environ and named != (address.host, address.port):
        raise ConfigurationError(
            f"The manifest store says that the server of {shown(address.uri)} is {shown(address.host)}, port "
            f"{shown(address.port)}, to which PGPASSWORD would be sent. Nothing was sent. If this is the "
            f"right server, confirm it with PGHOST={address.host} PGPORT={address.port}, or put the password "
            "into ~/.pgpass, which names its server. Otherwise somebody has changed the store: find out who "
            "can write to it."
        )


def _sink_of(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> PostgresSink:
    """Return the sink of a stream. User and password come from libpq's environment."""
    require_driver()
    from psycopg.conninfo import make_conninfo

    from .sink import PostgresSink

    address = PostgresAddress.parse(stream.table_uri)
    check_password_is_for(address)
    given = with_prefix("storage.", options, access.storage)
    return PostgresSink(PostgresOptions.parse({**given, "url": make_conninfo(**address.settings)}))


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
    stored_table=lambda stream, access: StoredPostgres(stream),
    files_of=_staging_tables_of,
)
