"""The sink for DuckLake tables, and the tables for commands and the delivery process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...committers.changes.key_files import data_files
from ...committers.contract import Manifest, PartitionField
from ...committers.delta.probing import storage_probe
from ...committers.ducklake.address import DuckLakeAddress, DuckLakeCatalog
from ...committers.maintenance import MaintenancePolicy, Step
from ...committers.probing import Probe
from ..destinations import DestinationType, with_prefix
from ..file_table import CleanableFiles, data_files_of, partition_fields
from ..plain_sink import BaseSink
from ..stored.batch_rows import WaitingRows, parquet_rows
from ..stored.stored_table import TableNow
from .options import OPTIONS, DuckLakeOptions, require_duckdb

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.cleaning.cleanup import CleanableTable
    from ...committers.contract import StreamKey
    from ...committers.ducklake.committer import DuckLakeCommitter
    from ...committers.ducklake.connection import LakeServer
    from ...committers.ducklake.files import DuckLakeRecords
    from ...committers.store.sql import SqlManifestStore
    from ..sink import MaintenanceContext
    from ..stored.table_access import TableAccess
    from .target import DuckLakeTarget


def _server(address: DuckLakeAddress, storage: Mapping[str, str]) -> LakeServer:
    require_duckdb()
    from ...committers.ducklake.connection import LakeServer

    return LakeServer(address, storage)


@dataclass(frozen=True, slots=True)
class DuckLakeSink(BaseSink):
    """See `Sink`."""

    options: DuckLakeOptions
    kind: str = "ducklake"
    _address: DuckLakeAddress = field(init=False)

    def __post_init__(self) -> None:
        catalog = DuckLakeCatalog.parse(self.options.catalog)
        object.__setattr__(self, "_address", DuckLakeAddress(catalog, *self.options.table))

    @property
    def table_uri(self) -> str:
        return self._address.uri

    def open_table(self) -> DuckLakeTarget:
        from .target import DuckLakeTarget

        return DuckLakeTarget(_server(self._address, self.options.storage_options), self.options)

    def probes(self) -> Sequence[Probe]:
        """See `ProbesStorage`."""
        storage = self.options.storage_options
        server = _server(self._address, storage)
        from ...committers.ducklake.files import location_of

        location = location_of(server) or self.options.data_path
        return () if location is None else (storage_probe(location, storage),)

    def records(self, query_id: str) -> DuckLakeRecords:
        server = _server(self._address, self.options.storage_options)
        from ...committers.ducklake.files import DuckLakeRecords

        return DuckLakeRecords(server, query_id)

    def maintenance_policy(self) -> MaintenancePolicy:
        return self.options.maintenance_policy

    def maintenance_steps(self, context: MaintenanceContext) -> list[Step]:
        from ...committers.ducklake.maintenance import delete_removed_files, merge_files

        server = _server(self._address, self.options.storage_options)

        def merge() -> str:
            count = merge_files(server)
            return f"merged {count:,} files" if count else ""

        def remove() -> str:
            count = delete_removed_files(server)
            return f"deleted {count:,} files that the DuckLake has removed" if count else ""

        return [
            Step("compact", context.policy.compact_s, merge),
            Step("vacuum", context.policy.vacuum_s, remove),
            context.orphans(StoredDuckLake(self._address, self.options.storage_options)),
        ]

    def partitioning(self) -> tuple[PartitionField, ...]:
        """See `Partitioned`."""
        table = StoredDuckLake(self._address, self.options.storage_options).committer().table()
        names = self.options.partition_by or () if table is None else table.partition_by
        return partition_fields(names)

    def is_maintained(self) -> bool:
        """False: the files of other tables are affected, so the option `maintenance` has to ask for it."""
        return False


@dataclass(frozen=True, slots=True)
class StoredDuckLake(CleanableFiles):
    """See `StoredTable`."""

    address: DuckLakeAddress
    storage: Mapping[str, str] = field(repr=False)

    def committer(self) -> DuckLakeCommitter:
        server = _server(self.address, self.storage)
        from ...committers.ducklake.committer import DuckLakeCommitter

        return DuckLakeCommitter(server)

    def now(self) -> TableNow | None:
        table = self.committer().table()
        return None if table is None else TableNow(table.table_id, table.snapshot)

    def read(self, column: str, value: str) -> pa.Table | None:
        """See `Readable`."""
        server = _server(self.address, self.storage)
        from ...committers.ducklake.table import read_rows

        return read_rows(server, column, value)

    def batch_rows(self, manifest: Manifest, store: SqlManifestStore) -> Iterator[WaitingRows]:
        """See `HoldsRows`."""
        server = _server(self.address, self.storage)
        from ...committers.ducklake.files import files_of

        return parquet_rows(files_of(server), data_files(data_files_of(manifest)))

    def cleanable(self, store: SqlManifestStore) -> CleanableTable:
        server = _server(self.address, self.storage)
        from ...committers.ducklake.files import DuckLakeCleanableTable

        return DuckLakeCleanableTable(server)


def _address_of(stream: StreamKey, access: TableAccess) -> DuckLakeAddress:
    """Parse the address in the store, and add the credentials of a catalog in Postgres."""
    address = DuckLakeAddress.parse(stream.table_uri)
    if address.catalog.is_local:
        return address
    from ..postgres.credentials import settings_for

    settings = settings_for(address.postgres, access, address.uri)
    return replace(address, catalog=replace(address.catalog, settings=settings))


def _sink_of(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> DuckLakeSink:
    catalog = _address_of(stream, access).catalog
    given = with_prefix("storage.", options, access.storage)
    return DuckLakeSink(DuckLakeOptions.parse({**given, "catalog": catalog.text}))


DESTINATION = DestinationType(
    kind="ducklake",
    data_source="penstock.datasource.ducklake.source:DuckLakeDataSource",
    options=OPTIONS,
    sink=_sink_of,
    stored_table=lambda stream, access: StoredDuckLake(_address_of(stream, access), access.storage),
    files_of=data_files_of,
    ignores_case=True,
    records=lambda stream, sink: sink.records(stream.query_id),
    remains="the fence table, which is for all queries of the schema",
)
