"""What file tables have in common, whatever the format."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from ..committers.contract import Batch, DataFiles, Manifest, Target
from ..committers.deliveries.contract import Mergeable
from ..committers.errors import RetryableError
from ..committers.file_tables.manifest import LakeManifest, decode, manifest_of
from ..committers.file_tables.merge import MergeableFiles
from ..writers.parquet.write_config import WriteConfig, parse_file_name
from .options.file_tables import FileTableOptions
from .sink import Destination, Maintainable, SupportsOrdering, SupportsOrigins, SupportsTableIdentity

if TYPE_CHECKING:
    from ..committers.cleanup import NameParser
    from ..committers.contract import StreamKey

CompactWith: TypeAlias = Literal["local", "spark", "none"]


@runtime_checkable
class Compactable(Protocol):
    """A target whose batches are data files: the small ones of a delivery are rewritten before readers see
    any.
    """

    def compact_with(self) -> CompactWith:
        """Who rewrites them, as the query says: the delivery process, a Spark job or nobody."""
        ...

    def rewrite_config(self, content: LakeManifest) -> WriteConfig | None:
        """How files that replace these are written; None if the table takes none of them any more."""
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


class FileTableSink(Destination, Maintainable, Protocol):
    """A `Sink` into a file table, with all that a delivery process does for it."""

    @property
    def options(self) -> FileTableOptions: ...

    def open_table(self) -> FileTable: ...


class FileTableTarget(MergeableFiles):
    """The part of a target that goes by the manifest alone. Mixed into each format's target."""

    def manifest(self, batch: Batch, content: LakeManifest, payloads: Sequence[DataFiles]) -> Manifest:
        """See `Target`."""
        return manifest_of(batch, content, payloads)

    def target_id_of(self, manifest: Manifest) -> str:
        """See `SupportsTableIdentity`."""
        return decode(manifest).table_id

    def check_follows(self, content: LakeManifest, pending: Iterable[Manifest]) -> None:
        """See `SupportsOrdering`. Two batches that were both planned as the first to bring new columns must
        bring the same ones: formats number columns, and the second one would give the number of the first to
        another.
        """
        if not content.new_columns:
            return
        for manifest in pending:
            waiting = decode(manifest)
            if waiting.new_columns and waiting.schema_json != content.schema_json:
                raise RetryableError(
                    f"Batch {manifest.batch.batch_id} of {manifest.batch.stream} is to add the column(s) "
                    f"{', '.join(waiting.new_columns)} to the table and is not delivered yet; this start of "
                    f"the query adds {', '.join(content.new_columns)}. Let it be delivered first (`penstock "
                    "deliver --once`), then start the query again."
                )


class CleanableFiles:
    """What `Cleanable` asks of all file tables alike. Mixed into their stored tables."""

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        return parse_file_name

    def moves_rows(self) -> bool:
        return False


def leading(names: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """The first names up to one that is not known, case ignored: rows that are sorted by fewer columns of an
    order are never wrong. A query may ask for columns that its earlier batches did not have.
    """
    lower = {name.lower() for name in known}
    return tuple(takewhile(lambda name: name.lower() in lower, names))


def data_files_of(manifest: Manifest) -> DataFiles:
    """
    Raises:
        ManifestCorruptError: nobody can tell which they are.
    """
    return decode(manifest).files
