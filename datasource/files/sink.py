"""The sink for folders of Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ...committers.contract import Batch, DataFiles, Manifest, Mode, PlannedBatch
from ...committers.dead_letters import BadRows
from ...committers.errors import ConfigurationError, SchemaMismatchError, TableNotSupportedError
from ...committers.files.cleanup import CleanableFolder
from ...committers.files.committer import KIND, MANIFESTS, FilesCommitter, staging_of
from ...writers.delta.partitions import check_partition_columns
from ...writers.delta.table_format import DeltaFormat
from ...writers.parquet.write_config import WriteConfig, parse_file_name
from ..destinations import DestinationType, TableNow
from ..plain_sink import PlainSink
from .options import OPTIONS, FilesOptions

if TYPE_CHECKING:
    from ...committers.cleanup import CleanableTable, NameParser
    from ...committers.contract import StreamKey
    from ...committers.store.sql import SqlManifestStore

FilesSink: TypeAlias = PlainSink[DataFiles, str]

_TABLES = {"_delta_log": "Delta", "metadata/*.metadata.json": "Iceberg", ".hoodie": "Hudi"}


@dataclass(frozen=True, slots=True)
class FilesTarget(FilesCommitter):
    """The target of a stream into a folder, with the options of its query. See `Target`."""

    options: FilesOptions

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedBatch[DataFiles, str]:
        if mode != "append":
            raise ConfigurationError(
                "penstock.files cannot overwrite a folder. Use the output mode append, or penstock.delta."
            )
        self._check_folder()
        partition_by = self.options.partition_by or ()
        check_partition_columns(rows, partition_by)
        self._check_types(rows, partition_by)
        if not Path(self.folder).exists() and not self.options.create_table:
            raise ConfigurationError(f"There is no folder {self.folder}, and createTable is false.")
        Path(staging_of(self.folder)).mkdir(parents=True, exist_ok=True)
        if self.options.create_table and not any(Path(staging_of(self.folder)).glob("*.json")):
            Path(self.folder).mkdir(exist_ok=True)
        config = WriteConfig(
            location=staging_of(self.folder),
            storage_options={},
            schema=pa.schema([field.with_nullable(True) for field in rows]),
            table_format=DeltaFormat(partition_by, statistics_columns=()),
            target_file_bytes=self.options.target_file_bytes,
            buffer_bytes_max=self.options.buffer_bytes_max,
            compression=self.options.compression,
            narrows=self.options.bad_rows is not BadRows.FAIL,
        )
        return PlannedBatch(config, content=mode, target_id="")

    def manifest(self, batch: Batch, content: str, payloads: Sequence[DataFiles]) -> Manifest:
        return MANIFESTS.encode(batch, payloads)

    def _check_folder(self) -> None:
        for name, table in _TABLES.items():
            if next(Path(self.folder).glob(name), None):
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
        path = next(Path(self.folder).rglob("*.parquet"), None)
        if path is not None:
            problems += self._differences(rows, partition_by, path)
        if problems:
            raise SchemaMismatchError(f"The rows do not fit {self.folder}.\n- " + "\n- ".join(problems))

    def _differences(self, rows: pa.Schema, partition_by: Sequence[str], path: Path) -> Iterator[str]:
        """Compare the rows with a file of the folder."""
        folders = [part.partition("=")[0] for part in path.relative_to(self.folder).parts[:-1] if "=" in part]
        if folders != list(partition_by):
            yield (
                f"partitionBy: {path} is partitioned by {', '.join(folders) or 'nothing'}, and the query by "
                f"{', '.join(partition_by) or 'nothing'}."
            )
            return
        stored = pq.read_schema(path)
        for field in rows:
            if field.name in partition_by:
                continue
            if field.name not in stored.names and not self.options.add_columns:
                yield f"{field.name}: {path} has no such column. Set schemaEvolution=addColumns to add it."
            elif field.name in stored.names and not _is_same(stored.field(field.name).type, field.type):
                yield f"{field.name}: {path} has {stored.field(field.name).type}, the rows have {field.type}."


def _is_same(one: pa.DataType, other: pa.DataType) -> bool:
    """Compare types as readers do: names of list elements and nullable fields make no difference."""
    return str(one).replace(" not null", "") == str(other).replace(" not null", "")


@dataclass(frozen=True, slots=True)
class StoredFolder(FilesCommitter):
    """The folder without the options of a query, for commands. See `StoredTable`."""

    query_id: str

    def committer(self) -> FilesCommitter:
        return self

    def now(self) -> TableNow | None:
        """The version is the last batch of the query: a folder has none."""
        if not Path(self.folder).is_dir():
            return None
        token = self.token(self.query_id)
        return TableNow("", -1 if token is None else token.batch_id)

    def cleanable(self, store: SqlManifestStore) -> CleanableTable:
        """See `Cleanable`."""
        return CleanableFolder(self)

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        return parse_file_name

    def moves_rows(self) -> bool:
        """Published files are no longer where tasks have left them."""
        return False


def sink_of(options: FilesOptions) -> FilesSink:
    return PlainSink(KIND, options.path, options, FilesTarget(options.path, options))


DESTINATION = DestinationType(
    kind=KIND,
    data_source="penstock.datasource.files.source:FilesDataSource",
    options=OPTIONS,
    sink=lambda stream, options, access: sink_of(FilesOptions.parse(options)),
    stored_table=lambda stream, access: StoredFolder(stream.table_uri, stream.query_id),
    files_of=MANIFESTS.decode,
)
