"""`penstock retire`: remove everything of a query that has ended for good, except its rows."""

from __future__ import annotations

from typing import Annotated

import typer

from ...datasource.stored.table_access import TableAccess
from ..exit_codes import FAILED
from . import options
from .common import confirm, opened_store


def retire(
    access: TableAccess,
    stream: options.OfQuery,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    yes: options.Yes = False,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Remove everything that a query which has ended for good has left, except its rows.

    Deletes leftover data files, staging tables and files of the row log, whatever their age; the fence or the
    journal of the query in the destination; then the stream with its dead letters in the store. The name of
    a fan-out selects all its targets. Prints what stays, and why.

    Refused while the checkpoint exists, unless it has the store in it, and while something waits. A command
    that was killed or has failed can be repeated: the store keeps the stream until all else is removed.

    Example: `penstock retire flights --store $URL`
    """
    from ...committers.store.selection import select_query
    from .. import retire as process
    from ..output import print_error, print_json, print_line

    with opened_store(checkpoint, store, access) as opened:
        retirements = process.checked(opened, select_query(opened.streams(), stream), access)
        if dry_run or not yes:
            shown = [process.find(*one) for one in retirements]
            for one in shown if not (dry_run and as_json) else ():
                process.print_left(one, "would be removed", stderr=not dry_run)
                if one.error is not None and not dry_run:
                    raise one.error
        if dry_run:
            retired = shown
        else:
            print_line("The query must never start again: its rows could arrive twice.", stderr=True)
            confirm("Remove all this for good?", yes)
            for retirement, _ in retirements:
                retirement.claim()
            retired = [process.run(*one) for one in retirements]
    if as_json:
        print_json({"dry_run": dry_run, "streams": [one.to_json() for one in retired]})
    elif not dry_run:
        for one in retired:
            process.print_left(one, "removed")
    errors = [one.error for one in retired if one.error is not None]
    for error in errors:
        print_error(error)
    if errors and not dry_run:
        print_line(
            "The store keeps the stream. Correct the cause, then repeat the command. If the destination no "
            "longer exists, or will never permit it: penstock forget.",
            stderr=True,
        )
    raise typer.Exit(FAILED if errors else 0)
