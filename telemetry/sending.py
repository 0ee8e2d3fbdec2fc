"""Sends telemetry in the background, so that a collector never delays a batch for long and never fails it.

Runs in planner, task, commit and delivery processes. What is lost when a process is killed is not sent again.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..committers.texts.safe_text import get_logger, one_line

logger = get_logger(__name__)

QUEUE_MAX = 1000
"""Jobs that wait for a collector. Further ones are dropped."""
WAIT_S = 0.5
"""How long a batch waits at most until its telemetry is sent: Spark may end the process right after it."""
LAST_WAIT_S = 2.0
"""The same for a batch that has failed, and at the end of a process: after both the process is gone."""
SLOW_S = 60.0
"""After a wait that was too short, or an error, no batch waits for this long."""


_this_thread = threading.local()


@contextmanager
def quietly() -> Iterator[None]:
    """In this thread, the loggers of `silence` log nothing: `Sender` reports what has failed, once."""
    before = getattr(_this_thread, "is_quiet", False)
    _this_thread.is_quiet = True
    try:
        yield
    finally:
        _this_thread.is_quiet = before


def silence(*names: str) -> None:
    """Let these loggers log nothing while a thread is in `quietly`; other threads log as before."""
    for name in names:
        logging.getLogger(name).addFilter(_is_logged)


def _is_logged(record: logging.LogRecord) -> bool:
    return not getattr(_this_thread, "is_quiet", False)


class Sender:
    """Runs jobs one after the other in a daemon thread, which starts with the first job.

    Args:
        name: of the receiver, for the log
        queue_max, clock: for tests
    """

    def __init__(
        self, name: str, *, queue_max: int = QUEUE_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._clock = clock
        self._jobs: queue.Queue[Callable[[], object]] = queue.Queue(queue_max)
        self._idle = threading.Condition()
        self._pending = 0
        """Jobs that have not ended."""
        self._thread: threading.Thread | None = None
        self._slow_until = 0.0
        self._has_reported = False

    def put(self, job: Callable[[], object]) -> None:
        """Run the job later. Never blocks and never raises: if too many wait, this one is dropped."""
        with self._idle:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"penstock {self._name}", daemon=True)
                self._thread.start()
                atexit.register(self.wait, LAST_WAIT_S)
            with suppress(queue.Full):
                self._jobs.put_nowait(job)
                self._pending += 1
                return
        self._report(f"more than {self._jobs.maxsize} wait, and the newest ones are dropped")

    def wait(self, wait_s: float = WAIT_S) -> bool:
        """Wait until all jobs have run; return False if they have not. Does not wait for a collector that has
        just been slow, or that has just failed.
        """
        with self._idle:
            if not self._pending:
                return True
            if self._clock() < self._slow_until:
                return False
            if self._idle.wait_for(lambda: not self._pending, wait_s):
                return True
        self._slow_until = self._clock() + SLOW_S
        return False

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                with quietly():
                    job()
                self._has_reported = self._has_reported and self._clock() < self._slow_until
            except Exception as error:  # noqa: BLE001  telemetry never fails a batch
                self._slow_until = self._clock() + SLOW_S
                self._report(f"{type(error).__name__}: {error}")
            with self._idle:
                self._pending -= 1
                self._idle.notify_all()

    def _report(self, problem: str) -> None:
        """Log a problem once, until the receiver has worked for a while."""
        if not self._has_reported:
            self._has_reported = True
            logger.warning(
                "%s could not be sent: %s. Batches go on without it. Logged once until it works again.",
                self._name,
                one_line(problem),
            )
