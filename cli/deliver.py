"""`penstock deliver`: set up logging, metrics and signals, then deliver."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from ..committers.errors import ConfigurationError, RetryableError
from ..committers.store.sql import SqlManifestStore
from ..committers.store.urls import displayed_url
from ..committers.texts.safe_text import get_logger, one_line
from ..datasource.stored.table_access import TableAccess
from ..delivery.attempts import DeliveryListener, DeliveryReport
from ..delivery.context import DeliveryContext
from ..delivery.drain import Drained, drain
from ..delivery.lease import last_progress_s
from ..delivery.listeners import LastError, LogListener, delivery_report_json
from ..delivery.runners import error_line
from ..delivery.running import DeliveryScope, deliver, open_to_deliver, opened
from ..delivery.telemetry import TelemetryListener
from . import output
from .exit_codes import ATTENTION

logger = get_logger("penstock.delivery")

END_S = 20.0
"""Seconds without progress after which a process that should stop is killed, such as one that waits for a
storage that does not answer. Less than the 30 s after which Kubernetes kills it.
"""
POLL_INTERVAL_S = 0.1
"""Seconds between two checks of the progress."""


def set_up_logging() -> None:
    """Log to stderr, one line a record: Penstock from INFO on, libraries from WARNING on."""
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.addFilter(_without_traceback)
    logging.basicConfig(handlers=[to_stderr], format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("penstock").setLevel(logging.INFO)


def _without_traceback(record: logging.LogRecord) -> bool:
    """Reduce a library's record to one line: Penstock itself logs what an outage means for deliveries."""
    if record.name.partition(".")[0] != "penstock":
        text = record.getMessage()
        if record.exc_info:
            text = f"{record.name}: {text} ({type(record.exc_info[1]).__name__})"
            record.exc_info = record.exc_text = None
        record.msg, record.args = one_line(text), None
    return True


class JsonListener(DeliveryListener):
    """Print one line of JSON for each delivery."""

    def on_delivery(self, report: DeliveryReport) -> None:
        sys.stdout.write(json.dumps(delivery_report_json(report)) + "\n")
        sys.stdout.flush()


def listeners(*, as_json: bool, has_parent: bool) -> list[DeliveryListener]:
    """Return the listeners of the delivery process.

    Args:
        has_parent: True for a child process of `start_delivery`, which reads the newest error from stdout
    """
    to_parent = [LastError(_report_to_parent)] if has_parent else []
    return [LogListener(), TelemetryListener(), *to_parent, *([JsonListener()] if as_json else [])]


def _report_to_parent(error: Exception | None) -> None:
    with suppress(OSError):  # the parent has died, and this process ends soon
        sys.stdout.write(error_line(error))
        sys.stdout.flush()


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set. A second signal ends the process at once."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def exit_if_stalled(stop: threading.Event, seconds: float = END_S) -> Iterator[None]:
    """Kill the process if it should stop and then makes no progress for `seconds`.

    Without clean-up: a thread that hangs in a library call cannot be ended, and Python would wait for it. The
    next delivery finishes the work.
    """
    has_ended = threading.Event()

    def watch() -> None:
        stop.wait()
        stopped_at = time.monotonic()
        while not has_ended.wait(POLL_INTERVAL_S):
            if time.monotonic() - max(stopped_at, last_progress_s()) > seconds:
                logger.error(
                    "The running delivery has made no progress for %.0f s. The process ends now; the next "
                    "delivery finishes the work.",
                    seconds,
                )
                logging.shutdown()
                os._exit(ATTENTION)

    threading.Thread(target=watch, name="end", daemon=True).start()
    try:
        yield
    finally:
        has_ended.set()
        stop.set()  # ends the thread


def read_secrets() -> tuple[str, TableAccess]:
    """Read the URL of the store, and the options for tables, from the first line of stdin."""
    given: dict[str, Any] = json.loads(sys.stdin.readline() or "{}")
    if "store" not in given:
        raise ConfigurationError(
            "--from-stdin is only for penstock.start_delivery: the first line of stdin names no store."
        )
    return str(given["store"]), TableAccess.of_json(given)


def stop_at_end_of_stdin(stop: threading.Event) -> None:
    """Stop when the parent process ends or dies: it holds the other end of the pipe."""

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, name="parent", daemon=True).start()


def deliver_on(scope: DeliveryScope, context: DeliveryContext) -> None:
    """Deliver until the process is stopped."""
    logger.info("Delivery has started.")
    deliver(scope, context)
    logger.info("Delivery has ended.")


def deliver_once(scope: DeliveryScope, context: DeliveryContext) -> list[Drained]:
    """Deliver the batches that are prepared now, store by store.

    Raises:
        PenstockError: a store does not exist, or cannot be read.
    """
    drained = []
    for url in scope.stores:
        with _open_now_or_later(url, scope, context) as store:
            drained += drain(store, context, scope.is_chosen)
    return drained


def _open_now_or_later(url: str, scope: DeliveryScope, context: DeliveryContext) -> SqlManifestStore:
    if not scope.waits_for_stores:
        return open_to_deliver(url)
    store = opened(url, scope, context)
    if store is None:
        raise RetryableError(
            f"The process was stopped while it waited for the manifest store {displayed_url(url)}. Nothing "
            "was delivered from this store."
        )
    return store


def drained_json(drained: Drained) -> dict[str, Any]:
    return {
        **output.stream_json(drained.stream),
        "deliveries": drained.deliveries,
        "batches": drained.batches,
        "rows": drained.rows,
        "left": drained.left,
        "parked": drained.is_parked,
        "busy": drained.is_busy,
        "failure": None if drained.failure is None else str(drained.failure),
        "error": None if drained.error is None else str(drained.error),
    }


def print_drained(drained: Sequence[Drained]) -> None:
    if not drained:
        output.print_line("The store has no decoupled streams.")
    for one in drained:
        text = (
            f"{output.count(one.batches, 'batch', 'es')} delivered in "
            f"{output.count(one.deliveries, 'commit')}, {one.rows:,} rows"
        )
        left = f"; {output.count(one.left, 'batch', 'es')} left" if one.left else ""
        parked = ", parked until `penstock retry`" if one.is_parked else ""
        output.print_line(f"{output.title(one.stream)}  {one.stream.key.table_uri}", style="bold")
        busy = " because another process delivers the stream" if one.is_busy else ""
        output.print_line(f"  {text}{left}{busy}{parked}.")
