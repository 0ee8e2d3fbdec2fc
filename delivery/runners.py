"""The two runners of `penstock.start_delivery`: in a thread, or in a child process."""

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
from .telemetry import TelemetryListener

STOP_S = 60.0
"""How long `stop` waits for the running delivery."""
READ_S = 1.0
"""How long to wait for the last lines of a child process that has ended."""


OnError: TypeAlias = Callable[[Exception | None], None]


class Runner(Protocol):
    """Delivers until it should stop; called again after an error."""

    def run(self, stop: threading.Event, on_error: OnError) -> None:
        """Deliver until `stop` is set.

        Args:
            on_error: called with the newest error of a delivery or a store while the runner continues, and
                with
                None when the store is read or the error is over
        """
        ...


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Where to serve metrics; nowhere if `port` is None."""

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
        listeners = [LogListener(), LastError(on_error), TelemetryListener()]
        stores = self.scope.stores
        with with_metrics(listeners, self.metrics.port, self.metrics.address, stores) as all_listeners:
            deliver(self.scope, replace(self.context, listeners=all_listeners, stop=stop))


# In a child process ---------------------------------------------------------------------------------

LAST_ERROR = "penstock.last_error "
"""Prefix of the lines in which the child process reports its newest error."""


def error_line(error: Exception | None) -> str:
    """Return the line that reports an error; None reports that it is over."""
    fields = None if error is None else {"type": type(error).__name__, "message": str(error)}
    return f"{LAST_ERROR}{json.dumps(fields)}\n"


def parsed_error(line: str) -> Exception | None:
    """Return the error in such a line, with its own class if that is one of Penstock's."""
    fields = json.loads(line.removeprefix(LAST_ERROR))
    if fields is None:
        return None
    kind = getattr(errors, fields["type"], None)
    if isinstance(kind, type) and issubclass(kind, PenstockError):
        return kind(fields["message"])
    return PenstockError(f"{fields['type']}: {fields['message']}")


class SubprocessRunner:
    """`penstock deliver` as a child process, which ends when its standard input closes. See `Runner`.

    Secrets go through that pipe, because other users can see the environment and the arguments.
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
        self._secrets = {"store": url, **context.access.to_json()}

    def run(self, stop: threading.Event, on_error: OnError) -> None:
        """Start the process and wait for it.

        Raises:
            PenstockError: the process has ended although it should not.
        """
        child = subprocess.Popen(  # noqa: S603  our own program
            child_process.command("penstock.cli", self._words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_process.environment(),
            text=True,
            start_new_session=True,  # Ctrl-C goes to the driver, which stops the child
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
                raise PenstockError(f"The delivery process ended with exit code {code}.")
        finally:
            _end(child)
            reader.join(READ_S)

    def _send_secrets(self, child: subprocess.Popen[str]) -> None:
        assert child.stdin is not None
        with suppress(BrokenPipeError):  # the child has died already, and its exit code says so
            child.stdin.write(json.dumps(self._secrets) + "\n")
            child.stdin.flush()


def _read_errors(child: subprocess.Popen[str], on_error: OnError) -> None:
    """Pass on the errors that the child reports, and print its other lines to stdout."""
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            if line.startswith(LAST_ERROR):
                on_error(parsed_error(line))
            else:
                sys.stdout.write(line)


def _end(child: subprocess.Popen[str]) -> None:
    """Close the pipe, which ends the child after its running delivery. Kill it if it does not end."""
    if child.stdin is not None:
        with suppress(BrokenPipeError):
            child.stdin.close()
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
