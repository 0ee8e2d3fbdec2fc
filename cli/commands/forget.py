"""`penstock forget`: remove a stream that has ended for good from the store."""

from __future__ import annotations

from ...datasource.stored.table_access import TableAccess
from . import options
from .common import confirm, one_stream, opened_store


def forget(
    access: TableAccess,
    stream: options.Stream,
    yes: options.Yes = False,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Remove a stream that has ended for good from the store: its batches, deliveries and decisions.

    For destinations that no longer exist or cannot be reached: `penstock retire` also removes what the
    stream has left there, which afterwards no command finds. Says what that is. Refused while the checkpoint
    exists, and while batches are undelivered.

    Example: `penstock forget flights --store $URL`
    """
    from ...delivery.context import new_holder
    from ...operating.admin import check_checkpoint_gone
    from ..output import count, print_json, print_line, stream_json, title
    from ..retire import left_behind

    with opened_store(checkpoint, store, access) as opened:
        found = one_stream(opened, stream)
        location = check_checkpoint_gone(found, access)
        batches = count(found.committed_batches, "batch", "es")
        known = (
            f"Its checkpoint {location} does not exist."
            if location
            else "The store does not know its checkpoint."
        )
        print_line(
            f"{title(found)} has committed {batches} with {found.committed_rows:,} rows to "
            f"{found.key.table_uri}, which stay there. {known} The query must never start again.",
            stderr=True,
        )
        print_line(left_behind(opened, found, access), stderr=True)
        confirm("Remove the stream from the store?", yes)
        opened.deliveries.forget(found.key, new_holder())
    if as_json:
        print_json({**stream_json(found), "decision": "forget"})
    else:
        print_line(f"{title(found)} is removed from the store.")
