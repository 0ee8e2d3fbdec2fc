"""The sink for Lance tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...committers.changes.key_files import data_files
from ...committers.contract import Changes, Manifest, Mode, PlannedBatch
from ...committers.delta.probing import storage_probe
from ...committers.file_tables.manifest import LakeManifest, PlannedFiles
from ...committers.lance.committer import LanceTableCommitter
from ...committers.lance.library import load_if_there, read_rows, require_library
from ...committers.lance.plan import PlanOptions, plan
from ...committers.lance.schema import files_of
from ...committers.lance.table import KIND, MAINTENANCE, table_id_of
from ...committers.maintenance import MaintenancePolicy, Step
from ...committers.probing import Probe
from ...writers.changes.change_files import ChangeFilesConfig
from ...writers.delta.filesystem import open_filesystem
from ...writers.lance.names import parse_lance_name
from ...writers.lance.writer import LanceWriters
from ...writers.parquet.file_names import parse_file_name
from ...writers.parquet.schema_projection import check_fits
from ..changes.planning import plan_changes
from ..destinations import DestinationType, with_prefix
from ..file_table import CleanableFiles, FileTableTarget, check_location_is_free, data_files_of
from ..options.delivery import TARGET_FILE_BYTES
from ..options.stream import origins_of
from ..plain_sink import StorageSink
from ..stored.batch_rows import ROWS_READ, WaitingRows
from ..stored.stored_table import TableNow
from .options import OPTIONS, LanceOptions
from .rewriting import LanceRewriter

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.cleaning.cleanup import CleanableTable, NameParser
    from ...committers.contract import StreamKey
    from ...committers.store.sql import SqlManifestStore
    from ..sink import MaintenanceContext
    from ..stored.table_access import TableAccess

_OF_LANCE = {"data", "_deletions", "_indices", "_refs", "_transactions", "_versions", "tree"}
"""Folders of a Lance table. A table that was dropped may have left some."""


@dataclass(frozen=True, slots=True)
class LanceSink(StorageSink):
    """See `Sink`."""

    options: LanceOptions
    kind: str = KIND

    def __post_init__(self) -> None:
        require_library()

    @property
    def table_uri(self) -> str:
        return self.options.table_uri

    def probes(self) -> Sequence[Probe]:
        """See `ProbesStorage`."""
        return (storage_probe(self.table_uri, self.options.storage_options),)

    def open_table(self) -> LanceTarget:
        return LanceTarget(self.table_uri, self.options)

    def maintenance_policy(self) -> MaintenancePolicy:
        return self.options.maintenance_policy

    def maintenance_steps(self, context: MaintenanceContext) -> list[Step]:
        from ...committers.lance.maintenance import clean_up, compact

        uri, storage = self.table_uri, self.options.storage_options
        target_bytes = self.options.target_file_bytes or TARGET_FILE_BYTES

        def remove() -> str:
            return clean_up(uri, storage, context.now(), context.pending_names())

        return [
            Step("compact", context.policy.compact_s, lambda: compact(uri, storage, target_bytes)),
            Step("vacuum", context.policy.vacuum_s, remove),
            context.orphans(StoredLance(uri, storage)),
        ]

    def is_maintained(self) -> bool:
        table = load_if_there(self.table_uri, self.options.storage_options)
        return table is not None and str(table.config().get(MAINTENANCE, "")).strip().lower() == "true"


class LanceTarget(FileTableTarget, LanceTableCommitter):
    """The target of a stream into a Lance table, with the options of its query. See `Target`."""

    def __init__(self, table_uri: str, options: LanceOptions) -> None:
        rewrite = LanceRewriter(self._writers_of, table_uri, options.storage_options)
        super().__init__(table_uri, options.storage_options, rewrite=rewrite)
        self._query = options

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        options = self._query
        changes = plan_changes(rows, mode) if isinstance(mode, Changes) else None
        rows = rows if changes is None else changes.columns
        wanted = PlanOptions(
            create=options.create_table,
            evolve=options.evolution.adds,
            vectors=options.vectors,
            file_version=options.file_version,
            stable_row_ids=options.stable_row_ids,
            properties=options.table_properties,
        )
        storage = options.storage_options
        layout, given = plan(self._uri, storage, rows, wanted, batch_id, self._check_place)
        check_fits(given, layout.schema, narrows=options.narrows)
        writers = self._writers(layout.schema, layout.file_version)
        if changes is None:
            return PlannedBatch(writers, layout.content(mode, origins_of(options)), layout.table_id)
        content = layout.content(changes.in_table(layout.schema), origins_of(options))
        return PlannedBatch(
            ChangeFilesConfig(writers, changes.kinds, may_keep=False), content, layout.table_id
        )

    def _writers(self, schema: pa.Schema, file_version: str) -> LanceWriters:
        options = self._query
        return LanceWriters(
            location=self._uri,
            storage_options=dict(options.storage_options),
            schema=schema,
            file_version=file_version,
            target_file_bytes=options.target_file_bytes or TARGET_FILE_BYTES,
            buffer_bytes_max=options.buffer_bytes_max,
            narrows=options.narrows,
        )

    def _writers_of(self, content: LakeManifest) -> LanceWriters:
        return self._writers(*files_of(content))

    def _check_place(self) -> None:
        """See `check_location_is_free`."""
        from pyarrow.fs import FileSelector

        filesystem, root = open_filesystem(self._uri, dict(self._query.storage_options))
        entries = filesystem.get_file_info(FileSelector(root, allow_not_found=True))
        check_location_is_free("Lance table", self._uri, [entry.base_name for entry in entries], _OF_LANCE)


# For the command line and the delivery process ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredLance(CleanableFiles):
    """See `StoredTable`."""

    uri: str
    storage: Mapping[str, str] = field(repr=False)

    def committer(self) -> LanceTableCommitter:
        return LanceTarget(self.uri, LanceOptions(path=self.uri, storage_options=self.storage))

    def now(self) -> TableNow | None:
        table = load_if_there(self.uri, self.storage)
        return None if table is None else TableNow(table_id_of(table), table.version)

    def read(self, column: str, value: str) -> pa.Table | None:
        """See `Readable`."""
        return read_rows(self.uri, self.storage, column, value)

    def batch_rows(self, manifest: Manifest, store: SqlManifestStore) -> Iterator[WaitingRows]:
        """See `HoldsRows`."""
        from lance.file import LanceFileReader

        for number, file in enumerate(data_files(data_files_of(manifest))):
            reader = LanceFileReader(f"{self.uri}/{file.path}", storage_options=dict(self.storage) or None)
            first = 0
            for rows in reader.read_all(batch_size=ROWS_READ).to_batches():
                yield WaitingRows(number, first, rows)
                first += rows.num_rows

    def cleanable(self, store: SqlManifestStore) -> CleanableTable:
        from ...committers.lance.cleanup import LanceCleanableTable

        return LanceCleanableTable(self.uri, self.storage)

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        return lambda path: parse_lance_name(path) or parse_file_name(path)


def _sink_of(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> LanceSink:
    return LanceSink(LanceOptions.parse(with_prefix("storage.", options, access.storage)))


DESTINATION = DestinationType(
    kind=KIND,
    data_source="penstock.datasource.lance.source:LanceDataSource",
    options=OPTIONS,
    sink=_sink_of,
    stored_table=lambda stream, access: StoredLance(stream.table_uri, access.storage),
    files_of=data_files_of,
    remains="its last batch in the metadata of the schema, with which newQuery=refuse recognizes the source",
)
