"""Sinks and targets of file tables, independent of the format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from ..committers.contract import Batch, Changes, DataFile, DataFiles, Manifest, PartitionField, SortField
from ..committers.deliveries.contract import Mergeable
from ..committers.errors import ConfigurationError, RetryableError
from ..committers.file_tables.manifest import LakeManifest, build_manifest, decode, manifest_of
from ..committers.file_tables.merge import MergeableFiles
from ..committers.target import Target
from ..writers.parquet.data_file_config import ROW_GROUP_ROWS
from ..writers.parquet.file_names import parse_file_name
from ..writers.parquet.write_config import WriteConfig
from .checked import ChecksByDryRun
from .options.delivery import TARGET_FILE_BYTES
from .options.file_tables import COMPRESSION, FileTableOptions
from .sink import Destination, Maintainable, SupportsOrdering, SupportsOrigins, SupportsTableIdentity

if TYPE_CHECKING:
    import pyarrow as pa

    from ..committers.changes.file_search import SearchFiles
    from ..committers.cleaning.cleanup import NameParser
    from ..committers.contract import StreamKey
    from ..writers.parquet.table_format import TableFormat

CompactWith: TypeAlias = Literal["local", "spark", "none"]


@dataclass(frozen=True, slots=True)
class DeliveryFiles:
    """The data files of a delivery, and how to replace them before the commit."""

    files: DataFiles
    rewrite_config: Callable[[], WriteConfig | None]
    """Returns how to write files that replace these; None if the table no longer accepts them."""
    manifest_with: Callable[[Sequence[DataFile]], Manifest]
    """Returns the manifest of the delivery with other files that have the same rows."""
    required: Collection[str] = ()
    """Paths of files that are rewritten in any case."""


@runtime_checkable
class Compactable(Protocol):
    """A target whose batches are data files, so that a delivery can rewrite small ones before readers see
    them (FLIP-191).
    """

    def compact_with(self) -> CompactWith:
        """Return what rewrites small files, as in the query's option `compactWith`."""
        ...

    def delivery_files(self, manifest: Manifest) -> DeliveryFiles: ...


@runtime_checkable
class StoresCommits(Protocol):
    """A `FileTable` whose files contain the commit that adds them."""

    def unfit_for_commit(self, content: LakeManifest) -> Collection[str]:
        """Return the paths of the files that have to be rewritten: they contain another commit."""
        ...


@runtime_checkable
class SupportsChanges(Protocol):
    """A target of a file table that takes the mode `Changes`."""

    def check_ties(self, batch: Batch, content: LakeManifest) -> None:
        """Check, before the batch is prepared, that each key has one last row. Other modes are left alone.

        Args:
            content: with the files of all tasks

        Raises:
            SchemaMismatchError: two different rows of one key could be the last one.
        """
        ...


@runtime_checkable
class SearchesByKey(Compactable, Protocol):
    """A target of a file table whose commits search its files for keys."""

    def search_with(self, search: SearchFiles) -> None:
        """See `SearchesFiles`."""
        ...

    def rewrite_config(self, content: LakeManifest) -> WriteConfig | None:
        """See `DeliveryFiles`."""
        ...


class FileTable(
    SupportsTableIdentity,
    SupportsOrigins,
    SupportsOrdering[LakeManifest],
    Mergeable,
    Compactable,
    Target[DataFiles, LakeManifest],
    Protocol,
):
    """The target of a stream into a file table."""

    def rewrite_config(self, content: LakeManifest) -> WriteConfig | None:
        """See `DeliveryFiles`."""
        ...


class FileTableSink(Destination, Maintainable, Protocol):
    """A `Sink` of a file table, with everything that a delivery process does for it."""

    @property
    def options(self) -> FileTableOptions: ...

    def open_table(self) -> FileTable: ...


class FileTableTarget(ChecksByDryRun, MergeableFiles):
    """The methods of a target that need only the manifest. A mix-in of each format's target."""

    def manifest(self, batch: Batch, content: LakeManifest, payloads: Sequence[DataFiles]) -> Manifest:
        """See `Target`.

        Raises:
            SchemaMismatchError: of changes, see `SupportsChanges`.
        """
        if isinstance(self, SupportsChanges):
            self.check_ties(batch, content.with_files([file for files in payloads for file in files]))
        return manifest_of(batch, content, payloads)

    def target_id_of(self, manifest: Manifest) -> str:
        """See `SupportsTableIdentity`."""
        return decode(manifest).table_id

    def check_follows(self, content: LakeManifest, pending: Iterable[Manifest]) -> None:
        """See `SupportsOrdering`."""
        check_new_columns(content, pending)


class CompactableFileTable(FileTableTarget, ABC):
    """A `FileTableTarget` that is `Compactable`."""

    _query: FileTableOptions

    @abstractmethod
    def rewrite_config(self, content: LakeManifest) -> WriteConfig | None:
        """See `FileTable`."""

    def compact_with(self) -> CompactWith:
        return self._query.compact_with

    def delivery_files(self, manifest: Manifest) -> DeliveryFiles:
        """See `Compactable`."""
        content = decode(manifest)
        # the keys of changes tell in which of their files they are
        files = () if isinstance(content.mode, Changes) else content.files
        return DeliveryFiles(
            files,
            rewrite_config=lambda: self.rewrite_config(content),
            manifest_with=lambda files: build_manifest(manifest.batch, content.with_files(files)),
            required=self.unfit_for_commit(content) if isinstance(self, StoresCommits) else (),
        )


def check_new_columns(content: LakeManifest, pending: Iterable[Manifest]) -> None:
    """Check that two batches which both change the schema make the same one.

    Formats number columns, so the second batch would give the number of the first one's column to another.

    Raises:
        RetryableError: a pending batch adds or changes other columns.
    """
    if not content.changes_schema:
        return
    for manifest in pending:
        waiting = decode(manifest)
        if waiting.changes_schema and waiting.schema_json != content.schema_json:
            verb, names = _schema_change(waiting)
            verb_now, names_now = _schema_change(content)
            raise RetryableError(
                f"Batch {manifest.batch.batch_id} of {manifest.batch.stream} {verb} the column(s) {names} to "
                f"the table and is not delivered yet, but now the query {verb_now} {names_now}. First "
                "deliver that batch (`penstock deliver --once`), then start the query again."
            )


def _schema_change(content: LakeManifest) -> tuple[str, str]:
    """Return what happens to columns, and their names."""
    others = [*content.altered, *(name for name, _ in content.renames)]
    return "adds" if not others else "adds or changes", ", ".join([*content.new_columns, *others])


class CleanableFiles:
    """`Cleanable` for file tables. A mix-in of their stored tables."""

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        """Return the parser of the usual names. Some formats have others."""
        return parse_file_name

    def moves_rows(self) -> bool:
        return False


def write_config(
    options: FileTableOptions,
    location: str,
    storage_options: Mapping[str, str],
    schema: pa.Schema,
    table_format: TableFormat,
    sort_within: Sequence[str],
) -> WriteConfig:
    """Return how to write files as the options of the query say."""
    return WriteConfig(
        location=location,
        storage_options=dict(storage_options),
        schema=schema,
        table_format=table_format,
        target_file_bytes=options.target_file_bytes or TARGET_FILE_BYTES,
        row_group_rows=options.row_group_rows or ROW_GROUP_ROWS,
        compression=options.compression or COMPRESSION,
        max_open_partitions=options.max_open_partitions,
        buffer_bytes_max=options.buffer_bytes_max,
        sort=sort_fields(sort_within, schema),
        narrows=options.narrows,
    )


def sort_fields(names: Iterable[str], columns: pa.Schema) -> tuple[SortField, ...]:
    return tuple([SortField((name,)) for name in with_case_of(names, columns)])


def partition_fields(columns: Iterable[str]) -> tuple[PartitionField, ...]:
    """Return the fields of a table that is partitioned by the values of columns."""
    return tuple([PartitionField(name, (name,), "identity") for name in columns])


def check_location_is_free(table: str, uri: str, entries: Iterable[str], leftover: Collection[str]) -> None:
    """Check the location of a new table.

    Args:
        table: such as "Lance table", for messages
        entries: names of what is there
        leftover: names of what a table that was dropped may have left

    Raises:
        ConfigurationError: there is something else, for example a Delta table.
    """
    if others := sorted(set(entries).difference(leftover)):
        raise ConfigurationError(
            f"There is no {table} at {uri}, and the location is not empty: it has {others[0]!r}. Give "
            "another path for a new table."
        )


def leading(names: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """Return the names before the first unknown one, ignoring case.

    Sorting by fewer columns of an order is never wrong, and a query may sort by columns that its earlier
    batches did not have.
    """
    lower = {name.lower() for name in known}
    return tuple(takewhile(lambda name: name.lower() in lower, names))


def with_case_of(names: Iterable[str], columns: pa.Schema) -> tuple[str, ...]:
    """Return the names of columns in the case that the columns have: Spark compares names without case."""
    names_by_lower = {name.lower(): name for name in columns.names}
    return tuple([names_by_lower.get(name.lower(), name) for name in names])


def data_files_of(manifest: Manifest) -> DataFiles:
    """Return the data files in a manifest.

    Raises:
        ManifestCorruptError: the manifest is damaged.
    """
    return decode(manifest).files
