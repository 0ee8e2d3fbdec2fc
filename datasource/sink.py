"""What a data source and a delivery process need of one kind of destination; all else is the same for all.

A destination or its target may have abilities beside: generic code asks for them with isinstance, and never
for a kind. `committers.deliveries.contract.Mergeable` and `file_table.Compactable` are two more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..committers.contract import (
    Committer,
    ContentT,
    ContentT_contra,
    Manifest,
    Mode,
    PartitionField,
    PayloadT,
    StreamKey,
    Target,
)
from ..committers.errors import TableChangedError
from .options.delivery import DeliveryOptions

if TYPE_CHECKING:
    from datetime import datetime

    from pyarrow.fs import FileSystem

    from ..committers.file_tables.compaction import CompactableTable
    from ..committers.file_tables.manifest import LakeManifest
    from ..committers.maintenance import MaintenancePolicy, Step
    from ..committers.store.sql import SqlManifestStore, WrittenTable
    from ..writers.parquet.write_config import WriteConfig
    from .destinations import Cleanable


@runtime_checkable
class SupportsTableIdentity(Protocol):
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
class SupportsOrigins(Committer, Protocol):
    """A target that notes which queries have written it."""

    def recorded_origin(self, query_id: str, origins: Sequence[str]) -> str | None:
        """The first of the origins from which another query has committed to the table; None if none has."""
        ...

    def has_rows(self) -> bool:
        """False if there is no table, or it certainly has no rows. May cost what the table has in files."""
        ...


@runtime_checkable
class SupportsOrdering(Protocol[ContentT_contra]):
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


class Destination(Protocol):
    """Where one stream goes, by its options. Driver only: it may hold secrets.

    Pickles, for Spark commits in another process than it plans in.
    """

    @property
    def options(self) -> DeliveryOptions: ...

    @property
    def kind(self) -> str:
        """The kind of its manifests."""
        ...

    @property
    def table_uri(self) -> str:
        """One spelling for one table, without secrets."""
        ...

    def open_table(self) -> Committer:
        """Commits to the table, and looks at it when first asked."""
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


class MaintenanceContext(Protocol):
    """What the delivery process gives to a destination for its list of maintenance steps."""

    @property
    def store(self) -> SqlManifestStore: ...

    @property
    def stream(self) -> StreamKey: ...

    @property
    def policy(self) -> MaintenancePolicy: ...

    @property
    def now(self) -> Callable[[], datetime]: ...

    def compaction(
        self,
        table: CompactableTable,
        rewrite_config: Callable[[LakeManifest], WriteConfig | None],
        target_file_bytes: int,
    ) -> Step:
        """Small data files that readers see already become larger ones.

        Args:
            rewrite_config: see `Compactable`
        """
        ...

    def orphans(self, stored: Cleanable) -> Step:
        """What nothing names any more is deleted, as by `penstock gc`."""
        ...

    def pending_names(self) -> set[str]:
        """Base names of the files that manifests name which are not in the table yet."""
        ...


@runtime_checkable
class Partitioned(Protocol):
    """A destination with partitions, whose rows `penstock.distribute` brings together before the write."""

    def partitioning(self) -> tuple[PartitionField, ...]:
        """Of the table; if it is not there, the one that it would be created with.

        Raises:
            RetryableError: the table cannot be read now.
        """
        ...


@runtime_checkable
class Maintainable(Protocol):
    """A destination whose table the delivery process keeps in shape."""

    def maintenance_policy(self) -> MaintenancePolicy:
        """What the options say."""
        ...

    def maintenance_steps(self, context: MaintenanceContext) -> list[Step]: ...

    def is_maintained(self) -> bool:
        """True if Penstock looks after the table although the query does not say so.

        Raises:
            RetryableError: the table cannot be read now.
        """
        ...


def mode_of(overwrite: bool) -> Mode:
    """The mode of a batch, from what Spark says of it."""
    return "overwrite" if overwrite else "append"


def check_same_table(table: Committer, stream: StreamKey, written: WrittenTable | None) -> None:
    """The table must be the one that the stream's committed batches went into, and still claim to hold them.

    Args:
        written: what the store knew of it before the table was looked at; None if nothing

    Raises:
        TableChangedError: it is another one, or was put back to before the stream's last batch.
    """
    if not isinstance(table, SupportsTableIdentity):
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
