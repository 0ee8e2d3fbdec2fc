"""The sink for Hudi tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from ...committers.changes.key_files import data_files
from ...committers.contract import Changes, Manifest, Mode, PartitionField, PlannedBatch
from ...committers.delta.probing import storage_probe
from ...committers.errors import ConfigurationError
from ...committers.file_tables.manifest import LakeManifest, PlannedFiles, decode
from ...committers.file_tables.merge import merge
from ...committers.hudi.changes import FileWriters
from ...committers.hudi.committer import HudiTableCommitter
from ...committers.hudi.names import instant_of, keys_folder
from ...committers.hudi.plan import Wanted, plan
from ...committers.hudi.properties import HudiTable
from ...committers.hudi.schema import arrow_schema, parse_record
from ...committers.hudi.table import KIND, HudiTableFiles
from ...committers.probing import Probe
from ...writers.changes.change_files import ChangeFilesConfig
from ...writers.changes.rewriting import FileRewriter
from ...writers.changes.table_rows import TableRowsOpener
from ...writers.hudi.names import parse_name
from ...writers.hudi.table_format import HudiFormat
from ...writers.parquet.write_config import WriteConfig
from ..changes.planning import plan_changes
from ..destinations import DestinationType, with_prefix
from ..file_table import (
    CleanableFiles,
    CompactableFileTable,
    data_files_of,
    leading,
    partition_fields,
    write_config,
)
from ..options.stream import origins_of
from ..plain_sink import StorageSink
from ..stored.batch_rows import WaitingRows, parquet_rows
from ..stored.stored_table import TableNow
from .options import OPTIONS, HudiOptions
from .rewriting import SliceRewriter

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.cleaning.cleanup import CleanableTable, NameParser
    from ...committers.contract import StreamKey
    from ...committers.hudi.cleanup import HudiRecords
    from ...committers.store.sql import SqlManifestStore
    from ..stored.table_access import TableAccess


@dataclass(frozen=True, slots=True)
class HudiSink(StorageSink):
    """See `Sink`."""

    options: HudiOptions
    kind: str = KIND

    @property
    def table_uri(self) -> str:
        return self.options.table_uri

    def probes(self) -> Sequence[Probe]:
        """See `ProbesStorage`."""
        return (storage_probe(self.table_uri, self.options.storage_options),)

    def open_table(self) -> HudiTarget:
        return HudiTarget(self.options)

    def records(self, query_id: str) -> HudiRecords:
        from ...committers.hudi.cleanup import HudiRecords

        return HudiRecords(HudiTableFiles(self.table_uri, self.options.storage_options), query_id)

    def partitioning(self) -> tuple[PartitionField, ...]:
        """See `Partitioned`."""
        table = HudiTableFiles(self.table_uri, self.options.storage_options).load()
        names = self.options.partition_by or () if table is None else table.partition_by
        return partition_fields(names)


class HudiTarget(HudiTableCommitter, CompactableFileTable):
    """The target of a stream into a Hudi table, with the options of its query. See `Target`.

    Rows and file names contain the instant of their commit. So a delivery of several batches has an instant
    of its own, and all their files are rewritten.
    """

    def __init__(self, options: HudiOptions) -> None:
        writers = FileWriters(
            FileRewriter(self.rewrite_config),
            SliceRewriter(self.rewrite_config),
            TableRowsOpener(self.rewrite_config),
        )
        super().__init__(options.table_uri, options.storage_options, writers=writers)
        self._query: HudiOptions = options

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        if mode == "overwrite":
            raise ConfigurationError(
                "penstock.hudi appends rows and cannot overwrite a table. Use the output mode append, or "
                "overwrite it with Hudi's own writer."
            )
        options = self._query
        changes = plan_changes(rows, mode) if isinstance(mode, Changes) else None
        rows = rows if changes is None else changes.columns
        wanted = Wanted(
            may_create=options.create_table,
            evolve=options.evolution.adds,
            narrows=options.narrows,
            name=options.name_when_new,
            partition_by=options.partition_by,
            record_key=options.record_key,
            is_hive_style=options.is_hive_style,
            version=options.table_version,
            changes=None if changes is None else changes.kinds.changes,
        )
        planned = plan(self._files, rows, wanted, batch_id)
        content = LakeManifest(
            kind=KIND,
            mode=mode if changes is None else changes.in_table(planned.schema, planned.new_columns),
            table_id=planned.table.table_id,
            table_version=int(planned.instant),
            schema_json=planned.schema_json,
            new_columns=planned.new_columns,
            partition_by=planned.table.partition_by,
            files=(),
            origins=origins_of(options),
        )
        writers = self._write_config(planned.table, planned.schema, planned.instant, options.sort_within)
        if changes is None:
            return PlannedBatch(writers, content, content.table_id, is_lasting=False)
        with_keys = ChangeFilesConfig(writers, changes.kinds, folder=keys_folder(planned.instant))
        return PlannedBatch(with_keys, content, content.table_id, is_lasting=False)

    # Decoupled delivery: see `Mergeable`, `Compactable` and `StoresCommits` -------------------------------

    def mergeable(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        """Without compaction each batch keeps its files, and has a commit of its own. A commit of changes
        writes files again itself.
        """
        keeps_files = self.compact_with() == "none" and not self._query.is_upsert
        return super().mergeable(islice(manifests, 1) if keeps_files else manifests)

    def merge(self, manifests: Sequence[Manifest], verified_version: int | None) -> Manifest:
        """The version in the content is the instant of the commit. It is a new one for several batches, and
        for a batch that was planned before the last commit: incremental readers have passed its instant, and
        the archive may have.

        Raises:
            TableChangedError: the table was dropped or re-created.
            RetryableError: it cannot be read now.
        """
        whole = merge(manifests)
        if isinstance(decode(whole).mode, Changes):
            return whole
        if whole.is_empty or self.compact_with() == "none":
            return whole
        content, timeline = decode(whole), self._files.recent_timeline()
        if len(manifests) == 1 and timeline.is_after_commits(str(content.table_version)):
            return whole
        table = self._files.load_same(content.table_id)
        return merge(manifests, int(self._files.reserve_instant(table, timeline)))

    def unfit_for_commit(self, content: LakeManifest) -> Collection[str]:
        if isinstance(content.mode, Changes):
            return ()
        instant = str(content.table_version)
        return {file.path for file in content.files if instant_of(file.path) != instant}

    def rewrite_config(self, content: LakeManifest) -> WriteConfig | None:
        table = self._files.load_same(content.table_id)
        if table.partition_by != content.partition_by:
            return None
        schema = arrow_schema(parse_record(content.schema_json, self._uri))
        sort_within = leading(self._query.sort_within, schema.names)
        instant, is_changing = str(content.table_version), isinstance(content.mode, Changes)
        return self._write_config(table, schema, instant, sort_within, is_rewriting=is_changing)

    def _write_config(
        self,
        table: HudiTable,
        schema: pa.Schema,
        instant: str,
        sort_within: Sequence[str],
        *,
        is_rewriting: bool = False,
    ) -> WriteConfig:
        table_format = HudiFormat(
            instant,
            table.partition_by,
            table.record_key,
            table.is_hive_style,
            table.encodes_paths,
            is_rewriting,
        )
        options = self._query
        return write_config(options, self._uri, options.storage_options, schema, table_format, sort_within)


# For the command line and the delivery process ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredHudi(CleanableFiles):
    """See `StoredTable`."""

    uri: str
    storage: Mapping[str, str] = field(repr=False)

    def committer(self) -> HudiTableCommitter:
        return HudiTarget(HudiOptions(path=self.uri, storage_options=self.storage))

    def now(self) -> TableNow | None:
        files = HudiTableFiles(self.uri, self.storage)
        table = files.load()
        if table is None:
            return None
        commits = files.timeline().commits
        return TableNow(table.table_id, int(commits[-1][0]) if commits else 0)

    def batch_rows(self, manifest: Manifest, store: SqlManifestStore) -> Iterator[WaitingRows]:
        """See `HoldsRows`."""
        from ...committers.delta.files import delta_files

        return parquet_rows(delta_files(self.uri, self.storage), data_files(data_files_of(manifest)))

    def cleanable(self, store: SqlManifestStore) -> CleanableTable:
        from ...committers.hudi.cleanup import HudiCleanableTable

        return HudiCleanableTable(self.uri, self.storage)

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        return parse_name


def _sink_of(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> HudiSink:
    return HudiSink(HudiOptions.parse(with_prefix("storage.", options, access.storage)))


DESTINATION = DestinationType(
    kind=KIND,
    data_source="penstock.datasource.hudi.source:HudiDataSource",
    options=OPTIONS,
    sink=_sink_of,
    stored_table=lambda stream, access: StoredHudi(stream.table_uri, access.storage),
    files_of=data_files_of,
    records=lambda stream, sink: sink.records(stream.query_id),
    remains="its last batches in the commits of the table, until Hudi archives them",
)
