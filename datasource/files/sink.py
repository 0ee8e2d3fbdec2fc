"""The sink for folders of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from ...committers.contract import Batch, DataFiles, Manifest, Mode, PlannedBatch
from ...committers.dead_letters import BadRows
from ...committers.errors import ConfigurationError, SchemaMismatchError, TableNotSupportedError
from ...committers.files.cleanup import CleanableFolder
from ...committers.files.committer import FilesCommitter
from ...committers.files.local_folder import staging_of
from ...committers.files.manifests import KIND, MANIFESTS, Completion
from ...committers.files.markers import Markers
from ...committers.files.object_folder import is_remote
from ...writers.delta.filesystem import open_filesystem
from ...writers.delta.partitions import check_partition_columns
from ...writers.delta.table_format import DeltaFormat
from ...writers.files.table_format import RowFilesFormat, parse_name
from ...writers.files.uploading import UploadingWriters
from ...writers.parquet.write_config import WriteConfig
from ..destinations import DestinationType, TableNow, with_prefix
from ..plain_sink import PlainSink
from .catalog_table import check_table
from .existing_files import differences, format_problems
from .options import OPTIONS, FilesOptions

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from ...committers.cleanup import CleanableTable, NameParser
    from ...committers.contract import StreamKey
    from ...committers.store.sql import SqlManifestStore
    from ...writers.parquet.table_format import TableFormat
    from ..table_access import TableAccess

_TABLES = {"_delta_log": "Delta", "metadata/*.metadata.json": "Iceberg", ".hoodie": "Hudi"}


@dataclass(frozen=True, slots=True)
class FilesTarget(FilesCommitter):
    """The target of a stream into a folder, with the options of its query. See `Target`."""

    options: FilesOptions = field(kw_only=True)

    @property
    def adds_partitions(self) -> bool:
        return self.options.catalog_table is not None

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedBatch[DataFiles, str]:
        if mode != "append":
            raise ConfigurationError(
                "penstock.files cannot overwrite a folder. Use the output mode append, or penstock.delta."
            )
        self._check_folder()
        partition_by = self.options.partition_by or ()
        check_partition_columns(rows, partition_by)
        self._check_types(rows, partition_by)
        place = self.place
        if not self.options.create_table and not place.exists():
            raise ConfigurationError(f"There is no folder {self.folder}, and createTable is false.")
        table = self.options.catalog_table
        if table is not None:
            check_table(
                table, self.catalog_properties, self.folder, rows, partition_by, self.options.file_format
            )
        place.open(create=self.options.create_table)
        is_uploaded = is_remote(self.folder)
        config = WriteConfig(
            location=self.folder if is_uploaded else staging_of(self.folder),
            storage_options=dict(self.storage_options) if is_uploaded else {},
            schema=pa.schema([field.with_nullable(True) for field in rows]),
            table_format=_table_format(self.options, partition_by),
            target_file_bytes=self.options.target_file_bytes,
            buffer_bytes_max=self.options.buffer_bytes_max,
            compression=self.options.codec if self.options.file_format == "parquet" else "none",
            narrows=self.options.bad_rows is not BadRows.FAIL,
        )
        return PlannedBatch(UploadingWriters(config) if is_uploaded else config, content=mode, target_id="")

    def manifest(self, batch: Batch, content: str, payloads: Sequence[DataFiles]) -> Manifest:
        markers = Markers(self.options.success, self.options.manifests)
        return MANIFESTS.encode_with(batch, payloads, Completion(markers, self.options.catalog_table))

    def _check_folder(self) -> None:
        for name, table in _TABLES.items():
            if self.place.has(name):
                raise TableNotSupportedError(
                    f"{self.folder} is a table of {table}: it has {name}. Files that its metadata does not "
                    f"list are not part of it. Use a sink for {table} tables, or another folder."
                )

    def _check_types(self, rows: pa.Schema, partition_by: Sequence[str]) -> None:
        problems = [
            f"{name}: partitions of {rows.field(name).type} are read back as strings or not at all. "
            "Partition by a date, a text, a boolean or an integer."
            for name in partition_by
            if pa.types.is_timestamp(rows.field(name).type) or pa.types.is_decimal(rows.field(name).type)
        ]
        file_format = self.options.file_format
        problems += format_problems(rows, partition_by, file_format)
        problems += differences(
            self.folder,
            self.storage_options,
            rows,
            partition_by,
            file_format,
            add_columns=self.options.add_columns,
        )
        if problems:
            raise SchemaMismatchError(f"The rows do not fit {self.folder}.\n- " + "\n- ".join(problems))


def _table_format(options: FilesOptions, partition_by: tuple[str, ...]) -> TableFormat:
    if options.file_format == "parquet":
        return DeltaFormat(partition_by, statistics_columns=())
    return RowFilesFormat(
        partition_by, statistics_columns=(), file_format=options.file_format, codec=options.codec
    )


@dataclass(frozen=True, slots=True)
class StoredFolder(FilesCommitter):
    """The folder without the options of a query, for commands. See `StoredTable`."""

    query_id: str = field(kw_only=True)

    def committer(self) -> FilesCommitter:
        return self

    def now(self) -> TableNow | None:
        """The version is the last batch of the query: a folder has none."""
        if not self.place.exists():
            return None
        token = self.token(self.query_id)
        return TableNow("", -1 if token is None else token.batch_id)

    def cleanable(self, store: SqlManifestStore) -> CleanableTable:
        """See `Cleanable`."""
        return CleanableFolder(self)

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        return parse_name

    def moves_rows(self) -> bool:
        """Published files are no longer where tasks have left them."""
        return False


class FilesSink(PlainSink[DataFiles, str]):
    """See `Sink`."""

    def open_filesystem(self, location: str) -> tuple[FileSystem, str]:
        """Open a location, a remote one with the options `storage.*` if there are any."""
        storage = self.options.storage_options if isinstance(self.options, FilesOptions) else {}
        return open_filesystem(location, dict(storage)) if storage else super().open_filesystem(location)


def sink_of(options: FilesOptions) -> FilesSink:
    target = FilesTarget(options.path, options.storage_options, options.catalog_properties, options=options)
    return FilesSink(KIND, options.path, options, target)


def _sink_of(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> FilesSink:
    catalog = access.catalog if "catalogTable" in options else {}  # other streams may have another catalog
    given = with_prefix("catalog.", with_prefix("storage.", options, access.storage), catalog)
    return sink_of(FilesOptions.parse(given))


DESTINATION = DestinationType(
    kind=KIND,
    data_source="penstock.datasource.files.source:FilesDataSource",
    options=OPTIONS,
    sink=_sink_of,
    stored_table=lambda stream, access: StoredFolder(
        stream.table_uri, access.storage, access.catalog, query_id=stream.query_id
    ),
    files_of=MANIFESTS.decode,
)
