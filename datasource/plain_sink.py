"""What sinks have in common, and the sink of destinations that need only a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol

from ..committers.contract import Batch, ContentT, PayloadT
from ..committers.target import Target
from ..writers.local_path import local_path
from .options.delivery import DeliveryOptions

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from ..committers.store.sql import SqlManifestStore


class BaseSink:
    """A mix-in of sinks without storage options, whose tables the delivery process or nobody maintains."""

    def open_filesystem(self, location: str) -> tuple[FileSystem, str]:
        """Open a location. Arrow takes the credentials of object stores from the environment."""
        return open_from_environment(location)

    def maintain(self, store: SqlManifestStore, batch: Batch) -> None:
        """Do nothing."""


class StorageOptions(Protocol):
    """Options with `storage.*`."""

    @property
    def storage_options(self) -> Mapping[str, str]: ...


class StorageSink(BaseSink):
    """A `BaseSink` with storage options."""

    options: StorageOptions

    def open_filesystem(self, location: str) -> tuple[FileSystem, str]:
        """Open a location, a remote one with the options `storage.*`."""
        from ..writers.delta.filesystem import open_filesystem

        return open_filesystem(location, dict(self.options.storage_options))


@dataclass(frozen=True, slots=True)
class PlainSink(BaseSink, Generic[PayloadT, ContentT]):
    """See `Sink`. The target can be pickled, and has no state between calls."""

    kind: str
    table_uri: str
    options: DeliveryOptions
    target: Target[PayloadT, ContentT]

    def open_table(self) -> Target[PayloadT, ContentT]:
        return self.target


def open_from_environment(location: str) -> tuple[FileSystem, str]:
    """Open a location. Arrow takes the credentials of object stores from the environment."""
    from pyarrow.fs import FileSystem, LocalFileSystem

    local = local_path(location)
    if local is not None:
        return LocalFileSystem(), local
    filesystem, path = FileSystem.from_uri(location.replace("s3a://", "s3://", 1))
    return filesystem, path
