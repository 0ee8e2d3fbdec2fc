"""The installed destinations, by the kind of their manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..committers.cleaning.cleanup import Cleanup
from ..committers.errors import ConfigurationError, shown
from ..committers.progress import with_store
from ..committers.requests.content import LOGGED_FOR_TABLE, RequestManifests
from ..committers.row_log.logged_batches import LoggedBatches
from ..committers.row_log.sharing import routes_of
from .options.parsing import Option
from .plug_ins import BUILT_IN, GROUP, INTERNAL, load, plug_ins
from .sink import Destination
from .stored.stored_table import Cleanable, StoredTable
from .stored.table_access import TableAccess

if TYPE_CHECKING:
    from ..committers.contract import DataFile, Manifest, StreamKey
    from ..committers.store.sql import SqlManifestStore
    from ..committers.store.status import StreamStatus
    from ..committers.target import Committer


class QueryRecords(Protocol):
    """What a destination keeps of one query besides its rows, such as a fence. For `penstock retire`.

    Methods raise `AccessRefusedError` if the user may not do it, or `RetryableError` if the destination does
    not answer now.
    """

    def found(self) -> Sequence[str]:
        """Return what is there, for the operator: what it is and where."""
        ...

    def remove(self) -> None:
        """Remove all of it, and nothing of other queries. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class DestinationType:
    """One kind of destination."""

    kind: str
    """The kind of its manifests, and of its streams in the store."""
    data_source: str
    """`module:class` of the data source that Spark registers. Only that loads it, and Spark."""
    options: tuple[Option, ...]
    """All options of the query, except those with a prefix, which may be secrets."""
    sink: Callable[[StreamKey, Mapping[str, str], TableAccess], Destination]
    """Returns the sink of the stream's query, from its stored options and the secrets of this process."""
    stored_table: Callable[[StreamKey, TableAccess], StoredTable]
    files_of: Callable[[Manifest], Sequence[DataFile]]
    """Returns the data files in a manifest, or what takes their place. Raises `ManifestCorruptError`."""
    records: Callable[[StreamKey, Any], QueryRecords] | None = None
    """Returns what the destination keeps of a stream's query and lets Penstock remove, from its `sink`. None:
    nothing.
    """
    has_row_log: bool = False
    """See `DeliveryOptions.has_row_log`."""
    ignores_case: bool = False
    """True if names of tables that differ only in case may be one table."""
    extra: str = ""
    """The extra of Penstock that it needs, if that has not the name of the kind. For `penstock check`."""
    remains: str = ""
    """What stays in the destination of a query that was retired, besides its rows, and why."""


def destination_type(stream: StreamKey, kind: str) -> DestinationType:
    """Return the destination of a stream.

    Raises:
        ConfigurationError: no such destination is installed.
    """
    if kind in BUILT_IN or kind in INTERNAL:
        built_in: DestinationType = load(BUILT_IN.get(kind) or INTERNAL[kind])
        return built_in
    for entry in plug_ins().select(name=kind):
        try:
            found: DestinationType = entry.load()
        except Exception as error:
            raise ConfigurationError(
                f"The destination {shown(kind)} of the stream {stream} cannot be loaded from {entry.value}: "
                f"{error}. Nothing was changed. Reinstall the package of the destination."
            ) from error
        return found
    raise ConfigurationError(
        f"The stream {stream} writes a table of kind {shown(kind)}. This version of Penstock does not "
        f"support it, and no installed package provides a destination of that name ({GROUP}). Nothing was "
        "changed. Run: pip install --upgrade penstock, or install the package of the destination."
    )


def files_of(manifest: Manifest) -> Sequence[DataFile]:
    """Return the files in a manifest of any kind. Raises as `destination_type`, or `ManifestCorruptError`."""
    if manifest.version == LOGGED_FOR_TABLE:
        return RequestManifests(manifest.kind, LOGGED_FOR_TABLE).files(manifest)
    return destination_type(manifest.batch.stream, manifest.kind).files_of(manifest)


def paths_of(manifest: Manifest) -> Iterator[str]:
    """Return the paths of `files_of`."""
    return (file.path for file in files_of(manifest))


def cleanup_of(
    stored: Cleanable,
    store: SqlManifestStore,
    cleaned: Sequence[StreamKey],
    ended: Callable[[], Mapping[str, int]] | None = None,
) -> Cleanup:
    """Return the clean-up of a stored table. See `Cleanup`."""
    named = (lambda _: ()) if stored.moves_rows() else paths_of
    return Cleanup(store, stored.cleanable(store), cleaned, stored.name_parser(cleaned), named, ended)


def stored_table(stream: StreamStatus, access: TableAccess) -> StoredTable:
    """Return the table of a stream.

    Raises:
        ConfigurationError: no such destination is installed, or options are missing to open the table.
    """
    destination = destination_type(stream.key, stream.kind)
    return destination.stored_table(stream.key, access_of(stream, access))


def access_of(stream: StreamStatus, access: TableAccess) -> TableAccess:
    """Return the options of a process for one stream. See `merged_access`. Raises as `destination_type`."""
    from .stored.stream_access import merged_access  # loads SQLAlchemy, which executors do not need

    return merged_access(stream, destination_type(stream.key, stream.kind).options, access)


def open_committer(stream: StreamStatus, access: TableAccess, store: SqlManifestStore) -> Committer:
    """Return a committer for the table of a stream. Commands open it here. Raises as `stored_table`."""
    committer = stored_table(stream, access).committer()
    if is_logged_table(stream):
        return LoggedBatches(committer, stream.kind)
    return with_store(committer, store)


def is_logged_table(stream: StreamStatus) -> bool:
    """Return True for a table whose rows wait in the row log of a query with routes."""
    return bool(routes_of(stream.settings)) and not destination_type(stream.key, stream.kind).has_row_log


def with_prefix(prefix: str, options: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the options, and with the prefix those that only this process has."""
    return {**options, **{f"{prefix}{key}": value for key, value in secrets.items()}}
