"""What operators decide about undelivered batches: `penstock park`, `retry`, `skip`, `abort`."""

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
    """Stop the deliveries of a stream until `penstock retry`.

    The query continues until its backlog is full. A delivery that is already running still commits.

    Example: `penstock park flights --reason "table is being restored" --store $URL`
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
        str,
        typer.Option("--reason", metavar="TEXT", help="The reason, kept in the store.", show_default=False),
    ] = "",
    who: options.Who = None,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Resume the deliveries of parked and failing streams, at once and with all attempts.

    First correct the cause, which `penstock status` shows. A running delivery process then delivers the
    batches; without one, run `penstock deliver --once`.

    Example: `penstock retry flights --store $URL`
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
            print_line(f"Deliveries of {title(one)} are resumed.")
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
    """Give up one undelivered batch for good: its rows never reach the table.

    The batches after it can then be delivered. Its files stay until `penstock gc --delete`. A parked stream
    stays parked until `penstock retry`.

    Example: `penstock skip flights 41 --reason "corrupt source file" --store $URL`
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
            f"Batch {batch} of {title(found)} has {record.rows:,} rows in {count(record.files, 'file')}. "
            f"They will never be in {found.key.table_uri}.",
            stderr=True,
        )
        confirm("Give up the batch for good?", yes)
        if not opened.deliveries.skip(found.key, batch, name, why, expected=record.batch):
            raise ConfigurationError(
                f"Batch {batch} of {found.key} was not given up: it was delivered, given up or written again "
                "in the meantime. Look at it with penstock show."
            )
        skipped = opened.record(found.key, batch) or record
    if as_json:
        print_json({**stream_json(found), **record_json(skipped), "decision": "skip", "who": name})
    else:
        print_line(f"Skipped. If the stream is parked, resume it: penstock retry {found.key.query_id}")


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
    """Give up all undelivered batches of a query whose checkpoint is lost, and delete their files.

    For queries with deliverAfterCheckpoint, whose last batches Spark can no longer confirm, and for queries
    that were restarted with another checkpoint. Files that a version of the table references are kept.
    Refused while the checkpoint exists.

    Example: `penstock abort flights --reason "checkpoint disk lost" --store $URL`
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
                f"Its checkpoint {location or '(unknown)'} does not exist.",
                stderr=True,
            )
            confirm("Give them up for good and delete their files?", yes)
        expected = [record.batch for record in waiting]
        aborted = abort_stream(opened, found, access, name, why, expected) if waiting else None
    ids = [] if aborted is None else [record.batch.batch_id for record in aborted.records]
    deleted = 0 if aborted is None else aborted.deleted
    if as_json:
        counts = {"batches": ids, "deleted": deleted}
        print_json({**stream_json(found), "decision": "abort", "who": name, "reason": why, **counts})
    elif ids:
        print_line(f"Gave up {count(len(ids), 'batch', 'es')} and deleted {count(deleted, 'file')}.")
    else:
        print_line("There are no undelivered batches.")
