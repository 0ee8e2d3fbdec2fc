"""Delivery beside a driver or in a notebook: `penstock.start_delivery(...)`.

Ends with the process that started it, however that ends: at exit, on SIGTERM, and a delivery process of its
own sees the pipe from its parent break. What is cut off anywhere, the next delivery finishes.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from ...committers.errors import ConfigurationError, PenstockError
from ..table_access import TableAccess
from .running import Assignment, deliver, store_of_checkpoint
from .service import Pauses, Watcher
from .watchers import LogWatcher
from .worker import Landing, ServiceSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...committers.store.sql import StreamStatus

logger = logging.getLogger("penstock.delivery")

STOP_S = 60.0
"""How long `stop` waits for the delivery that runs."""
EXIT_S = 20.0
"""The same when the driver ends: shorter than what a cluster manager waits before it kills."""


def start_delivery(
    store: str | None = None,
    *,
    checkpoint: str | None = None,
    stream: str | None = None,
    storage: Mapping[str, str] | None = None,
    catalog: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    process: bool = False,
    parallel: int = 2,
    lease_seconds: float = 10.0,
    metrics_port: int | None = None,
    maintenance: bool = True,
) -> DeliveryHandle:
    """Deliver the decoupled streams of a store from now on, beside whatever this process does.

    Started before or after the queries; a store that is not there yet is waited for. Any number may run on
    one store, also next to `penstock deliver`. The streams go on without it: their batches wait.

    Args:
        store: SQLAlchemy URL of the store, as in the query's option `store`
        checkpoint: instead of it, the checkpoint directory of a query whose store is there
        stream: deliver only this one: a query's name, its id or the beginning of it, or a table
        storage: options for the object store of Delta tables, the query's `storage.*`
        catalog: properties of the catalog of Iceberg tables, the query's `catalog.*`
        spark: for queries with `compactWith=spark`; without it their files are rewritten in this process
        process: in a process of its own, which is started again if it dies, instead of a thread
        parallel: streams that are delivered at once
        lease_seconds: how long another delivery process waits before it takes over from one that is gone
        metrics_port: serve Prometheus metrics there; 0 takes any port
        maintenance: look after the tables too, where their options want it

    Raises:
        ConfigurationError: the arguments do not fit together.
    """
    if (store is None) == (checkpoint is None):
        raise ConfigurationError("start_delivery needs either a store or a checkpoint.")
    if process and spark is not None:
        raise ConfigurationError(
            "A delivery process of its own cannot use this session: give either spark or process=True."
        )
    url = store if store is not None else store_of_checkpoint(checkpoint or "")
    settings = ServiceSettings(parallel=parallel, lease_s=lease_seconds, maintains=maintenance)
    access = TableAccess(
        {key.upper(): value for key, value in (storage or {}).items()},
        {key.lower(): value for key, value in (catalog or {}).items()},
    )
    if process:
        return DeliveryHandle(_Subprocess(url, stream, access, settings, metrics_port))
    return DeliveryHandle(_InThisProcess(url, stream, access, settings, metrics_port, spark))


class Runner(Protocol):
    """Delivers until it is told to stop; called again after an error."""

    def run(self, stop: threading.Event) -> None: ...

    @property
    def last_error(self) -> Exception | None:
        """Of a delivery that failed while the runner itself went on."""
        ...


class DeliveryHandle:
    """A running delivery: started by its making, supervised, ended by `stop` or with the process.

    As a context manager it stops at the end of the block. Safe to use from any thread.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._supervise, name="penstock delivery", daemon=True)
        self._end_signals = _end_with_process(self)
        self._thread.start()

    def __enter__(self) -> DeliveryHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"DeliveryHandle({'running' if self.is_alive else 'ended'})"

    @property
    def is_alive(self) -> bool:
        """True until it has ended; it is started again after errors, so only `stop` ends it."""
        return self._thread.is_alive()

    @property
    def last_error(self) -> Exception | None:
        """The newest failure, of one delivery or of the whole; None if there was none yet."""
        return self._runner.last_error or self._error

    def stop(self, timeout_s: float = STOP_S) -> bool:
        """End once the delivery that runs has landed; False if that takes longer than `timeout_s`.

        Idempotent. After False it still ends by itself.
        """
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        self._end_signals()
        return not self._thread.is_alive()

    def _supervise(self) -> None:
        pauses = Pauses()
        while not self._stop.is_set():
            try:
                self._runner.run(self._stop)
            except Exception as error:
                self._error = error
                wait_s = pauses.begin()
                known = isinstance(error, PenstockError)
                logger.error(
                    "Delivery ended, and starts again in %.0f s: %s", wait_s, error, exc_info=not known
                )
                self._stop.wait(wait_s)


def _end_with_process(handle: DeliveryHandle) -> Callable[[], None]:
    """Stop the handle when the process exits or is terminated; returns what undoes that.

    A handler of the application's own for SIGTERM is called afterwards. Only the main thread can set one:
    elsewhere a terminated process just dies, which loses nothing.
    """

    def at_exit() -> None:
        handle.stop(EXIT_S)

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        handle.stop(EXIT_S)  # puts `before` back
        if callable(before):
            before(number, frame)
        elif before is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    atexit.register(at_exit)
    is_main = threading.current_thread() is threading.main_thread()
    before: Any = signal.signal(signal.SIGTERM, on_sigterm) if is_main else None

    def undo() -> None:
        atexit.unregister(at_exit)
        can_set = threading.current_thread() is threading.main_thread()
        if is_main and can_set and signal.getsignal(signal.SIGTERM) is on_sigterm:
            signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)

    return undo


# In a thread ----------------------------------------------------------------------------------------


class _LastError:
    """A `Watcher` that keeps the newest failure, until something is delivered."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def saw(self, store: str, streams: Sequence[StreamStatus], now: datetime) -> None:
        pass

    def landed(self, landing: Landing) -> None:
        self.error = None

    def failed(self, stream: StreamStatus, error: Exception, *, is_parked: bool) -> None:
        self.error = error


class _InThisProcess:
    """See `Runner`."""

    def __init__(
        self,
        url: str,
        stream: str | None,
        access: TableAccess,
        settings: ServiceSettings,
        metrics_port: int | None,
        spark: SparkSession | None,
    ) -> None:
        from ..cli.access import is_named

        self._assignment = Assignment(
            stores=(url,),
            access=access,
            settings=settings,
            is_chosen=lambda status: stream is None or is_named(status, stream),
            waits_for_stores=True,
            spark=spark,
        )
        self._metrics_port = metrics_port
        self._errors = _LastError()

    @property
    def last_error(self) -> Exception | None:
        return self._errors.error

    def run(self, stop: threading.Event) -> None:
        end_of_run = threading.Event()  # an error sets it, and must not end the supervision
        watchers: list[Watcher] = [LogWatcher(), self._errors]
        end_metrics = _nothing
        if self._metrics_port is not None:
            from .metrics import Metrics

            metrics = Metrics()
            _, end_metrics = metrics.serve(self._metrics_port, "0.0.0.0")  # noqa: S104 - to be scraped
            watchers.append(metrics)
        relay = threading.Thread(target=_relay, args=(stop, end_of_run), daemon=True)
        relay.start()
        try:
            deliver(self._assignment, watchers, end_of_run)
        finally:
            end_of_run.set()
            end_metrics()


def _nothing() -> None:
    pass


def _relay(stop: threading.Event, end_of_run: threading.Event) -> None:
    while not end_of_run.is_set():
        if stop.wait(0.2):
            end_of_run.set()


# In a process of its own ----------------------------------------------------------------------------


class _Subprocess:
    """`penstock deliver` as a child, which ends when its standard input does. See `Runner`.

    Everything secret goes through that pipe, not into the environment or the arguments, which others see.
    """

    def __init__(
        self,
        url: str,
        stream: str | None,
        access: TableAccess,
        settings: ServiceSettings,
        metrics_port: int | None,
    ) -> None:
        self._words = [
            "deliver",
            "--from-stdin",
            *([] if stream is None else [stream]),
            *("--parallel", str(settings.parallel)),
            *("--lease-seconds", str(settings.lease_s)),
            *([] if metrics_port is None else ["--metrics-port", str(metrics_port)]),
            *([] if settings.maintains else ["--no-maintenance"]),
        ]
        self._secrets = {"store": url, "storage": dict(access.storage), "catalog": dict(access.catalog)}

    @property
    def last_error(self) -> Exception | None:
        return None

    def run(self, stop: threading.Event) -> None:
        """
        Raises:
            PenstockError: the process has ended, and was not told to.
        """
        child = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "penstock.datasource.cli", *self._words],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the driver, which tells it
        )
        try:
            self._send_secrets(child)
            while not stop.is_set():
                try:
                    code = child.wait(0.2)
                except subprocess.TimeoutExpired:
                    continue
                raise PenstockError(f"The delivery process has ended with exit code {code}.")
        finally:
            _end(child)

    def _send_secrets(self, child: subprocess.Popen[str]) -> None:
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(self._secrets) + "\n")
            child.stdin.flush()
        except BrokenPipeError:
            return  # it has died already: its exit code says so


def _end(child: subprocess.Popen[str]) -> None:
    """Close the pipe, which ends the child after its running delivery; kill one that does not. Reaps it."""
    if child.stdin is not None:
        with suppress(BrokenPipeError):
            child.stdin.close()
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
