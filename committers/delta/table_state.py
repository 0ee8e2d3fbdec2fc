"""Common interface of the Delta library's table and of a cached snapshot."""

from __future__ import annotations

from typing import Protocol

from deltalake import Schema
from deltalake.table import Metadata, ProtocolVersions


class DeltaTableState(Protocol):
    """A Delta table at one version, without its files."""

    @property
    def table_uri(self) -> str: ...

    def version(self) -> int: ...

    def metadata(self) -> Metadata: ...

    def schema(self) -> Schema: ...

    def protocol(self) -> ProtocolVersions: ...
