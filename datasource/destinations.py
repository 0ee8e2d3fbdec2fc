"""The destinations that are installed, by the kind of their manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..committers.cleanup import Cleanup
from ..committers.errors import ConfigurationError, shown
from .options.parsing import Option
from .plug_ins import BUILT_IN, GROUP, load, plug_ins
from .sink import Destination
from .table_access import TableAccess

if TYPE_CHECKING:
    from ..committers.cleanup import CleanableTable, NameParser
    from ..committers.contract import Committer, DataFile, Manifest, StreamKey
    from ..committers.store.sql import SqlManifestStore, StreamStatus


@dataclass(frozen=True, slots=True)
class TableNow:
    """A table as it is now."""

    table_id: str
    version: int


class StoredTable(Protocol):
    """A stream's table by the address that the store has. Runs in the commands and the delivery process."""

    def committer(self) -> Committer:
        """An instance looks at the table once."""
        ...

    def now(self) -> TableNow | None:
        """The table as it is now; None if there is none.

        Raises:
            RetryableError: it cannot be read now.
        """
        ...


@runtime_checkable
class Cleanable(Protocol):
    """A stored table beside which failed tasks and lost drivers may leave something."""

    def cleanable(self, store: SqlManifestStore) -> CleanableTable:
        """The table as clean-up looks at it."""
        ...

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        """What names of files say that one of these streams has written, all into this table."""
        ...

    def moves_rows(self) -> bool:
        """True if a commit copies the rows out of what the manifest names, which then nothing needs."""
        ...


@dataclass(frozen=True, slots=True)
class DestinationType:
    """One kind of destination."""

    kind: str
    """Of its manifests, and of its streams in the store."""
    data_source: str
    """`module:class` of what Spark registers: nothing else loads it, nor Spark."""
    options: tuple[Option, ...]
    """All that the query may set, but for those with a prefix, which hold secrets."""
    sink: Callable[[StreamKey, Mapping[str, str], TableAccess], Destination]
    """That of the stream's query, from its stored options and the secrets of this process."""
    stored_table: Callable[[StreamKey, TableAccess], StoredTable]
    files_of: Callable[[Manifest], Sequence[DataFile]]
    """What a manifest names: data files, or what takes their place. Raises `ManifestCorruptError`."""


def destination_type(stream: StreamKey, kind: str) -> DestinationType:
    """
    Raises:
        ConfigurationError: no such destination is installed.
    """
    if kind in BUILT_IN:
        built_in: DestinationType = load(BUILT_IN[kind])
        return built_in
    for entry in plug_ins().select(name=kind):
        try:
            found: DestinationType = entry.load()
        except Exception as error:
            raise ConfigurationError(
                f"The destination {shown(kind)} of the stream {stream} cannot be loaded from {entry.value}: "
                f"{error}. Nothing was changed. Correct the installation of its package"
            ) from error
        return found
    raise ConfigurationError(
        f"The stream {stream} writes a table of kind {shown(kind)}, which this version of Penstock does not "
        f"know, and no installed package has a destination of that name ({GROUP}). Nothing was changed. Run: "
        "pip install --upgrade penstock, or install the package of the destination"
    )


def files_of(manifest: Manifest) -> Sequence[DataFile]:
    """What a manifest of any kind names; raises as `destination_type`, or `ManifestCorruptError`."""
    return destination_type(manifest.batch.stream, manifest.kind).files_of(manifest)


def paths_of(manifest: Manifest) -> Iterator[str]:
    """The paths of `files_of`."""
    return (file.path for file in files_of(manifest))


def cleanup_of(
    stored: Cleanable, store: SqlManifestStore, cleaned: Sequence[StreamKey], known: Sequence[StreamKey]
) -> Cleanup:
    """The clean-up of a stored table; see `Cleanup`."""
    named = (lambda _: ()) if stored.moves_rows() else paths_of
    return Cleanup(store, stored.cleanable(store), cleaned, known, stored.name_parser(cleaned), named)


def stored_table(stream: StreamStatus, access: TableAccess) -> StoredTable:
    """The stream's table.

    Raises:
        ConfigurationError: no such destination is installed, or it cannot be opened with what is given.
    """
    return destination_type(stream.key, stream.kind).stored_table(stream.key, access)


def with_prefix(prefix: str, options: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """The options, and those with the prefix that are given to this process alone."""
    return {**options, **{f"{prefix}{key}": value for key, value in secrets.items()}}
