"""The delivery of all streams of one store, while the process runs.

Each delivery attempt of a stream runs in its own thread, up to a maximum number. An attempt that fails is
reported and repeated after growing pauses; the other streams are not affected. The service waits while the
store is down. All durable state is in the store and the tables, so a process that is killed loses nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime

from ..committers.contract import StreamKey
from ..committers.deliveries.results import TRANSIENT_ERRORS
from ..committers.errors import PenstockError, RetryableError
from ..committers.store.sql import SqlManifestStore
from ..committers.store.status import StreamStatus
from ..committers.texts.safe_text import get_logger
from .attempts import DeliveryAttempt, DeliveryRequest
from .context import DeliveryContext
from .stream_maintenance import is_maintenance_due, maintained_at
from .worker import StreamWorker

logger = get_logger(__name__)

PAUSE_S, PAUSE_S_MAX = 1.0, 30.0
"""Seconds to pause after a failure: doubled from the first value up to the second."""
IDLE_S_MAX = 5.0
"""Pause after attempts that delivered nothing: Spark's commit log does not contain the due batches yet."""
READING_SHARE = 0.01
"""Most of the time that the process spends on reading all streams, which thousands of them make slow. In
between it reads those with prepared batches.
"""
READING_S_MAX = 60.0
"""Most of the time between two such readings, also after one that took long."""


class Pauses:
    """Growing pauses after consecutive failures."""

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def begin(self, longest_s: float = PAUSE_S_MAX) -> float:
        """Count one more failure. Return the seconds to pause."""
        pause_s = min(PAUSE_S * 2.0 ** min(self._failures, 30), longest_s)
        self._failures += 1
        self._until = time.monotonic() + pause_s
        return pause_s

    def end(self) -> None:
        self._failures, self._until = 0, 0.0

    @property
    def is_on(self) -> bool:
        return time.monotonic() < self._until


class AttemptThread(threading.Thread):
    """One delivery attempt of one stream. A daemon thread: the next delivery finishes an interrupted one."""

    def __init__(self, worker: StreamWorker, request: DeliveryRequest) -> None:
        super().__init__(name=f"delivery of {worker.stream.key}", daemon=True)
        self.worker = worker
        self.request = request
        self.result = DeliveryAttempt()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.result = self.worker.attempt(self.request)
        except Exception as error:  # noqa: BLE001  the service reports it, and pauses the stream
            self.error = error


class DeliveryService:
    """Deliver the decoupled streams of one store.

    Args:
        is_chosen: selects streams
    """

    def __init__(
        self,
        store: SqlManifestStore,
        context: DeliveryContext,
        is_chosen: Callable[[StreamStatus], bool] = lambda stream: True,
    ) -> None:
        self._store = store
        self._context = context
        self._is_chosen = is_chosen
        self._workers: dict[StreamKey, StreamWorker] = {}
        self._pauses: dict[StreamKey, Pauses] = {}
        self._running: dict[StreamKey, AttemptThread] = {}
        self._idle: deque[StreamWorker] = deque()
        """Streams whose maintenance is due, when all were read."""
        self._read_all_at = time.monotonic()
        self._has_checked_names = False

    # Main loop --------------------------------------------------------------------------------------

    def run(self) -> None:
        """Deliver batches when they are due, until `stop` is set, or until the store has to be opened again
        because its file was deleted or replaced. Waits while something is down.

        Raises:
            PenstockError: the content of the store is not valid.
        """
        outage = Pauses()
        try:
            while not self._context.stop.is_set():
                wait_s = self._context.settings.poll_s
                if not self._store.has_same_file:
                    self._tell_of_other_file()
                    return
                try:
                    self._poll()
                    outage.end()
                except TRANSIENT_ERRORS as error:
                    self._read_all_at = time.monotonic()
                    wait_s = outage.begin()
                    logger.warning("Tried again in %.0f s: %s", wait_s, error)
                    self._context.on_store_failure(self._store.name, error)
                self._context.stop.wait(wait_s)
        finally:
            self._end()

    def _tell_of_other_file(self) -> None:
        error = RetryableError(
            f"The file of the manifest store {self._store.name} was deleted or replaced. Penstock opens it "
            "again as soon as it exists; the next start of its query creates it."
        )
        logger.warning("%s", error)
        self._context.on_store_failure(self._store.name, error)

    def _poll(self) -> None:
        self._reap()
        now, waiting = self._context.clock(), list[StreamWorker]()
        if time.monotonic() >= self._read_all_at:
            waiting = self._read_all(now)
        elif self._context.settings.delivers:
            found = self._store.streams(is_pending=True)
            waiting = self._decoupled([stream for stream in found if self._is_chosen(stream)])
        if not self._context.settings.delivers:
            return
        waiting.sort(key=lambda worker: worker.stream.backlog.oldest_prepared_at or now)
        for worker in waiting:
            if self._busy >= self._context.settings.parallel:
                return
            self._start_if_due(worker, now)
        while self._idle and self._busy < self._context.settings.parallel:
            self._start_if_due(self._idle.popleft(), now)

    def _read_all(self, now: datetime) -> list[StreamWorker]:
        """Read all streams, and return those with prepared batches."""
        started = time.monotonic()
        known = self._store.streams()
        if not self._has_checked_names:
            self._context.check_names(self._store, known)
            self._has_checked_names = True
        streams = [stream for stream in known if self._is_chosen(stream)]
        self._context.on_poll(self._store, streams, now)
        workers = self._decoupled(streams) if self._context.settings.delivers else []
        idle = [worker for worker in workers if not worker.stream.backlog.batches]
        if self._context.settings.maintains:
            due = [worker for worker in idle if is_maintenance_due(worker.stream, now)]
            self._idle = deque(sorted(due, key=lambda worker: maintained_at(worker.stream)))
        ended = time.monotonic()
        self._read_all_at = ended + min((ended - started) / READING_SHARE, READING_S_MAX)
        return [worker for worker in workers if worker.stream.backlog.batches]

    def _start_if_due(self, worker: StreamWorker, now: datetime) -> None:
        if self._is_free(worker.stream.key) and (request := worker.request(now)) is not None:
            self._start(worker, request)

    @property
    def _busy(self) -> int:
        """Return the number of running attempts, without those that hang."""
        return sum(not thread.worker.is_stalled for thread in self._running.values())

    def _decoupled(self, streams: Sequence[StreamStatus]) -> list[StreamWorker]:
        """Return the decoupled ones of the streams."""
        workers = []
        for stream in streams:
            if stream.key not in self._workers:
                self._workers[stream.key] = StreamWorker(stream, self._store, self._context)
            worker = self._workers[stream.key]
            if self._sees(worker, stream) and worker.is_decoupled:
                workers.append(worker)
        return workers

    def _sees(self, worker: StreamWorker, stream: StreamStatus) -> bool:
        """Update the worker. Return False if the stream's settings cannot be read."""
        if stream.key in self._running:
            return True
        try:
            worker.see(stream)
        except PenstockError as error:
            if self._is_free(stream.key):
                self._context.on_failure(stream, error, self._pauses[stream.key].begin())
            return False
        return True

    def _is_free(self, key: StreamKey) -> bool:
        return key not in self._running and not self._pauses.setdefault(key, Pauses()).is_on

    def _start(self, worker: StreamWorker, request: DeliveryRequest) -> None:
        thread = AttemptThread(worker, request)
        self._running[worker.stream.key] = thread
        thread.start()

    def _reap(self) -> None:
        for key, thread in list(self._running.items()):
            if not thread.is_alive():
                del self._running[key]
                self._judge(thread)

    def _judge(self, thread: AttemptThread) -> None:
        """Pause a stream whose attempt delivered nothing. After a failure, the store has the next time."""
        stream, attempt = thread.worker.stream, thread.result
        pauses = self._pauses.setdefault(stream.key, Pauses())
        if thread.error is not None:
            self._context.on_failure(stream, thread.error, pauses.begin())
        elif attempt.is_busy:
            pass  # the lease of a process that has died will have expired at the next poll
        elif attempt.has_done_something or thread.request.is_maintenance:
            pauses.end()
        else:
            pauses.begin(IDLE_S_MAX)

    def _end(self) -> None:
        """Wait for the running attempts: each checks `stop` after its delivery."""
        for thread in self._running.values():
            thread.join()
        self._reap()
