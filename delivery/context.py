"""Settings and shared state of one delivery process."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from ..committers.deliveries.contract import Delivery
from ..committers.requests.contract import Counters
from ..committers.store.database import Clock
from ..committers.store.sql import SqlManifestStore, utc_now
from ..committers.store.status import StreamStatus
from ..committers.texts.safe_text import get_logger
from ..datasource.stored.stream_access import about_unknown_names
from ..datasource.stored.table_access import TableAccess
from .attempts import DeliveryListener, DeliveryReport, ServiceSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OpenSpark: TypeAlias = "Callable[[], SparkSession]"
"""Returns a session that works. Called for each compaction on Spark, in any thread."""


logger = get_logger("penstock.delivery")


def new_holder() -> str:
    """Return a name for the holder of leases, unique to this process."""
    return f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """Shared by all stores and streams of one delivery process."""

    access: TableAccess
    settings: ServiceSettings
    listeners: Sequence[DeliveryListener] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    """Ends the process after the running deliveries."""
    spark: OpenSpark | None = None
    clock: Clock = utc_now
    holder: str = field(default_factory=new_holder)
    """Name under which this process holds leases."""

    def check_names(self, store: SqlManifestStore, streams: Sequence[StreamStatus]) -> None:
        """Log which credentials of this process are for no stream of the store."""
        if warning := about_unknown_names(self.access, streams, store.name):
            logger.warning("%s", warning)

    def on_poll(self, store: SqlManifestStore, streams: Sequence[StreamStatus], now: datetime) -> None:
        for listener in self.listeners:
            listener.on_poll(store.name, streams, now)

    def on_store_failure(self, store: str, error: Exception) -> None:
        for listener in self.listeners:
            listener.on_store_failure(store, error)

    def on_sending(self, stream: StreamStatus, counters: Counters) -> None:
        for listener in self.listeners:
            listener.on_sending(stream, counters)

    def on_start(self, stream: StreamStatus, delivery: Delivery) -> None:
        for listener in self.listeners:
            listener.on_start(stream, delivery)

    def on_delivery(self, report: DeliveryReport) -> None:
        for listener in self.listeners:
            listener.on_delivery(report)

    def on_failure(self, stream: StreamStatus, error: Exception, wait_s: float | None) -> None:
        for listener in self.listeners:
            listener.on_failure(stream, error, wait_s)
