"""What a delivery process works with, from its start to its end."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from ..committers.store.database import Clock
from ..committers.store.sql import SqlManifestStore, StreamStatus, utc_now
from ..datasource.table_access import TableAccess
from .turns import Landing, ServiceSettings, Watcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OpenSpark: TypeAlias = "Callable[[], SparkSession]"
"""A session that answers; called by each compaction that wants one, in any thread."""


def new_holder() -> str:
    """A name for who holds leases, unique to this process."""
    return f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """The same for all stores and streams of one delivery process."""

    access: TableAccess
    settings: ServiceSettings
    watchers: Sequence[Watcher] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    """Ends everything, once the deliveries that run have landed."""
    spark: OpenSpark | None = None
    clock: Clock = utc_now
    holder: str = field(default_factory=new_holder)
    """Of leases."""

    def saw(self, store: SqlManifestStore, streams: Sequence[StreamStatus], now: datetime) -> None:
        for watcher in self.watchers:
            watcher.saw(store.name, streams, now)

    def store_failed(self, store: str, error: Exception) -> None:
        for watcher in self.watchers:
            watcher.store_failed(store, error)

    def landed(self, landing: Landing) -> None:
        for watcher in self.watchers:
            watcher.landed(landing)

    def failed(self, stream: StreamStatus, error: Exception, wait_s: float | None) -> None:
        for watcher in self.watchers:
            watcher.failed(stream, error, wait_s)
