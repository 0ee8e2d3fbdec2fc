"""The two ways in which `penstock.start_delivery` delivers: in a thread, or in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from ..committers import errors
from ..committers.errors import PenstockError
from ..writers import child_process
from .context import DeliveryContext
from .listeners import LastError, LogListener, with_metrics
from .running import DeliveryScope, deliver

STOP_S = 60.0
"""How long an end waits for the delivery that runs."""
READ_S = 1.0
"""How long the last lines of a child that has ended are waited for."""


OnError: TypeAlias = Callable[[Exception | None], None]


class Runner(Protocol):
    """Delivers until it is told to stop; called again after an error."""

    def run(self, stop: threading.Event, on_error: OnError) -> None:
        """
        Args:
            on_error: called with the newest failure of a delivery or a store while the runner itself goes on,
                and with None once the store is read or the failure is over
        """
        ...


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Where metrics are served, if `port` is not None."""

    port: int | None
    address: str


# In a thread ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InProcessRunner:
    """See `Runner`."""

    scope: DeliveryScope
    context: DeliveryContext
    metrics: MetricsAddress

    def run(self, stop: threading.Event, on_error: OnError) -> None:
        listeners = [LogListener(), LastError(on_error)]
        stores = self.scope.stores
        with with_metrics(listeners, self.metrics.port, self.metrics.address, stores) as all_listeners:
            deliver(self.scope, replace(self.context, listeners=all_listeners, stop=stop))


# In a process of its own ----------------------------------------------------------------------------

LAST_ERROR = "penstock.last_error "
"""How a line begins in which the child reports its newest failure."""


def error_line(error: Exception | None) -> str:
    """The line for an error; None: there is none any more."""
    fields = None if error is None else {"type": type(error).__name__, "message": str(error)}
    return f"{LAST_ERROR}{json.dumps(fields)}\n"


def parsed_error(line: str) -> Exception | None:
    """The error of such a line, of its own class if that is one of Penstock's."""
    fields = json.loads(line.removeprefix(LAST_ERROR))
    if fields is None:
        return None
    kind = getattr(errors, fields["type"], None)
    if isinstance(kind, type) and issubclass(kind, PenstockError):
        return kind(fields["message"])
    return PenstockError(f"{fields['type']}: {fields['message']}")


class SubprocessRunner:
    """`penstock deliver` as a child, which ends when its standard input does. See `Runner`.

    Everything secret goes through that pipe, not into the environment or the arguments, which others see.
    """

    def __init__(self, scope: DeliveryScope, context: DeliveryContext, metrics: MetricsAddress) -> None:
        stream, settings, port = scope.stream, context.settings, metrics.port
        served = ["--metrics-port", str(port), "--metrics-address", metrics.address]
        self._words = [
            "deliver",
            "--from-stdin",
            *([] if stream is None else [stream]),
            *("--parallel", str(settings.parallel)),
            *("--lease-seconds", str(settings.lease_s)),
            *([] if port is None else served),
            *([] if settings.maintains else ["--no-maintenance"]),
        ]
        (url,) = scope.stores
        storage, catalog = dict(context.access.storage), dict(context.access.catalog)
        self._secrets = {"store": url, "storage": storage, "catalog": catalog}

    def run(self, stop: threading.Event, on_error: OnError) -> None:
        """
        Raises:
            PenstockError: the process has ended, and was not told to.
        """
        child = subprocess.Popen(  # noqa: S603 - our own program
            child_process.command("penstock.cli", self._words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_process.environment(),
            text=True,
            start_new_session=True,  # Ctrl-C is for the driver, which tells it
        )
        reader = threading.Thread(
            target=_read_errors, args=(child, on_error), name="delivery errors", daemon=True
        )
        reader.start()
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
            reader.join(READ_S)

    def _send_secrets(self, child: subprocess.Popen[str]) -> None:
        assert child.stdin is not None
        with suppress(BrokenPipeError):  # it has died already: its exit code says so
            child.stdin.write(json.dumps(self._secrets) + "\n")
            child.stdin.flush()


def _read_errors(child: subprocess.Popen[str], on_error: OnError) -> None:
    """Hand on what the child reports; whatever else it prints goes to this process's stdout."""
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            if line.startswith(LAST_ERROR):
                on_error(parsed_error(line))
            else:
                sys.stdout.write(line)


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
