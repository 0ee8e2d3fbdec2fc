"""The sink for folders of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...committers.contract import DataFiles, Manifest
from ...committers.ducklake.storage import files_below
from ...committers.errors import TableNotSupportedError
from ...committers.files.cleanup import CleanableFolder, FilesRecords
from ...committers.files.committer import FilesCommitter
from ...committers.files.local_folder import LocalFolder, staging_of
from ...committers.files.manifests import KIND, MANIFESTS
from ...committers.probing import Probe
from ...writers.delta.filesystem import open_filesystem
from ...writers.files.table_format import parse_name
from ..destinations import DestinationType, with_prefix
from ..file_table import CleanableFiles
from ..plain_sink import PlainSink
from ..stored.batch_rows import WaitingRows, parquet_rows
from ..stored.stored_table import TableNow
from .existing_files import read_rows
from .options import OPTIONS, FilesOptions
from .target import CompactableFilesTarget, FilesTarget

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    from ...committers.cleaning.cleanup import CleanableTable, NameParser
    from ...committers.contract import StreamKey
    from ...committers.store.sql import SqlManifestStore
    from ..stored.table_access import TableAccess


@dataclass(frozen=True, slots=True)
class StoredFolder(CleanableFiles, FilesCommitter):
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

    def read(self, column: str, value: str) -> pa.Table | None:
        """See `Readable`."""
        if not self.place.exists():
            return None
        return read_rows(self.folder, self.storage_options, column, value)

    def batch_rows(self, manifest: Manifest, store: SqlManifestStore) -> Iterator[WaitingRows]:
        """See `HoldsRows`. Files in object storage are uploads that nobody can read before the commit."""
        place = self.place
        if not isinstance(place, LocalFolder):
            raise TableNotSupportedError(
                f"The files of a batch for {self.folder} are uploads that are not completed before the "
                "commit, so nobody can read their rows."
            )
        files = files_below(staging_of(place.folder), {})
        return parquet_rows(files, MANIFESTS.decode(manifest))

    def cleanable(self, store: SqlManifestStore) -> CleanableTable:
        """See `Cleanable`."""
        return CleanableFolder(self)

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        return parse_name


class FilesSink(PlainSink[DataFiles, str]):
    """See `Sink`."""

    def probes(self) -> Sequence[Probe]:
        """See `ProbesStorage`."""
        assert isinstance(self.target, FilesTarget), "see `sink_of`"
        return (self.target.place.probe(),)

    def open_filesystem(self, location: str) -> tuple[FileSystem, str]:
        """Open a location, a remote one with the options `storage.*` if there are any."""
        storage = self.options.storage_options if isinstance(self.options, FilesOptions) else {}
        return open_filesystem(location, dict(storage)) if storage else super().open_filesystem(location)


def sink_of(options: FilesOptions) -> FilesSink:
    new_target = CompactableFilesTarget if options.compacts else FilesTarget
    target = new_target(options.path, options.storage_options, options.catalog_properties, options=options)
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
    records=lambda stream, sink: FilesRecords(sink.open_table(), stream.query_id),
)
