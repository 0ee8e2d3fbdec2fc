"""What a handle of the Delta library and a kept view of a table have in common."""

from __future__ import annotations

from typing import Protocol

from deltalake import Schema
from deltalake.table import Metadata, ProtocolVersions


class DeltaTableState(Protocol):
    """A Delta table at one version, all but its files."""

    @property
    def table_uri(self) -> str: ...

    def version(self) -> int: ...

    def metadata(self) -> Metadata: ...

    def schema(self) -> Schema: ...

    def protocol(self) -> ProtocolVersions: ...
