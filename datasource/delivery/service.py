"""The delivery of all streams of one store, for as long as the process runs or until nothing is left.

A turn of a stream runs in a thread of its own, a bounded number of them at once. What goes wrong in one is
told, and tried again with growing pauses; the other streams do not notice. An outage of the store is waited
for. Nothing here is the truth about anything: a process that is killed loses nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from ...committers.contract import StreamKey
from ...committers.errors import CommitStateUnknownError, PenstockError, RetryableError
from ...committers.store.database import Clock
from ...committers.store.sql import StreamStatus, utc_now
from ..table_access import TableAccess
from .worker import DeliveryOrder, Landing, ServiceSettings, StreamWorker, Surroundings, Turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...committers.store.sql import SqlManifestStore

logger = logging.getLogger(__name__)

PAUSE_S, PAUSE_S_MAX = 1.0, 30.0
"""After a failure; it doubles from the first to the second."""
IDLE_S_MAX = 5.0
"""After turns in which nothing could be delivered, though it was due: it is not in Spark's commits log."""
PASSING = (RetryableError, CommitStateUnknownError)


class Watcher(Protocol):
    """Is told how the deliveries go. Called from several threads."""

    def saw(self, store: str, streams: Sequence[StreamStatus], now: datetime) -> None:
        """All decoupled streams, as the store of this name has them now."""
        ...

    def landed(self, landing: Landing) -> None: ...

    def failed(self, stream: StreamStatus, error: Exception, *, is_parked: bool) -> None: ...


class Pauses:
    """Growing pauses after failures in a row."""

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def begin(self, longest_s: float = PAUSE_S_MAX) -> float:
        """One more failure; how many seconds from now the pause lasts."""
        pause_s = min(PAUSE_S * 2.0 ** min(self._failures, 30), longest_s)
        self._failures += 1
        self._until = time.monotonic() + pause_s
        return pause_s

    def end(self) -> None:
        self._failures, self._until = 0, 0.0

    @property
    def is_on(self) -> bool:
        return time.monotonic() < self._until


class TurnThread(threading.Thread):
    """One turn of one stream. A daemon: a delivery that is cut off anywhere is finished by the next one."""

    def __init__(self, worker: StreamWorker, order: DeliveryOrder) -> None:
        super().__init__(name=f"delivery of {worker.stream.key}", daemon=True)
        self.worker = worker
        self.order = order
        self.result = Turn()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.result = self.worker.turn(self.order)
        except Exception as error:  # noqa: BLE001 - the service tells it, and pauses the stream
            self.error = error


def surroundings(
    store: SqlManifestStore,
    access: TableAccess,
    settings: ServiceSettings,
    watchers: Sequence[Watcher],
    *,
    stop: threading.Event,
    spark: SparkSession | None = None,
    clock: Clock = utc_now,
) -> Surroundings:
    """What the streams of one store have in common in this process."""

    def landed(landing: Landing) -> None:
        for watcher in watchers:
            watcher.landed(landing)

    def failed(stream: StreamStatus, error: Exception, is_parked: bool) -> None:
        for watcher in watchers:
            watcher.failed(stream, error, is_parked=is_parked)

    holder = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
    return Surroundings(store, access, holder, settings, stop, clock, landed, failed, spark)


class DeliveryService:
    """Delivers the decoupled streams of one store.

    Args:
        is_chosen: leaves streams out
        stop: ends everything, once the deliveries that run have landed
    """

    def __init__(
        self,
        store: SqlManifestStore,
        access: TableAccess,
        settings: ServiceSettings,
        watchers: Sequence[Watcher],
        *,
        stop: threading.Event,
        is_chosen: Callable[[StreamStatus], bool] = lambda stream: True,
        spark: SparkSession | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self._store = store
        self._settings = settings
        self._watchers = watchers
        self._stop = stop
        self._is_chosen = is_chosen
        self._clock = clock
        self._around = surroundings(store, access, settings, watchers, stop=stop, spark=spark, clock=clock)
        self._workers: dict[StreamKey, StreamWorker] = {}
        self._pauses: dict[StreamKey, Pauses] = {}
        self._running: dict[StreamKey, TurnThread] = {}

    # For as long as the process runs ----------------------------------------------------------------

    def run(self) -> None:
        """Deliver what becomes due until `stop` is set. Outages, of the store too, are waited for.

        Raises:
            PenstockError: the store can be read, and not be understood.
        """
        outage = Pauses()
        try:
            while not self._stop.is_set():
                wait_s = self._settings.poll_s
                try:
                    self._poll()
                    outage.end()
                except PASSING as error:
                    wait_s = outage.begin()
                    logger.warning("Tried again in %.0f s: %s", wait_s, error)
                self._stop.wait(wait_s)
        finally:
            self._end()

    def _poll(self) -> None:
        self._reap()
        now = self._clock()
        for worker in self._look(now):
            if len(self._running) >= self._settings.parallel:
                return
            if not self._is_free(worker.stream.key):
                continue
            order = worker.order(now)
            if order is not None:
                self._start(worker, order)

    def _look(self, now: datetime) -> list[StreamWorker]:
        """The decoupled streams, those that have waited longest first."""
        workers = []
        for stream in self._store.streams():
            if not self._is_chosen(stream):
                continue
            if stream.key not in self._workers:
                self._workers[stream.key] = StreamWorker(stream, self._around)
            worker = self._workers[stream.key]
            if self._sees(worker, stream) and worker.is_decoupled:
                workers.append(worker)
        streams = [worker.stream for worker in workers]
        for watcher in self._watchers:
            watcher.saw(self._store.name, streams, now)
        return sorted(workers, key=lambda worker: worker.stream.backlog.oldest_prepared_at or now)

    def _sees(self, worker: StreamWorker, stream: StreamStatus) -> bool:
        """False if the stream's settings cannot be read."""
        if stream.key in self._running:
            return True
        try:
            worker.see(stream)
        except PenstockError as error:
            if self._is_free(stream.key):
                self._pauses[stream.key].begin()
                self._around.failed(stream, error, False)
            return False
        return True

    def _is_free(self, key: StreamKey) -> bool:
        return key not in self._running and not self._pauses.setdefault(key, Pauses()).is_on

    def _start(self, worker: StreamWorker, order: DeliveryOrder) -> None:
        thread = TurnThread(worker, order)
        self._running[worker.stream.key] = thread
        thread.start()

    def _reap(self) -> None:
        for key, thread in list(self._running.items()):
            if not thread.is_alive():
                del self._running[key]
                self._judge(thread)

    def _judge(self, thread: TurnThread) -> None:
        """Pause a stream whose turn came to nothing; after a failure the store says when to try again."""
        stream, turn = thread.worker.stream, thread.result
        pauses = self._pauses.setdefault(stream.key, Pauses())
        if thread.error is not None:
            pauses.begin()
            self._around.failed(stream, thread.error, False)
        elif turn.is_busy:
            pass  # who holds the lease may be dead: at the next look it may have ended
        elif turn.has_done_something or thread.order.is_upkeep:
            pauses.end()
        else:
            pauses.begin(IDLE_S_MAX)

    def _end(self) -> None:
        """Let the turns that run come to their end: each looks at `stop` after its delivery."""
        for thread in self._running.values():
            thread.join()
        self._reap()
