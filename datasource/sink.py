"""What a data source needs of one kind of lake table. All else about a batch is the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..committers.contract import (
    Committer,
    ContentT,
    ContentT_contra,
    DataFiles,
    Manifest,
    Mode,
    PayloadT,
    StreamKey,
    Target,
)
from ..committers.errors import TableChangedError
from ..committers.file_tables.manifest import LakeManifest
from ..writers.parquet.plan import WritePlan
from .options.common import LakeOptions, StreamOptions

if TYPE_CHECKING:
    from datetime import datetime

    from pyarrow.fs import FileSystem

    from ..committers.cleanup import CleanableTable
    from ..committers.file_tables.compaction import CompactableTable
    from ..committers.file_tables.maintenance import Step
    from ..committers.store.sql import SqlManifestStore, WrittenTable


@runtime_checkable
class Identified(Protocol):
    """A target that can be told from another one under the same address."""

    def check_unchanged(self, query_id: str, table_id: str | None, last_version: int | None) -> None:
        """
        Raises:
            TableChangedError: the table is not the one with `table_id`, or has lost what the query delivered.
        """
        ...

    def accept(self, query_id: str) -> None:
        """Take the table as it is now for one that holds what the query has delivered, on an operator's
        word.
        """
        ...


@runtime_checkable
class Remembering(Committer, Protocol):
    """A target that notes which queries have written it."""

    def noted_origin(self, query_id: str, origins: Sequence[str]) -> str | None:
        """The first of the origins from which another query has committed to the table; None if none has."""
        ...

    def has_rows(self) -> bool:
        """False if there is no table, or it certainly has no rows. May cost what the table has in files."""
        ...


@runtime_checkable
class Ordered(Protocol[ContentT_contra]):
    """A target whose batches may depend on those before them that are not committed yet."""

    def target_id_of(self, manifest: Manifest) -> str:
        """The id of the target that the manifest was planned for."""
        ...

    def check_follows(self, content: ContentT_contra, pending: Iterable[Manifest]) -> None:
        """
        Args:
            content: of a batch that is about to be written
            pending: the prepared batches before it

        Raises:
            RetryableError: they must be delivered first.
        """
        ...


class LakeTable(Identified, Remembering, Protocol):
    """A committer of a file table, by its address alone: for the command line."""


class FileTable(Identified, Remembering, Ordered[LakeManifest], Target[DataFiles, LakeManifest], Protocol):
    """The target of a stream into a file table."""

    def rewrite_plan(self, content: LakeManifest) -> WritePlan | None:
        """How files that replace these are written; None if the table takes none of them any more."""
        ...


class Destination(Protocol):
    """Where one stream goes, by its options. Driver only: it may hold secrets.

    Pickles, for Spark commits in another process than it plans in.
    """

    @property
    def options(self) -> StreamOptions: ...

    @property
    def kind(self) -> str:
        """The kind of its manifests."""
        ...

    @property
    def table_uri(self) -> str:
        """One spelling for one table, without secrets."""
        ...

    def open_filesystem(self, location: str) -> tuple[FileSystem, str]:
        """The file system that a checkpoint is on, and its path there."""
        ...

    def maintain(self, store: SqlManifestStore, batch_id: int) -> None:
        """Keep the table fast, after a batch has landed. Failing loses nothing: the next batch does it."""
        ...


class Sink(Destination, Protocol[PayloadT, ContentT]):
    """A destination that opens its target."""

    def open_table(self) -> Target[PayloadT, ContentT]:
        """A target that looks at the table when first asked."""
        ...


class StepsOfFileTables(Protocol):
    """What the delivery process gives to a destination for its list of maintenance steps."""

    @property
    def store(self) -> SqlManifestStore: ...

    @property
    def stream(self) -> StreamKey: ...

    @property
    def now(self) -> Callable[[], datetime]: ...

    @property
    def vacuum_every_s(self) -> float: ...

    def compaction(self, table: CompactableTable) -> Step:
        """Small files that readers see already become larger ones."""
        ...

    def orphans(self, cleanable: Callable[[], CleanableTable]) -> Step:
        """Files of ours that nothing names are deleted."""
        ...

    def pending_names(self) -> set[str]:
        """Base names of the files that manifests name which are not in the table yet."""
        ...


class FileTableSink(Destination, Protocol):
    """A `Sink` into a file table, with all that a delivery process does for it."""

    @property
    def options(self) -> LakeOptions: ...

    def open_table(self) -> FileTable: ...

    def maintenance_steps(self, steps: StepsOfFileTables) -> list[Step]: ...

    def is_maintained(self) -> bool:
        """True if Penstock looks after the table although the query does not say so.

        Raises:
            RetryableError: the table cannot be read now.
        """
        ...


def mode_of(overwrite: bool) -> Mode:
    """The mode of a batch, from what Spark says of it."""
    return "overwrite" if overwrite else "append"


def leading(names: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """The first names up to one that is not known, case ignored: rows that are sorted by fewer columns of an
    order are never wrong. A query may ask for columns that its earlier batches did not have.
    """
    lower = {name.lower() for name in known}
    return tuple(takewhile(lambda name: name.lower() in lower, names))


def check_same_table(table: Committer, stream: StreamKey, written: WrittenTable | None) -> None:
    """The table must be the one that the stream's committed batches went into, and still claim to hold them.

    Args:
        written: what the store knew of it before the table was looked at; None if nothing

    Raises:
        TableChangedError: it is another one, or was put back to before the stream's last batch.
    """
    if not isinstance(table, Identified):
        return
    if written is None:  # the store may have been lost: the table itself knows
        table.check_unchanged(stream.query_id, None, None)
        return
    table_id = written.table_id or None  # a batch that reached the store only after it was lost brings none
    table.check_unchanged(stream.query_id, table_id, written.table_version)
    if written.batch_id is None:
        return
    token = table.token(stream.query_id)
    if token is None or token.batch_id < written.batch_id:
        holds = "no batch" if token is None else f"batch {token.batch_id} as the last one"
        raise TableChangedError(
            f"The table {stream.table_uri} holds {holds} of query {stream.query_id}, which has delivered "
            f"batch {written.batch_id}: its metadata was put back from a copy, or changed by hand. Going on "
            "would leave a gap. Nothing was committed. Put back the newest metadata; or accept the table as "
            "it is, without these rows:\n"
            "    penstock recover --accept-table\n"
            "or start the query with a new checkpoint to write the table from the beginning."
        )
