"""What a data source and a delivery process need from one kind of destination.

A destination or its target may have further capabilities. Generic code checks for them with isinstance, and
never for a kind. `committers.deliveries.contract.Mergeable` and `file_table.Compactable` are two more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from ..committers.contract import (
    Batch,
    ContentT,
    ContentT_contra,
    Manifest,
    Mode,
    PartitionField,
    PayloadT,
    StreamKey,
)
from ..committers.errors import ConfigurationError, TableChangedError
from ..committers.progress import with_store
from ..committers.target import Committer, Target
from .options.changes import ChangeOptions
from .options.delivery import DeliveryOptions
from .options.stream import StreamOptions

if TYPE_CHECKING:
    from datetime import datetime

    from pyarrow.fs import FileSystem
    from typing_extensions import Self

    from ..committers.deliveries.contract import Lease
    from ..committers.file_tables.compaction import CompactableTable, FileRewriter
    from ..committers.file_tables.manifest import LakeManifest
    from ..committers.maintenance import MaintenancePolicy, Step
    from ..committers.store.sql import SqlManifestStore
    from ..committers.store.status import WrittenTable
    from ..writers.parquet.write_config import WriteConfig
    from .stored.stored_table import Cleanable
    from .stored.table_access import TableAccess


TableT_co = TypeVar("TableT_co", covariant=True)


@runtime_checkable
class SupportsTableIdentity(Protocol):
    """A target that can be distinguished from another one at the same address."""

    def check_unchanged(self, query_id: str, table_id: str | None, last_version: int | None) -> None:
        """Check that this is the table that the query has written to.

        Raises:
            TableChangedError: the table does not have `table_id`, or has lost batches of the query.
        """
        ...

    def accept(self, query_id: str) -> None:
        """Accept the table as it is now, at an operator's request, as containing the query's batches."""
        ...


@runtime_checkable
class SupportsOrigins(Committer, Protocol):
    """A target that records which queries have written to it."""

    def recorded_origin(self, query_id: str, origins: Sequence[str]) -> str | None:
        """Return the first of the origins from which another query has committed; None if there is none."""
        ...

    def has_rows(self) -> bool:
        """Return False if there is no table, or it certainly has no rows. May read all file entries."""
        ...


@runtime_checkable
class SupportsOrdering(Protocol[ContentT_contra]):
    """A target whose batches may depend on earlier batches that are not committed yet."""

    def target_id_of(self, manifest: Manifest) -> str:
        """Return the id of the target for which the manifest was planned."""
        ...

    def check_follows(self, content: ContentT_contra, pending: Iterable[Manifest]) -> None:
        """Check that a batch can be written after the pending ones.

        Args:
            content: content of the new batch
            pending: manifests of the prepared batches before it

        Raises:
            RetryableError: the pending batches must be delivered first.
        """
        ...


@runtime_checkable
class WritesInCommit(Committer, Protocol):
    """A target whose commit writes all rows first, which may take minutes."""

    def supervised(self, check: Callable[[], None]) -> Self:
        """Return a copy that calls `check` from time to time; its error ends the commit."""
        ...


class Destination(Protocol):
    """The destination of one stream, made from its options. Driver only, because it may contain secrets.

    Can be pickled, because Spark plans and commits in different processes.
    """

    @property
    def options(self) -> DeliveryOptions: ...

    @property
    def kind(self) -> str:
        """Return the kind of its manifests."""
        ...

    @property
    def table_uri(self) -> str:
        """Return the normalized address of the table, without secrets."""
        ...

    def open_table(self) -> Committer:
        """Return a committer, which loads the table when it is first needed."""
        ...

    def open_filesystem(self, location: str) -> tuple[FileSystem, str]:
        """Return the file system of a checkpoint, and the path in it."""
        ...

    def maintain(self, store: SqlManifestStore, batch: Batch) -> None:
        """Maintain the table after a committed batch. If it fails, the next batch does it."""
        ...


class Sink(Destination, Protocol[PayloadT, ContentT]):
    """A destination that opens its target."""

    def open_table(self) -> Target[PayloadT, ContentT]:
        """Return a target, which loads the table when it is first needed."""
        ...


class MaintenanceContext(Protocol):
    """What the delivery process provides for a destination's maintenance steps."""

    @property
    def store(self) -> SqlManifestStore: ...

    @property
    def stream(self) -> StreamKey: ...

    @property
    def policy(self) -> MaintenancePolicy: ...

    @property
    def now(self) -> Callable[[], datetime]: ...

    @property
    def access(self) -> TableAccess: ...

    def sink_of(self, stream: StreamKey) -> Destination | None:
        """Return the sink of another stream; None if the store does not know it. Raises as `build_sink`."""

    def rewriter(self, rewrite_config: Callable[[LakeManifest], WriteConfig | None]) -> FileRewriter:
        """Return what rewrites small data files of the table. `rewrite_config` as in `FileTable`."""

    def compaction(
        self,
        table: CompactableTable,
        rewrite_config: Callable[[LakeManifest], WriteConfig | None],
        target_file_bytes: int,
    ) -> Step:
        """Return the step that compacts small data files. `rewrite_config` as in `FileTable`."""

    def orphans(self, stored: Cleanable) -> Step:
        """Return the step that deletes orphan files, as `penstock gc` does."""
        ...

    def pending_names(self) -> set[str]:
        """Return the base names of files in manifests that are not committed yet."""
        ...


@runtime_checkable
class Partitioned(Protocol):
    """A destination with partitions, by which `penstock.distribute` repartitions rows."""

    def partitioning(self) -> tuple[PartitionField, ...]:
        """Return the partitioning of the table or, if it does not exist, of the one to create.

        Raises:
            RetryableError: the table cannot be read now.
        """
        ...


@runtime_checkable
class Maintainable(Protocol):
    """A destination whose table the delivery process maintains."""

    def maintenance_policy(self) -> MaintenancePolicy:
        """Return the policy in the options."""
        ...

    def maintenance_steps(self, context: MaintenanceContext) -> list[Step]: ...

    def is_maintained(self) -> bool:
        """Return True if Penstock maintains the table when the query has no option for it.

        Raises:
            RetryableError: the table cannot be read now.
        """
        ...


class _Opens(Protocol[TableT_co]):
    @property
    def options(self) -> DeliveryOptions: ...

    def open_table(self) -> TableT_co: ...


def open_table(
    sink: _Opens[TableT_co],
    store: SqlManifestStore,
    lease: Lease | None = None,
    check: Callable[[], None] = lambda: None,
) -> TableT_co:
    """Open the table of a destination. Generic code with a store opens it here.

    Args:
        lease, check: see `with_store`
    """
    return with_store(target_of(sink), store, lease, check)


def target_of(sink: _Opens[TableT_co]) -> TableT_co:
    """Open the target of a destination: its table, with the row log before it if the query has routes."""
    options = sink.options
    if not options.route_by or options.has_row_log:
        return sink.open_table()
    from .routing.logged_table import logged_table  # loads pyarrow

    return cast("TableT_co", logged_table(cast("Any", sink)))


def mode_of(options: StreamOptions, overwrite: bool) -> Mode:
    """Return the mode of a batch, from the options of its query and Spark's flag.

    Raises:
        ConfigurationError: the query replaces all rows, and its options say that it changes some.
    """
    changes = options.changes if isinstance(options, ChangeOptions) else None
    if changes is None:
        return "overwrite" if overwrite else "append"
    if overwrite:
        raise ConfigurationError(
            "writeMode=upsert changes rows, and outputMode complete or the mode overwrite replaces all of "
            "them. Use outputMode append, or foreachBatch with update; or remove writeMode."
        )
    return changes


def without_origins(content: ContentT) -> ContentT:
    """Remove the origins: a batch write is not an earlier query for `newQuery`."""
    return replace(content, origins=()) if hasattr(content, "origins") else content  # type: ignore[type-var]


def check_same_table(table: Committer, stream: StreamKey, written: WrittenTable | None) -> None:
    """Check that the table is the one that the stream has written to, and still has its last batch.

    Args:
        written: what the store knew of the table before the table was read; None if nothing

    Raises:
        TableChangedError: it is another table, or it was restored to before the stream's last batch.
    """
    if not isinstance(table, SupportsTableIdentity):
        return
    if written is None:  # the store may have been lost, but the table has the token
        table.check_unchanged(stream.query_id, None, None)
        return
    table_id = written.table_id or None  # empty if the store was lost before the batch was recorded
    table.check_unchanged(stream.query_id, table_id, written.table_version)
    if written.batch_id is None:
        return
    token = table.token(stream.query_id)
    if token is None or token.batch_id < written.batch_id:
        found = "no batch" if token is None else f"batch {token.batch_id} as its last batch"
        raise TableChangedError(
            f"The table {stream.table_uri} has {found} of query {stream.query_id}, which has already "
            f"committed batch {written.batch_id}. The table's metadata was restored from a copy or changed "
            "by hand, or a standby without that batch has taken over, and rows would be missing. Nothing was "
            "committed. Restore the newest metadata, or accept the table as it is, without these rows:\n"
            "    penstock recover --accept-table\n"
            "or start the query with a new checkpoint to write the table from the beginning."
        )
