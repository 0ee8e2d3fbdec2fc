"""The sink for database tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ...committers.database.contract import TableAddress
from ...committers.database.dialect import Dialect
from ...committers.database.server import DatabaseServer
from ...writers.database.staging_writer import DatabaseWriters
from ..plain_sink import StorageSink
from .target import DatabaseTarget, TransactionTarget

if TYPE_CHECKING:
    from ...committers.database.cleanup import FenceRecords


@dataclass(frozen=True, slots=True)
class DatabaseSink(StorageSink, ABC):
    """See `Sink`. A database says what its server, its statements and its loader of rows are."""

    target: ClassVar[type[DatabaseTarget]] = TransactionTarget
    writers: ClassVar[type[DatabaseWriters]]

    options: Any
    advice: str = ""
    """What to do if the database denies access; empty: what the query can do."""
    _server: DatabaseServer = field(init=False)
    _address: Any = field(init=False)

    def __post_init__(self) -> None:
        server, address = self.opened(self.options)
        object.__setattr__(self, "_server", server)
        object.__setattr__(self, "_address", address)

    @abstractmethod
    def opened(self, options: Any) -> tuple[DatabaseServer, TableAddress]:
        """Return the server and the address of the table."""

    @property
    @abstractmethod
    def dialect(self) -> Dialect:
        """Of the table's database."""

    @property
    def staging_schema(self) -> str:
        """Schema of the staging tables."""
        return str(getattr(self.options, "staging_schema", None) or self._address.schema)

    @property
    def kind(self) -> str:
        return self.dialect.kind

    @property
    def table_uri(self) -> str:
        return str(self._address.uri)

    def open_table(self) -> DatabaseTarget:
        return self.target(
            self._server, self.dialect, self._address, self.options, self.staging_schema, self.writers
        )

    def records(self, query_id: str) -> FenceRecords:
        from ...committers.database.cleanup import FenceRecords

        return FenceRecords(self._server, self.dialect, self._address, query_id)
