"""Maintenance of a stream in the delivery process: delete files and records that are no longer needed, and
maintain the table. A failure is logged and repeated later; no batch depends on it.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from ..committers.errors import PenstockError
from ..committers.safe_text import get_logger
from ..datasource.destinations import Cleanable, stored_table
from ..datasource.sink import Destination, Maintainable
from .maintenance_steps import MaintenanceRunner, maintenance_runner
from .sources import SOURCES_GRACE, remove_sources

if TYPE_CHECKING:
    from ..committers.store.sql import SqlManifestStore
    from ..committers.store.status import StreamStatus
    from .context import DeliveryContext

logger = get_logger(__name__)


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

    def run(self) -> None:
        """Do everything that is due."""
        for step in (self._remove_sources, self._prune, self._maintain):
            if self._stop():
                return
            try:
                step()
            except PenstockError as error:
                logger.warning("Maintenance of %s is postponed: %s", self._stream.key, error)

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
                access=self._access,
                now=self._clock,
                stop=self._stop,
            )
        for result in self._maintenance.run_due(self._clock(), self._stop):
            if result.error is not None:
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
