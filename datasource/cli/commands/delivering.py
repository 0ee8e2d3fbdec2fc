"""The commands about decoupled delivery: `penstock deliver`, and operators' decisions about its backlog."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from ....committers.errors import ConfigurationError
from .common import (
    ATTENTION,
    FAILED,
    CatalogOption,
    CheckpointOption,
    JsonOption,
    ReasonOption,
    StorageOption,
    StoreOption,
    StreamArgument,
    StreamsArgument,
    WhoOption,
    YesOption,
    checked_reason,
    confirm,
    deciding,
    opened_store,
)

if TYPE_CHECKING:
    from ....committers.store.sql import StreamStatus
    from ...delivery.running import Assignment


def deliver(
    stream: StreamsArgument = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--checkpoint",
            "-c",
            metavar="DIR",
            help="Checkpoint directory of a query whose store is there. Repeat it for more.",
        ),
    ] = None,
    store: StoreOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="Deliver what waits now, whatever its options say, and end.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for a store that is not there yet.")] = False,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", help="Streams that are delivered at once.")
    ] = 2,
    lease_seconds: Annotated[
        float,
        typer.Option(
            "--lease-seconds",
            metavar="S",
            help="How long another delivery process waits before it takes over from one that is gone.",
        ),
    ] = 10.0,
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", metavar="PORT", help="Serve Prometheus metrics; 0 takes any port."),
    ] = None,
    metrics_address: Annotated[
        str, typer.Option("--metrics-address", metavar="ADDRESS", help="Where metrics are served.")
    ] = "0.0.0.0",  # noqa: S104 - to be scraped
    no_maintenance: Annotated[
        bool, typer.Option("--no-maintenance", help="Only deliver; do not clean up or look after tables.")
    ] = False,
    storage: StorageOption = None,
    catalog: CatalogOption = None,
    from_stdin: Annotated[bool, typer.Option("--from-stdin", hidden=True)] = False,
    as_json: JsonOption = False,
) -> None:
    """Take the prepared batches of decoupled streams into their tables, until SIGTERM or Ctrl-C.

    Any number of these may run on one store, on any machine that reaches it: leases in the store decide who
    delivers a stream. The first signal lets running deliveries end, which is exit code 0; a second one does
    not. With --once, exit code 1 says that batches are left: parked, failing, or not in Spark's commits log.
    With --json, each delivery is a line on stdout; with --once, one object at the end.
    """
    from ...delivery.running import Assignment
    from ...delivery.worker import ServiceSettings
    from ...table_access import TableAccess
    from ..access import is_named
    from ..deliver import (
        deliver_on,
        deliver_once,
        drained_json,
        print_drained,
        read_secrets,
        set_up_logging,
        stop_at_end_of_stdin,
        stopped_by_signals,
        watchers,
    )
    from ..output import print_json, print_line

    access = TableAccess.parse(storage, catalog)
    if from_stdin:
        url, access = read_secrets()
        stores = [url]
        wait = True
    else:
        stores = _stores(checkpoint, store, wait)
    assignment = Assignment(
        stores=tuple(stores),
        access=access,
        settings=ServiceSettings(parallel=parallel, lease_s=lease_seconds, maintains=not no_maintenance),
        is_chosen=lambda status: stream is None or is_named(status, stream),
        waits_for_stores=wait,
    )
    if not wait:
        _check_names(assignment, stream)
    set_up_logging()
    with stopped_by_signals() as stop:
        if from_stdin:
            stop_at_end_of_stdin(stop)
        with watchers(
            as_json=as_json and not once, metrics_port=metrics_port, metrics_address=metrics_address
        ) as told:
            if not once:
                deliver_on(assignment, told, stop)
                return
            drained = deliver_once(assignment, told, stop)
    if as_json:
        print_json({"streams": [drained_json(one) for one in drained]})
    else:
        print_drained(drained)
    errors = [one.error for one in drained if one.error is not None]
    for error in errors:
        print_line(f"Error: {error}", stderr=True)
    raise typer.Exit(FAILED if errors else ATTENTION if any(one.left for one in drained) else 0)


def _stores(checkpoints: list[str] | None, store: str | None, wait: bool) -> list[str]:
    """URLs: of one store, or of those in checkpoints."""
    from ...delivery.running import store_of_checkpoint
    from ..access import url_of_store

    if not checkpoints:
        return [url_of_store(None, store or os.environ.get("PENSTOCK_STORE") or None)]
    if store is not None:
        return [url_of_store(checkpoints[0], store)]  # says that it is one or the other
    return [store_of_checkpoint(one) if wait else url_of_store(one, None) for one in checkpoints]


def _check_names(assignment: Assignment, stream: str | None) -> None:
    """
    Raises:
        ConfigurationError: a store is not there, or none has a stream of this name.
    """
    from ....committers.store.sql import open_store
    from ..access import select

    found: list[StreamStatus] = []
    for url in assignment.stores:
        with open_store(url, must_exist=True) as opened:
            found += opened.streams()
    select(found, stream)


# Decisions ------------------------------------------------------------------------------------------


def park(
    stream: StreamArgument,
    reason: ReasonOption,
    who: WhoOption = None,
    checkpoint: CheckpointOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver nothing of a stream until `penstock retry`. Its query goes on until its backlog is full.

    A delivery that is on its way still lands.
    """
    from ..access import select_one
    from ..output import print_json, print_line, stream_json, title

    name, why = deciding(who), checked_reason(reason)
    with opened_store(checkpoint, store) as opened:
        found = select_one(opened.streams(), stream)
        opened.deliveries.park(found.key, name, why)
    if as_json:
        print_json({**stream_json(found), "decision": "park", "who": name, "reason": why})
    else:
        print_line(f"{title(found)} is parked. To deliver again: penstock retry {found.key.query_id}")


def retry(
    stream: StreamsArgument = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the store.", show_default=False)
    ] = "",
    who: WhoOption = None,
    checkpoint: CheckpointOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver parked and failing streams again, at once and with all tries.

    Put right first what they are parked for: `penstock status` says it. A running delivery process does the
    rest; without one, run `penstock deliver --once`.
    """
    from ..access import select
    from ..output import print_json, print_line, stream_json, title

    name = deciding(who)
    with opened_store(checkpoint, store) as opened:
        chosen = [
            one
            for one in select(opened.streams(), stream)
            if one.delivery.parked_at is not None or one.delivery.tries
        ]
        for one in chosen:
            opened.deliveries.retry(one.key, name, reason)
    if as_json:
        streams = [stream_json(one) for one in chosen]
        print_json({"decision": "retry", "who": name, "reason": reason, "streams": streams})
    elif chosen:
        for one in chosen:
            print_line(f"{title(one)} is delivered again.")
    else:
        print_line("No stream is parked or failing.")


def skip(
    stream: StreamArgument,
    batch: Annotated[int, typer.Argument(help="The batch id.", show_default=False)],
    reason: ReasonOption,
    who: WhoOption = None,
    yes: YesOption = False,
    checkpoint: CheckpointOption = None,
    store: StoreOption = None,
    storage: StorageOption = None,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give one batch up for good, so that those behind it are delivered. Its rows are lost to the table.

    Its files stay where they are until `penstock gc --delete`. A stream that is parked stays so until
    `penstock retry`.
    """
    from ...table_access import TableAccess
    from ..access import select_one
    from ..decide import check_skippable
    from ..output import count, print_json, print_line, record_json, stream_json, title

    access, name, why = TableAccess.parse(storage, catalog), deciding(who), checked_reason(reason)
    with opened_store(checkpoint, store) as opened:
        found = select_one(opened.streams(), stream)
        record = check_skippable(opened, found, batch, access)
        print_line(
            f"Batch {batch} of {title(found)} holds {record.rows:,} rows in {count(record.files, 'file')}. "
            f"They will never get into {found.key.table_uri}.",
            stderr=True,
        )
        confirm("Give the batch up for good?", yes)
        if not opened.deliveries.skip(found.key, batch, name, why):
            raise ConfigurationError(f"Batch {batch} of {found.key} was delivered or given up meanwhile.")
        skipped = opened.record(found.key, batch) or record
    if as_json:
        print_json({**stream_json(found), **record_json(skipped), "decision": "skip", "who": name})
    else:
        print_line(f"Skipped. Delivery goes on behind it: penstock retry {found.key.query_id}")


def abort(
    stream: StreamArgument,
    reason: ReasonOption,
    who: WhoOption = None,
    yes: YesOption = False,
    checkpoint: CheckpointOption = None,
    store: StoreOption = None,
    storage: StorageOption = None,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give up all undelivered batches of a query whose checkpoint is gone, and delete their files.

    For queries with deliverAfterCheckpoint, whose last batches nobody will ever confirm, and for those that
    were started anew from another checkpoint. Files that a version of the table names stay. Refused while the
    checkpoint is there.
    """
    from ...table_access import TableAccess
    from ..access import select_one
    from ..decide import abort as abort_stream
    from ..decide import check_checkpoint_gone, undelivered
    from ..output import count, print_json, print_line, stream_json, title

    access, name, why = TableAccess.parse(storage, catalog), deciding(who), checked_reason(reason)
    with opened_store(checkpoint, store) as opened:
        found = select_one(opened.streams(), stream)
        location = check_checkpoint_gone(found, access)
        _, waiting = undelivered(opened, found, access)
        batches = count(len(waiting), "batch", "es")
        if waiting:
            rows = sum(record.rows for record in waiting)
            print_line(
                f"{title(found)} has {batches} with {rows:,} rows that are not in {found.key.table_uri}. "
                f"Its checkpoint {location or '(not known)'} is gone.",
                stderr=True,
            )
            confirm("Give them up for good, and delete their files?", yes)
        aborted = abort_stream(opened, found, access, name, why) if waiting else None
    ids = [] if aborted is None else [record.batch.batch_id for record in aborted.records]
    deleted = 0 if aborted is None else aborted.deleted
    if as_json:
        counts = {"batches": ids, "deleted": deleted}
        print_json({**stream_json(found), "decision": "abort", "who": name, "reason": why, **counts})
    elif ids:
        print_line(f"Gave up {count(len(ids), 'batch', 'es')}, and deleted {count(deleted, 'file')}.")
    else:
        print_line("Nothing waits to be delivered.")
