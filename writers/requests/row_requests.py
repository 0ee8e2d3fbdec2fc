"""Base of what turns the rows of a query into requests. Runs on executors and in the delivery process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...committers.requests.contract import RowPlace
from .client import Client
from .entry import Entry
from .opening import RowWriter, WriterSettings, open_writer


@dataclass(frozen=True, slots=True)
class RowRequests(ABC):
    """See `Requests`, which documents the methods."""

    address: str
    """Of the destination, for messages."""
    settings: WriterSettings
    id_column: str | None
    """The option `idColumn`."""

    @abstractmethod
    def check_schema(self, rows: pa.Schema) -> None: ...

    @abstractmethod
    def checker(self) -> Callable[[pa.RecordBatch], object]: ...

    @abstractmethod
    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[Any]]: ...

    @abstractmethod
    def new_client(self) -> Client[Any]:
        """Return a new client. The only place that loads the client library."""

    def open_writer(self, on_acknowledged: Callable[[], None] = lambda: None) -> RowWriter[Any]:
        return open_writer(self.new_client(), self.settings, on_acknowledged)
