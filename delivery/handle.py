"""Delivery beside a driver or in a notebook: `penstock.start_delivery(...)`.

Ends with the process that started it, however that ends: at exit, on SIGTERM, and a delivery process of its
own sees the pipe from its parent break. What is cut off anywhere, the next delivery finishes.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from ..committers.errors import ConfigurationError, PenstockError
from ..committers.safe_text import get_logger
from ..datasource.table_access import TableAccess
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
"""How long the end of the driver waits for the delivery that runs: shorter than what a cluster manager waits
before it kills."""


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
    metrics_address: str = LOOPBACK,
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
        spark: for queries with `compactWith=spark`; without it this process rewrites their files, and warns
        process: in a process of its own, which is started again if it dies, instead of a thread
        parallel: streams that are delivered at once
        lease_seconds: how long another delivery process waits before it takes over from one that is gone
        metrics_port: serve Prometheus metrics there; 0 takes any port
        metrics_address: serve them on this address; with 0.0.0.0, anybody who reaches the port can read them
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
    scope = DeliveryScope(stores=(url,), stream=stream, waits_for_stores=True)
    open_spark = None if spark is None else lambda: spark
    context = DeliveryContext(access=access, settings=settings, spark=open_spark)
    runner = SubprocessRunner if process else InProcessRunner
    return DeliveryHandle(runner(scope, context, MetricsAddress(metrics_port, metrics_address)))


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
        """The newest failure: of a delivery until something is delivered; of a store, or of the whole, until
        the store has been read since. None if there is none.
        """
        return self._error

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
                self._runner.run(self._stop, self._note)
            except Exception as error:
                self._error = error
                wait_s = pauses.begin()
                known = isinstance(error, PenstockError)
                logger.error(
                    "Delivery ended, and starts again in %.0f s: %s", wait_s, error, exc_info=not known
                )
                self._stop.wait(wait_s)

    def _note(self, error: Exception | None) -> None:
        self._error = error


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
