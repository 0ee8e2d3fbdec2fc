"""Delivery within a driver or a notebook: `penstock.start_delivery(...)`.

It ends with the process that started it: at exit, on SIGTERM, and a separate delivery process also when the
pipe from its parent breaks. The next delivery finishes what was interrupted.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..committers.errors import ConfigurationError, PenstockError
from ..committers.texts.safe_text import get_logger
from ..datasource.stored.table_access import TableAccess
from .attempts import ServiceSettings
from .context import DeliveryContext
from .listeners import LOOPBACK
from .runners import STOP_S, InProcessRunner, MetricsAddress, Runner, SubprocessRunner
from .running import DeliveryScope, store_of_checkpoint
from .service import Pauses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = get_logger("penstock.delivery")

EXIT_S = 20.0
"""How long the exit of the driver waits for the running delivery: less than a cluster manager waits before it
kills the driver."""


def start_delivery(
    store: str | None = None,
    *,
    checkpoint: str | None = None,
    stream: str | None = None,
    storage: Mapping[str, str] | None = None,
    catalog: Mapping[str, str] | None = None,
    streams: Mapping[str, Mapping[str, Any]] | None = None,
    spark: SparkSession | None = None,
    process: bool = False,
    parallel: int = 2,
    lease_seconds: float = 10.0,
    metrics_port: int | None = None,
    metrics_address: str = LOOPBACK,
    maintenance: bool = True,
) -> DeliveryHandle:
    """Start to deliver the decoupled streams of a store, in the background.

    Can be started before or after the queries; it waits for a store that does not exist yet. Any number of
    deliveries may run on one store, also beside `penstock deliver`. Without any, queries continue until their
    backlog is full.

    Args:
        store: SQLAlchemy URL of the store, as in the query's option `store`
        checkpoint: instead of `store`: the checkpoint directory of a query, with the store in it
        stream: deliver only this stream: a query's name, its id or the beginning of its id, or a table
        storage: options of the object store of Delta tables, as in the query's `storage.*`
        catalog: properties of the catalog, as in the query's `catalog.*`
        streams: options for single streams or destinations, with their credentials, as in the options file
            of commands: `{"flights": {"url": "postgresql://..."}}`
        spark: for queries with `compactWith=spark`; without it, this process rewrites and searches their
            files, and logs a warning
        process: run in a separate process, which is restarted if it dies, instead of in a thread
        parallel: number of streams to deliver at the same time
        lease_seconds: seconds until another delivery process takes over from one that has died
        metrics_port: port for Prometheus metrics; 0 chooses a free one
        metrics_address: address to serve them on; with 0.0.0.0, everybody who reaches the port can read them
        maintenance: also maintain the tables, as their options say

    Raises:
        ConfigurationError: the arguments contradict each other, or an entry of `streams` has another form.
    """
    if (store is None) == (checkpoint is None):
        raise ConfigurationError("start_delivery needs either `store` or `checkpoint`.")
    if process and spark is not None:
        raise ConfigurationError(
            "A separate delivery process cannot use this Spark session. Give either `spark` or "
            "`process=True`."
        )
    url = store if store is not None else store_of_checkpoint(checkpoint or "")
    settings = ServiceSettings(parallel=parallel, lease_s=lease_seconds, maintains=maintenance)
    access = TableAccess.given(storage, catalog, streams, "start_delivery")
    scope = DeliveryScope(stores=(url,), stream=stream, waits_for_stores=True)
    open_spark = None if spark is None else lambda: spark
    context = DeliveryContext(access=access, settings=settings, spark=open_spark)
    runner = SubprocessRunner if process else InProcessRunner
    return DeliveryHandle(runner(scope, context, MetricsAddress(metrics_port, metrics_address)))


class DeliveryHandle:
    """A running delivery. It is restarted after errors, and ends with `stop` or with the process.

    As a context manager, it stops at the end of the block. Can be used from any thread.
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

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"DeliveryHandle({'running' if self.is_alive else 'ended'})"

    @property
    def is_alive(self) -> bool:
        """True until `stop` has ended the delivery."""
        return self._thread.is_alive()

    @property
    def last_error(self) -> Exception | None:
        """The newest error, or None.

        The error of a delivery is cleared by the next successful delivery. An error of the store, or of the
        whole process, is cleared when the store is read again.
        """
        return self._error

    def stop(self, timeout_s: float = STOP_S) -> bool:
        """Stop after the running delivery. Return False if that takes longer than `timeout_s`.

        Idempotent. After False, the delivery still ends by itself.
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
                self._runner.run(self._stop, self._note)
            except Exception as error:
                self._error = error
                wait_s = pauses.begin()
                known = isinstance(error, PenstockError)
                logger.error(
                    "Delivery ended. It starts again in %.0f s: %s", wait_s, error, exc_info=not known
                )
                self._stop.wait(wait_s)

    def _note(self, error: Exception | None) -> None:
        self._error = error


def _end_with_process(handle: DeliveryHandle) -> Callable[[], None]:
    """Stop the handle when the process exits or gets SIGTERM. Return a function that undoes that.

    The application's own handler for SIGTERM is called afterwards. Only the main thread can set a handler; in
    another thread a terminated process just dies, which loses nothing.
    """

    def at_exit() -> None:
        handle.stop(EXIT_S)

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        handle.stop(EXIT_S)  # restores `before`
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
