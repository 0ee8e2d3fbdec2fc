"""The commands that run as a process: `penstock deliver` and `penstock metrics`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ...datasource.stored.table_access import TableAccess
from . import options

if TYPE_CHECKING:
    from ...committers.store.status import StreamStatus
    from ...delivery.drain import Drained
    from ...delivery.running import DeliveryScope


def deliver(
    access: TableAccess,
    stream: options.Streams = None,
    checkpoint: options.Checkpoints = None,
    store: options.Store = None,
    once: Annotated[
        bool, typer.Option("--once", help="Deliver all batches that are prepared now, then end.")
    ] = False,
    wait: options.Wait = False,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", help="Number of streams to deliver at the same time.")
    ] = 2,
    lease_seconds: Annotated[
        float,
        typer.Option(
            "--lease-seconds",
            metavar="S",
            help="Seconds until another delivery process takes over from one that has died.",
        ),
    ] = 10.0,
    lease_wait_seconds: Annotated[
        float,
        typer.Option(
            "--lease-wait-seconds",
            metavar="S",
            help="With --once: seconds to wait for a stream that another process delivers.",
        ),
    ] = 60.0,
    spark: Annotated[
        bool,
        typer.Option(
            "--spark",
            help="Rewrite small files as Spark jobs, for queries with compactWith=spark, and search large "
            "tables for the rows that they change. Their session is SparkSession.builder.getOrCreate(): from "
            "spark-submit, $SPARK_REMOTE or Spark's own settings.",
        ),
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            help="Serve Prometheus metrics at /metrics on this port; 0 chooses a free one.",
        ),
    ] = None,
    metrics_address: Annotated[
        str,
        typer.Option(
            "--metrics-address",
            metavar="ADDRESS",
            help="Address to serve the metrics on. The default is reachable from this machine only; with "
            "0.0.0.0, everybody who reaches the port can read them.",
        ),
    ] = "127.0.0.1",
    no_maintenance: Annotated[
        bool, typer.Option("--no-maintenance", help="Only deliver: no clean-up, no table maintenance.")
    ] = False,
    from_stdin: Annotated[bool, typer.Option("--from-stdin", hidden=True)] = False,
    as_json: options.Json = False,
) -> None:
    """Commit the prepared batches of decoupled streams to their tables, until SIGTERM or Ctrl-C.

    Any number of delivery processes may run on one store, on any machine that reaches the store and the
    tables: leases in the store decide which of them delivers a stream. After the first signal the running
    deliveries finish, with exit code 0; a second signal ends the process at once.

    With --once, exit code 1 means that batches are left: their stream is parked or failing, another process
    delivers it, or Spark's commit log does not contain them yet.

    With --json, each delivery is a line on stdout; with --once, one object at the end.

    Example: `penstock deliver --options-file /etc/penstock/options.json --metrics-port 9108`
    """
    from ...delivery.attempts import ServiceSettings
    from ...delivery.context import DeliveryContext
    from ...delivery.listeners import with_metrics
    from ...delivery.own_spark import OwnSpark
    from ...delivery.running import DeliveryScope
    from .. import deliver as process

    settings = ServiceSettings(
        parallel=parallel,
        lease_s=lease_seconds,
        lease_wait_s=lease_wait_seconds,
        maintains=not no_maintenance,
    )
    if from_stdin:
        url, access = process.read_secrets()
        wait = True
    own_spark = OwnSpark() if spark else None
    scope = DeliveryScope(
        stores=(url,) if from_stdin else _stores(checkpoint, store, wait),
        stream=stream,
        waits_for_stores=wait,
    )
    if not wait:
        _check_names(scope)
    process.set_up_logging()
    listeners = process.listeners(as_json=as_json and not once, has_parent=from_stdin)
    with ExitStack() as at_end:
        stop = at_end.enter_context(process.stopped_by_signals())
        at_end.enter_context(process.exit_if_stalled(stop))
        if from_stdin:
            process.stop_at_end_of_stdin(stop)
        if own_spark is not None:
            at_end.callback(own_spark.stop)
        all_listeners = at_end.enter_context(
            with_metrics(listeners, metrics_port, metrics_address, scope.stores)
        )
        context = DeliveryContext(
            access=access, settings=settings, listeners=all_listeners, stop=stop, spark=own_spark
        )
        if not once:
            process.deliver_on(scope, context)
            return
        drained = process.deliver_once(scope, context)
    _report(drained, as_json=as_json)


def metrics(
    stream: options.Streams = None,
    checkpoint: options.Checkpoints = None,
    store: options.Store = None,
    wait: options.Wait = False,
    port: Annotated[
        int,
        typer.Option("--port", metavar="PORT", help="Port to serve the metrics on; 0 chooses a free one."),
    ] = 9108,
    address: Annotated[
        str, typer.Option("--address", metavar="ADDRESS", help="Address to serve the metrics on.")
    ] = "127.0.0.1",
) -> None:
    """Serve Prometheus metrics of all streams of a store, until SIGTERM or Ctrl-C.

    Coupled streams are included. Reads the manifest store once a second, and needs neither Spark nor the
    tables. `penstock deliver --metrics-port` serves the same metrics, and those of its own deliveries.

    Example: `penstock metrics --checkpoint /checkpoints/flights --port 9108`
    """
    from ...delivery.attempts import ServiceSettings
    from ...delivery.context import DeliveryContext
    from ...delivery.listeners import with_metrics
    from ...delivery.running import DeliveryScope, deliver
    from .. import deliver as process

    scope = DeliveryScope(stores=_stores(checkpoint, store, wait), stream=stream, waits_for_stores=wait)
    if not wait:
        _check_names(scope)
    process.set_up_logging()
    with ExitStack() as at_end:
        stop = at_end.enter_context(process.stopped_by_signals())
        at_end.enter_context(process.exit_if_stalled(stop))
        all_listeners = at_end.enter_context(with_metrics([], port, address, scope.stores, delivers=False))
        nothing, settings = TableAccess({}, {}), ServiceSettings(delivers=False)
        deliver(scope, DeliveryContext(access=nothing, settings=settings, listeners=all_listeners, stop=stop))


def _report(drained: Sequence[Drained], *, as_json: bool) -> NoReturn:
    """Print what `--once` has done, and exit."""
    from ..deliver import drained_json, print_drained
    from ..output import end_with, print_json

    if as_json:
        print_json({"streams": [drained_json(one) for one in drained]})
    else:
        print_drained(drained)
    end_with((one.error for one in drained), is_left=any(one.left for one in drained))


def _stores(checkpoints: list[str] | None, store: str | None, wait: bool) -> tuple[str, ...]:
    """Return the URL of one store, or of the stores in checkpoints."""
    from ...delivery.running import store_of_checkpoint
    from ...operating.stores import url_of_store

    if not checkpoints:
        return (url_of_store(None, store or os.environ.get("PENSTOCK_STORE") or None),)
    if store is not None:
        return (url_of_store(checkpoints[0], store),)  # raises: only one of them may be given
    return tuple(store_of_checkpoint(one) if wait else url_of_store(one, None) for one in checkpoints)


def _check_names(scope: DeliveryScope) -> None:
    """Check that the stores exist, and that one of them has the stream.

    Raises:
        ConfigurationError: a store does not exist, or none has a stream of this name.
    """
    from ...committers.store.selection import select
    from ...committers.store.sql import open_store

    found: list[StreamStatus] = []
    for url in scope.stores:
        with open_store(url, must_exist=True) as opened:
            found += opened.streams() if scope.stream is not None else ()
    select(found, scope.stream)
