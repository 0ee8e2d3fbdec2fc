"""Maintenance of a stream in the delivery process: delete files and records that are no longer needed, and
maintain the table. A failure is logged and repeated later; no batch depends on it.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from ..committers.errors import PenstockError
from ..committers.store.maintenance import WHOLE
from ..committers.texts.safe_text import get_logger
from ..datasource.destinations import access_of, stored_table
from ..datasource.sink import Destination, Maintainable
from ..datasource.stored.stored_table import Cleanable
from .maintenance_steps import MaintenanceRunner, maintenance_runner
from .sources import SOURCES_GRACE, remove_sources

if TYPE_CHECKING:
    from ..committers.store.sql import SqlManifestStore
    from ..committers.store.status import StreamStatus
    from .context import DeliveryContext

logger = get_logger(__name__)

IDLE_MAINTENANCE = timedelta(hours=1)
"""Time between two maintenance runs of a stream without new batches."""


def maintained_at(stream: StreamStatus) -> datetime:
    """Return when the stream was last maintained; long ago if never."""
    return stream.maintained_at or datetime.min.replace(tzinfo=timezone.utc)


def has_news(stream: StreamStatus) -> bool:
    """Return True if the stream has changed since its last maintenance."""
    done, last = stream.maintained_at, stream.last
    if stream.backlog.batches or stream.dead_letters_waiting:
        return True
    if done is None or last is None:
        return False
    return last.finished_at is None or last.finished_at > done


def is_maintenance_due(stream: StreamStatus, now: datetime) -> bool:
    """Return True if the stream has changed, or was not maintained for long. A time in the future does not
    count.
    """
    done = stream.maintained_at
    return done is None or not done <= now < done + IDLE_MAINTENANCE or has_news(stream)


class StreamMaintenance:
    """The maintenance of one stream. Lives as long as the process: it remembers steps that have failed."""

    def __init__(
        self, stream: StreamStatus, sink: Destination, store: SqlManifestStore, context: DeliveryContext
    ) -> None:
        self._stream = stream
        self._sink = sink
        self._store = store
        self._access = context.access
        self._clock = context.clock
        self._stop = context.stop.is_set
        self._maintenance: MaintenanceRunner | None = None
        self._has_failed = False
        """Whether a step of the table has failed."""

    def run(self) -> None:
        """Do everything that is due, and record it unless something failed."""
        started_at, is_complete, self._has_failed = self._clock(), True, False
        for step in (self._remove_sources, self._prune, self._maintain):
            if self._stop():
                return
            try:
                step()
            except PenstockError as error:
                logger.warning("Maintenance of %s is postponed: %s", self._stream.key, error)
                is_complete = False
        if is_complete and not self._has_failed and not self._stop():
            self._store.maintenance.note(self._stream.key, WHOLE, started_at)

    def _remove_sources(self) -> None:
        stored = stored_table(self._stream, self._access)
        if not isinstance(stored, Cleanable):
            return
        deleted = remove_sources(
            self._store,
            self._stream.key,
            lambda: stored.cleanable(self._store),
            self._clock() - SOURCES_GRACE,
            self._stop,
        )
        if deleted:
            logger.info("Deleted %d files of %s that deliveries had rewritten.", deleted, self._stream.key)

    def _prune(self) -> None:
        options = self._sink.options
        older_than = self._clock() - timedelta(seconds=options.delivered_s_max)
        pruned = self._store.deliveries.prune(self._stream.key, older_than, options.delivered_max)
        if pruned:
            logger.info("Removed %d old batches of %s from the store.", pruned, self._stream.key)

    def _maintain(self) -> None:
        sink = self._sink
        if not isinstance(sink, Maintainable):
            return
        if self._maintenance is None:
            self._maintenance = maintenance_runner(
                sink,
                self._store,
                self._stream.key,
                sink.maintenance_policy(),
                access=access_of(self._stream, self._access),
                now=self._clock,
                stop=self._stop,
            )
        for result in self._maintenance.run_due(self._clock(), self._stop):
            if result.error is not None:
                self._has_failed = True
                logger.warning("%s of %s is put off: %s", result.step, self._stream.key, result.error)
            elif result.done:
                logger.info("%s: %s (%.1f s)", self._stream.key, result.done, result.seconds)


class MaintenanceThread(threading.Thread):
    """Run the maintenance in a thread, so that deliveries of the same stream do not wait for it."""

    def __init__(self, maintenance: StreamMaintenance) -> None:
        super().__init__(name="maintenance", daemon=True)
        self._maintenance = maintenance
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._maintenance.run()
        except Exception as error:  # noqa: BLE001  raised again in the thread that waits for this one
            self.error = error
