"""What operators decide about undelivered batches: `penstock park`, `retry`, `skip`, `abort`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...datasource.stored.table_access import TableAccess
from . import options
from .common import checked_reason, confirm, one_stream, opened_store, operator

if TYPE_CHECKING:
    from ...committers.store.sql import SqlManifestStore
    from ...committers.store.status import StreamStatus


def park(
    stream: options.OfQuery,
    reason: options.Reason,
    who: options.Who = None,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Stop the deliveries of a stream until `penstock retry`. The name of a fan-out parks all its targets.

    The query continues until its backlog is full. A delivery that is already running still commits.

    Example: `penstock park flights --reason "table is being restored" --store $URL`
    """
    from ...committers.store.selection import select_query
    from ..output import print_json, print_line, stream_json, title

    name, why = operator(who), checked_reason(reason)
    with opened_store(checkpoint, store) as opened:
        chosen = select_query(opened.streams(), stream)
        for one in chosen:
            opened.deliveries.park(one.key, name, why)
    if as_json:
        streams = [stream_json(one) for one in chosen]
        which = streams[0] if len(streams) == 1 else {"streams": streams}
        print_json({**which, "decision": "park", "who": name, "reason": why})
        return
    for one in chosen:
        to = f" -> {one.key.table_uri}" if len(chosen) > 1 else ""
        print_line(f"{title(one)}{to} is parked.")
    print_line(f"To deliver again: penstock retry {stream}")


def retry(
    stream: options.Streams = None,
    reason: options.Reason = "",
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
    access: TableAccess,
    stream: options.Stream,
    batch: Annotated[int, typer.Argument(help="The batch id.", show_default=False)],
    reason: options.Reason,
    who: options.Who = None,
    save_to: Annotated[
        str | None,
        typer.Option(
            "--save-to",
            metavar="LOCATION",
            help="Delta table for the rows. Default: the query's dead-letter table; without one, the folder "
            "penstock-skipped in the checkpoint.",
        ),
    ] = None,
    discard_rows: Annotated[
        bool, typer.Option("--discard-rows", help="Do not save the rows: they are lost for good.")
    ] = False,
    yes: options.Yes = False,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Give up one undelivered batch, after its rows are saved where `dead-letters resend` can send them.

    The batches after it can then be delivered. Rows that a request-based destination has acknowledged already
    are not saved. The files stay until `penstock gc --delete`. A parked stream stays parked until `penstock
    retry`. `penstock status` ends with exit code 1 until `penstock acknowledge`.

    Example: `penstock skip flights 41 --reason "corrupt source file" --store $URL`
    """
    from ...operating.admin import check_skippable, skip_batch
    from ...operating.skipping import delivered_rows, place_of_saved
    from ..output import count, print_json, print_line, record_json, stream_json, title

    name, why = operator(who), checked_reason(reason)
    with opened_store(checkpoint, store, access) as opened:
        found = one_stream(opened, stream)
        record = check_skippable(opened, found, batch, access)
        manifest = opened.manifest(found.key, batch)
        delivered = 0 if manifest is None else delivered_rows(opened, manifest)
        missing, uri = record.rows - delivered, found.key.table_uri
        print_line(
            f"Batch {batch} of {title(found)} has {record.rows:,} rows in {count(record.files, 'file')}. "
            + (f"{delivered:,} of them, from the first one on, are in {uri} already." if delivered else ""),
            stderr=True,
        )
        sink = None
        if not discard_rows:
            sink = place_of_saved(opened, found, access, save_to)
        where = "are lost for good" if sink is None else f"are saved in {sink.table_uri}"
        if missing:
            what = f"The other {missing:,}" if delivered else "They"
            print_line(f"{what} {_is_missing(opened, found, access, uri)}: they {where}.", stderr=True)
        confirm("Give up the batch?" if sink is not None else "Give up the batch for good?", yes)
        skipped = skip_batch(opened, found, record, access, sink, name, why)
    if as_json:
        saved = None if sink is None else sink.table_uri
        numbers = {"rows_delivered": delivered, "rows_missing": missing, "saved_to": saved}
        print_json({**stream_json(found), **record_json(skipped), "decision": "skip", "who": name, **numbers})
        return
    print_line(f"Skipped. If the stream is parked, resume it: penstock retry {found.key.query_id}")
    if sink is not None:
        print_line(
            f"To send the saved rows again, once the cause is corrected: penstock dead-letters resend "
            f"{found.key.query_id} --code skipped"
        )


def _is_missing(store: SqlManifestStore, stream: StreamStatus, access: TableAccess, uri: str) -> str:
    """What is known of rows that the destination has not acknowledged in order."""
    from ...committers.progress import StoresProgress
    from ...datasource.destinations import open_committer

    if isinstance(open_committer(stream, access, store), StoresProgress):
        return f"are not acknowledged as sent to {uri}, where some of them may be nevertheless"
    return f"will not be in {uri}"


def acknowledge(
    stream: options.Stream,
    reason: options.Reason = "",
    who: options.Who = None,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Record that you know of the skipped batches of a stream: `penstock status` no longer reports them.

    Example: `penstock acknowledge flights --reason "rows sent again" --store $URL`
    """
    from ..output import count, print_json, print_line, stream_json, title

    name = operator(who)
    with opened_store(checkpoint, store) as opened:
        found = one_stream(opened, stream)
        batches = found.skipped.unacknowledged
        if batches:
            opened.deliveries.acknowledge(found.key, name, reason)
    if as_json:
        print_json({**stream_json(found), "decision": "acknowledge", "who": name, "batches": list(batches)})
    elif batches:
        print_line(f"Acknowledged {count(len(batches), 'skipped batch', 'es')} of {title(found)}.")
    else:
        print_line("There is nothing to acknowledge.")


def abort(
    access: TableAccess,
    stream: options.Stream,
    reason: options.Reason,
    who: options.Who = None,
    yes: options.Yes = False,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Give up all undelivered batches of a query whose checkpoint is lost, and delete their files.

    For queries with deliverAfterCheckpoint, whose last batches Spark can no longer confirm, and for queries
    that were restarted with another checkpoint. Files that a version of the table references are kept.
    Refused while the checkpoint exists.

    Example: `penstock abort flights --reason "checkpoint disk lost" --store $URL`
    """
    from ...operating.admin import abort as abort_stream
    from ...operating.admin import check_checkpoint_gone, undelivered
    from ..output import count, print_json, print_line, stream_json, title

    name, why = operator(who), checked_reason(reason)
    with opened_store(checkpoint, store, access) as opened:
        found = one_stream(opened, stream)
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
