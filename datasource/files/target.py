"""The target of a stream into a folder of files, with the options of its query."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

import pyarrow as pa

from ...committers.arrow_ipc.reader import read_schema
from ...committers.contract import Batch, DataFile, DataFiles, Manifest, Mode, PlannedBatch
from ...committers.dry_runs import before_creating, in_dry_run
from ...committers.errors import ConfigurationError, SchemaMismatchError, TableNotSupportedError
from ...committers.file_tables.folder_columns import columns_in_path
from ...committers.files.committer import FilesCommitter
from ...committers.files.local_folder import staging_of
from ...committers.files.manifests import MANIFESTS, BatchOptions
from ...committers.files.markers import Markers
from ...committers.files.object_folder import is_remote
from ...committers.files.spark_metadata import LOG, take_over
from ...writers.delta.partitions import check_partition_columns
from ...writers.files.table_format import FolderFormat, RowFilesFormat
from ...writers.files.uploading import UploadingWriters
from ...writers.parquet.write_config import WriteConfig
from ..checked import ChecksByDryRun
from ..file_table import CompactWith, DeliveryFiles, with_case_of
from .catalog_table import check_table
from .existing_files import compare_with_files, format_problems
from .options import FilesOptions

if TYPE_CHECKING:
    from ...writers.parquet.table_format import TableFormat

_TABLES = {"_delta_log": "Delta", "metadata/*.metadata.json": "Iceberg", ".hoodie": "Hudi"}


@dataclass(frozen=True, slots=True)
class FilesTarget(ChecksByDryRun, FilesCommitter):
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
        partition_by = with_case_of(self.options.partition_by or (), rows)
        check_partition_columns(rows, partition_by)
        rows = self._file_columns(rows, partition_by)
        place = self.place
        if not self.options.create_table and not place.exists():
            raise ConfigurationError(f"There is no folder {self.folder}, and createTable is false.")
        table = self.options.catalog_table
        if table is not None:
            rows = check_table(
                table,
                self.catalog_properties,
                self.folder,
                rows,
                partition_by,
                self.options.file_format,
                narrows=self.options.narrows,
            )
        self._open_place()
        schema = pa.schema([field.with_nullable(True) for field in rows])
        config = self.write_config(schema, partition_by)
        writers = UploadingWriters(config) if is_remote(self.folder) else config
        return PlannedBatch(writers, content=self.layout(schema, partition_by), target_id="")

    def _open_place(self) -> None:
        if in_dry_run():
            if not self.place.exists():
                before_creating(f"folder {self.folder}")
            return
        self.place.open(create=self.options.create_table)
        if self.options.takes_over:
            take_over(self.folder)

    def write_config(self, schema: pa.Schema, partition_by: tuple[str, ...]) -> WriteConfig:
        is_uploaded = is_remote(self.folder)
        return WriteConfig(
            location=self.folder if is_uploaded else staging_of(self.folder),
            storage_options=dict(self.storage_options) if is_uploaded else {},
            schema=schema,
            table_format=_table_format(self.options, partition_by),
            target_file_bytes=self.options.target_file_bytes,
            buffer_bytes_max=self.options.buffer_bytes_max,
            compression=self.options.codec if self.options.file_format == "parquet" else "none",
            narrows=self.options.narrows,
        )

    def layout(self, schema: pa.Schema, partition_by: tuple[str, ...]) -> str:
        """Return the layout of a batch's files; see `BatchOptions`."""
        return ""

    def manifest(self, batch: Batch, content: str, payloads: Sequence[DataFiles]) -> Manifest:
        markers = Markers(self.options.success, self.options.manifests)
        options = BatchOptions(markers, self.options.catalog_table, layout=content)
        return MANIFESTS.encode_with(batch, payloads, options)

    def _check_folder(self) -> None:
        for name, table in _TABLES.items():
            if self.place.has(name):
                raise TableNotSupportedError(
                    f"{self.folder} is a table of {table}: it has {name}. Files that its metadata does not "
                    f"list are not part of it. Use a sink for {table} tables, or another folder."
                )
        if not self.options.takes_over and self.place.has(LOG):
            takes_over = (
                "Write another folder, and copy the rows of this one into it with Spark"
                if is_remote(self.folder)
                else "Write another folder; or end the query of Spark's sink for good, and set "
                "sparkMetadata=takeOver"
            )
            raise TableNotSupportedError(
                f"Spark's own file sink has written {self.folder}: it has {LOG}. Spark's readers see only "
                f"the files that this log lists, and none of Penstock. Nothing was written. {takes_over}."
            )

    def _file_columns(self, rows: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        """Return the columns of the files to write, which are those of the rows and of the folder's files."""
        problems = [
            f"{name}: partitions of {rows.field(name).type} are read back as strings or not at all. "
            "Partition by a date, a text, a boolean or an integer."
            for name in partition_by
            if pa.types.is_timestamp(rows.field(name).type) or pa.types.is_decimal(rows.field(name).type)
        ]
        problems += [
            f"{name}: readers skip folders whose names begin with {name[0]}. Rename the column."
            for name in partition_by
            if name.startswith(("_", "."))
        ]
        file_format = self.options.file_format
        problems += format_problems(rows, partition_by, file_format)
        if problem := columns_in_path(self.folder, rows.names):
            problems.append(f"{problem[0].upper()}{problem[1:]}.")
        columns, different = compare_with_files(
            self.folder,
            self.storage_options,
            rows,
            partition_by,
            file_format,
            add_columns=self.options.evolution.adds,
            narrows=self.options.narrows,
        )
        problems += different
        if problems:
            raise SchemaMismatchError(f"The rows do not fit {self.folder}.\n- " + "\n- ".join(problems))
        return columns


def _table_format(options: FilesOptions, partition_by: tuple[str, ...]) -> TableFormat:
    if options.file_format == "parquet":
        return FolderFormat(partition_by, statistics_columns=())
    return RowFilesFormat(
        partition_by, statistics_columns=(), file_format=options.file_format, codec=options.codec
    )


# Small files are rewritten before they are visible ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompactableFilesTarget(FilesTarget):
    """The target of a query with `compactWith=local`: a delivery rewrites the small staged files of its
    batches, which have the same columns. See `Compactable`.
    """

    def layout(self, schema: pa.Schema, partition_by: tuple[str, ...]) -> str:
        return FileLayout(schema, partition_by).encode()

    def mergeable(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        some = FilesTarget.mergeable(self, manifests)
        layouts = [MANIFESTS.options_of(manifest).layout for manifest in some]
        return some[: len(list(takewhile(lambda layout: layout == layouts[0], layouts)))]

    def compact_with(self) -> CompactWith:
        return "local"

    def delivery_files(self, manifest: Manifest) -> DeliveryFiles:
        options = MANIFESTS.options_of(manifest)

        def rewrite_config() -> WriteConfig | None:
            if not options.layout:
                return None
            layout = FileLayout.decode(options.layout)
            return self.write_config(layout.schema, layout.partition_by)

        def manifest_with(files: Sequence[DataFile]) -> Manifest:
            return MANIFESTS.encode_with(manifest.batch, [tuple(files)], options)

        return DeliveryFiles(MANIFESTS.decode(manifest), rewrite_config, manifest_with)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The columns of a batch's files."""

    schema: pa.Schema
    """Including the partition columns."""
    partition_by: tuple[str, ...]

    def encode(self) -> str:
        schema = base64.b64encode(self.schema.serialize()).decode()
        return json.dumps({"schema": schema, "partition_by": self.partition_by})

    @classmethod
    def decode(cls, encoded: str) -> FileLayout:
        """
        Raises:
            ConfigurationError: it is not what `encode` returns.
        """
        try:
            fields = json.loads(encoded)
            schema = read_schema(base64.b64decode(fields["schema"], validate=True))
            return cls(schema, tuple(map(str, fields["partition_by"])))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"The layout of the files in the manifest is damaged: {error!r}."
            ) from error
