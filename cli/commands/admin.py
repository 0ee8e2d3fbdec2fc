"""The operators' decisions about a backlog: `penstock park`, `retry`, `skip`, `abort`."""

from __future__ import annotations

from typing import Annotated

import typer

from ...committers.errors import ConfigurationError
from . import options
from .common import checked_reason, confirm, opened_store, operator


def park(
    stream: options.Stream,
    reason: options.Reason,
    who: options.Who = None,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Deliver nothing of a stream until `penstock retry`. Its query goes on until its backlog is full.

    A delivery that is on its way still lands.
    """
    from ...committers.store.selection import select_one
    from ..output import print_json, print_line, stream_json, title

    name, why = operator(who), checked_reason(reason)
    with opened_store(checkpoint, store) as opened:
        found = select_one(opened.streams(), stream)
        opened.deliveries.park(found.key, name, why)
    if as_json:
        print_json({**stream_json(found), "decision": "park", "who": name, "reason": why})
    else:
        print_line(f"{title(found)} is parked. To deliver again: penstock retry {found.key.query_id}")


def retry(
    stream: options.Streams = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the store.", show_default=False)
    ] = "",
    who: options.Who = None,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Deliver parked and failing streams again, at once and with all tries.

    Put right first what they are parked for: `penstock status` says it. A running delivery process does the
    rest; without one, run `penstock deliver --once`.
    """
    from ...committers.store.selection import select
    from ..output import print_json, print_line, stream_json, title

    name = operator(who)
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
    stream: options.Stream,
    batch: Annotated[int, typer.Argument(help="The batch id.", show_default=False)],
    reason: options.Reason,
    who: options.Who = None,
    yes: options.Yes = False,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    storage: options.Storage = None,
    catalog: options.Catalog = None,
    as_json: options.Json = False,
) -> None:
    """Give one batch up for good, so that those behind it are delivered. Its rows are lost to the table.

    Its files stay where they are until `penstock gc --delete`. A stream that is parked stays so until
    `penstock retry`.
    """
    from ...committers.store.selection import select_one
    from ...datasource.table_access import TableAccess
    from ..admin import check_skippable
    from ..output import count, print_json, print_line, record_json, stream_json, title

    access, name, why = TableAccess.parse(storage, catalog), operator(who), checked_reason(reason)
    with opened_store(checkpoint, store) as opened:
        found = select_one(opened.streams(), stream)
        record = check_skippable(opened, found, batch, access)
        print_line(
            f"Batch {batch} of {title(found)} holds {record.rows:,} rows in {count(record.files, 'file')}. "
            f"They will never get into {found.key.table_uri}.",
            stderr=True,
        )
        confirm("Give the batch up for good?", yes)
        if not opened.deliveries.skip(found.key, batch, name, why, expected=record.batch):
            raise ConfigurationError(
                f"Batch {batch} of {found.key} was delivered or given up meanwhile, or has other rows by now."
            )
        skipped = opened.record(found.key, batch) or record
    if as_json:
        print_json({**stream_json(found), **record_json(skipped), "decision": "skip", "who": name})
    else:
        print_line(f"Skipped. Delivery goes on behind it: penstock retry {found.key.query_id}")


def abort(
    stream: options.Stream,
    reason: options.Reason,
    who: options.Who = None,
    yes: options.Yes = False,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    storage: options.Storage = None,
    catalog: options.Catalog = None,
    as_json: options.Json = False,
) -> None:
    """Give up all undelivered batches of a query whose checkpoint is gone, and delete their files.

    For queries with deliverAfterCheckpoint, whose last batches nobody will ever confirm, and for those that
    were started anew from another checkpoint. Files that a version of the table names stay. Refused while the
    checkpoint is there.
    """
    from ...committers.store.selection import select_one
    from ...datasource.table_access import TableAccess
    from ..admin import abort as abort_stream
    from ..admin import check_checkpoint_gone, undelivered
    from ..output import count, print_json, print_line, stream_json, title

    access, name, why = TableAccess.parse(storage, catalog), operator(who), checked_reason(reason)
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
        expected = [record.batch for record in waiting]
        aborted = abort_stream(opened, found, access, name, why, expected) if waiting else None
    ids = [] if aborted is None else [record.batch.batch_id for record in aborted.records]
    deleted = 0 if aborted is None else aborted.deleted
    if as_json:
        counts = {"batches": ids, "deleted": deleted}
        print_json({**stream_json(found), "decision": "abort", "who": name, "reason": why, **counts})
    elif ids:
        print_line(f"Gave up {count(len(ids), 'batch', 'es')}, and deleted {count(deleted, 'file')}.")
    else:
        print_line("Nothing waits to be delivered.")
