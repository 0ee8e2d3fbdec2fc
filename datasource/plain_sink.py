"""A sink for destinations that need only a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from ..committers.contract import Batch, ContentT, PayloadT, Target
from ..writers.local_path import local_path
from .options.delivery import DeliveryOptions

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from ..committers.store.sql import SqlManifestStore


@dataclass(frozen=True, slots=True)
class PlainSink(Generic[PayloadT, ContentT]):
    """See `Sink`. The target can be pickled, and has no state between calls."""

    kind: str
    table_uri: str
    options: DeliveryOptions
    target: Target[PayloadT, ContentT]

    def open_table(self) -> Target[PayloadT, ContentT]:
        return self.target

    def open_filesystem(self, location: str) -> tuple[FileSystem, str]:
        """Open a location. Arrow takes the credentials of object stores from the environment."""
        return open_from_environment(location)

    def maintain(self, store: SqlManifestStore, batch: Batch) -> None:
        """Do nothing."""


def open_from_environment(location: str) -> tuple[FileSystem, str]:
    """Open a location. Arrow takes the credentials of object stores from the environment."""
    from pyarrow.fs import FileSystem, LocalFileSystem

    local = local_path(location)
    if local is not None:
        return LocalFileSystem(), local
    filesystem, path = FileSystem.from_uri(location.replace("s3a://", "s3://", 1))
    return filesystem, path
