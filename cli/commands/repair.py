"""The commands that repair and clean up: `penstock recover`, `gc`, `reset-query-id`."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Annotated

import typer

from ...datasource.stored.table_access import TableAccess
from . import options
from .common import confirm, opened_store, utc_now

if TYPE_CHECKING:
    from ...committers.store.sql import SqlManifestStore
    from ...committers.store.status import StreamStatus


def recover(
    access: TableAccess,
    stream: options.Streams = None,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    accept_table: Annotated[
        bool,
        typer.Option(
            "--accept-table",
            help="First accept the table as it is now, after it was re-created or restored. Rows that it has "
            "lost stay lost.",
        ),
    ] = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Commit the batches that were prepared and not committed.

    Does what the next start of the query would do. Safe while the query runs. Exit code 1 means that a batch
    is still pending.

    Example: `penstock recover --checkpoint /checkpoints/flights`
    """
    from ...committers.store.selection import select, select_one
    from ...operating.recovery import is_decoupled
    from ..output import end_with, print_json
    from ..recover import print_recoveries, recover_stream, recovered_json

    with opened_store(checkpoint, store, access) as opened:
        chosen = select(opened.streams(), stream)
        if accept_table:
            one = select_one(chosen, None)
            _accept_table(opened, one, access, yes)
            chosen = [] if is_decoupled(one) else select(opened.streams(), stream)
        recoveries = [recover_stream(opened, one, access) for one in chosen if one.pending]
    if as_json:
        print_json({"streams": list(map(recovered_json, recoveries))})
    elif recoveries or not accept_table:
        print_recoveries(recoveries)
    is_pending = any(recovery.is_pending for recovery in recoveries)
    end_with((recovery.error for recovery in recoveries), is_left=is_pending)


def _accept_table(store: SqlManifestStore, stream: StreamStatus, access: TableAccess, yes: bool) -> None:
    """Ask the operator whether the stream should continue with the table as it is now."""
    from ...operating.recovery import accept, changed_table, is_decoupled
    from ..output import print_line

    changed = changed_table(store, stream, access)
    if changed is None:
        print_line("The table is the one that the stream wrote to: there is nothing to accept.", stderr=True)
        return
    now, what = changed
    print_line(what, stderr=True)
    confirm("Accept the table as it is now? Rows that it has lost will not be written again.", yes)
    accept(store, stream, now, access)
    print_line("Accepted.", stderr=True)
    if is_decoupled(stream):
        print_line(
            f"To deliver the prepared batches: penstock retry {stream.key.query_id}. A batch that was "
            "prepared for a table that no longer exists can only be given up: penstock skip.",
            stderr=True,
        )


def gc(
    access: TableAccess,
    stream: options.Streams = None,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the files instead of listing them.")
    ] = False,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="AGE", help="Minimum age of the files, such as 7d or 12h; at least 1h."
        ),
    ] = "7d",
    as_json: options.Json = False,
) -> None:
    """Find data files that nothing references, and delete them with --delete.

    Failed tasks and killed drivers leave such files. A file is listed only if Penstock wrote it, its batch
    can no longer be committed, and neither a manifest in the store nor a readable version of the table
    references it. Safe while queries run. Exit code 1 means that there are files to delete.

    Example: `penstock gc --checkpoint /checkpoints/flights --older-than 2d --delete`
    """
    from ...committers.store.selection import select
    from ..gc import by_table, clean_table, parse_grace, print_cleaned
    from ..output import end_with, print_json

    grace = parse_grace(older_than)
    with opened_store(checkpoint, store, access) as opened:
        tables = by_table(select(opened.streams(), stream)).values()
        cleaned = [
            clean_table(opened, streams, access, utc_now(), grace, delete=delete) for streams in tables
        ]
    if as_json:
        listed = [table.to_json() for table in cleaned]
        print_json({"dry_run": not delete, "older_than_s": grace.total_seconds(), "tables": listed})
    else:
        for table in cleaned:
            print_cleaned(table, utc_now(), delete=delete)
    is_left = not delete and any(table.files for table in cleaned)
    end_with((table.error for table in cleaned), is_left=is_left)


def reset_query_id(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Checkpoint directory on this machine.")
    ],
    store: options.Store = None,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Give a checkpoint a new query id: its next start is a new stream at the same source offsets.

    For a checkpoint that was rewound or copied on purpose. The rows of later batches are added to those that
    the table already contains. Stop the query first.

    Example: `penstock reset-query-id /checkpoints/flights`
    """
    from ...operating.stores import local_checkpoint
    from ..output import print_json, print_line
    from ..reset_query_id import check_resettable, read_checkpoint, write_query_id

    directory = local_checkpoint(checkpoint)
    state = read_checkpoint(directory)
    store = store or os.environ.get("PENSTOCK_STORE") or None
    with opened_store(None if store else checkpoint, store) as opened:
        streams = check_resettable(state, opened)
    new_id = str(uuid.uuid4())
    tables = ", ".join(stream.key.table_uri for stream in streams)
    print_line(f"old query id  {state.query_id}\nnew query id  {new_id}", stderr=as_json)
    print_line(f"The rows of later batches are added to those that {tables} contains.", stderr=as_json)
    confirm("Is the query stopped, and should the checkpoint get the new id?", yes)
    write_query_id(directory, new_id)
    if as_json:
        print_json({"checkpoint": directory, "old_query_id": state.query_id, "new_query_id": new_id})
    else:
        print_line(
            "Done. The next start of the query continues at the same source offsets, under the new id."
        )
