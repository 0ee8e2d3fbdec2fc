"""Dead letters: `penstock dead-letters list`, `show`, `resend`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...datasource.stored.table_access import TableAccess
from . import options
from .common import confirm, opened_store, parse_time

if TYPE_CHECKING:
    import pyarrow as pa

    from ...operating.dead_letters import StreamLetters

HELP = """
Rows that a destination has refused (`badRows=deadLetter`).

They wait in the manifest store until the dead-letter table has them.
"""


def list_letters(
    access: TableAccess,
    stream: options.Streams = None,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """List the streams with dead letters: how many, their codes, since when, and which were sent again.

    Example: `penstock dead-letters list --checkpoint /checkpoints/flights`
    """
    from ...committers.store.selection import select
    from ...operating import dead_letters
    from .. import output

    with opened_store(checkpoint, store, access) as opened:
        chosen = select(opened.streams(), stream)
        found = [
            dead_letters.load(opened, one, access) for one in chosen if dead_letters.has_letters(opened, one)
        ]
        name = opened.name
    if as_json:
        output.print_json({"store": name, "streams": [_summary(one) for one in found]})
        return
    if not found:
        output.print_line("No stream has a dead-letter destination or skipped rows.")
    for one in found:
        _print_summary(one)


def _summary(found: StreamLetters) -> dict[str, Any]:
    from .. import output

    waiting = [(count.code, count.letters, count.first_at, count.last_at) for count in found.waiting]
    return {
        **output.stream_json(found.stream),
        "dead_letter_uri": found.table_uri,
        "skipped_uris": found.skipped_uris,
        "waiting": _counts_json(waiting),
        "delivered": None if found.delivered is None else _counts_json(_by_code(found.delivered)),
        "problem": found.problem or None,
        "sent_again": len(found.resends.names),
    }


def _by_code(delivered: pa.Table) -> Iterator[tuple[Any, ...]]:
    times = [("refused_at", "count"), ("refused_at", "min"), ("refused_at", "max")]
    grouped = delivered.group_by("code").aggregate(times).sort_by("code")
    return zip(*(grouped[name].to_pylist() for name in ("code", *map("_".join, times))), strict=True)


def _counts_json(counts: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    from ..output import time_text

    return [
        {"code": code, "letters": letters, "first_at": time_text(first_at), "last_at": time_text(last_at)}
        for code, letters, first_at, last_at in counts
    ]


def _print_summary(found: StreamLetters) -> None:
    from .. import output

    summary = _summary(found)
    output.print_line(output.title(found.stream), style="bold")
    output.print_line(f"  Dead letters  {found.table_uri or '-'}")
    for uri in found.skipped_uris:
        output.print_line(f"  Skipped rows  {uri}")
    for place, counts in (("In the store", summary["waiting"]), ("Delivered", summary["delivered"] or ())):
        for count in counts:
            when = f"{count['first_at']} to {count['last_at']}"
            output.print_line(f"  {place:<13} {count['letters']:,} x {count['code']}, {when}")
    if found.problem:
        output.print_line(f"  Not read: {found.problem}", style="yellow")
    if found.resends.names:
        output.print_line(f"  Sent again    {len(found.resends.names):,}")


_Batch = Annotated[int | None, typer.Option("--batch", metavar="ID", help="Only those of one batch.")]
_Ids = Annotated[
    list[str] | None,
    typer.Option(
        "--id",
        metavar="BATCH/LETTER",
        help="Only this one, with its id as `show` prints it. Can be repeated.",
    ),
]
_Codes = Annotated[
    list[str] | None,
    typer.Option(
        "--code", metavar="CODE", help="Only those with this code, such as does_not_fit. Can be repeated."
    ),
]
_Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only those refused at this time or later, such as 2026-11-25T14:00. UTC without an offset.",
    ),
]
_Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only those refused before this time.")
]


def show_letters(
    access: TableAccess,
    stream: options.Stream,
    batch: _Batch = None,
    ids: _Ids = None,
    code: _Codes = None,
    since: _Since = None,
    until: _Until = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Show at most this many, newest first.")
    ] = 20,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Show dead letters of a stream: the row, and why it was refused.

    Example: `penstock dead-letters show flights --batch 17 --checkpoint /checkpoints/flights`
    """
    from ...committers.store.selection import select_one
    from ...committers.texts.safe_text import one_line
    from ...operating import dead_letters
    from ...operating.letter_rows import letter_rows
    from .. import output

    wanted = dead_letters.Wanted(
        ids or (), code or (), parse_time("--since", since), parse_time("--until", until), batch
    )
    with opened_store(checkpoint, store, access) as opened:
        found = dead_letters.load(opened, select_one(opened.streams(), stream), access)
        rows = letter_rows(opened, found, wanted)
    shown = [_letter(row) for row in rows[:limit]]
    if as_json:
        output.print_json(
            {**output.stream_json(found.stream), "letters": shown, "more": len(rows) - len(shown)}
        )
        return
    for letter in shown:
        output.print_line(f"{letter['id']}  {letter['state']}  {letter['refused_at']}", style="bold")
        output.print_line(f"  {one_line(letter['code'])}: {one_line(letter['message'])}")
        output.print_line(f"  {one_line(letter['row'])}")
    if len(shown) < len(rows):
        output.print_line(f"... and {len(rows) - len(shown):,} more. Use --limit to see them.")
    if not rows:
        output.print_line("There are none.")
    if found.problem:
        output.print_line(f"Only those in the store: {found.problem}.", style="yellow")


def _letter(row: dict[str, Any]) -> dict[str, Any]:
    from ..output import time_text

    names = ("id", "batch_id", "letter_id", "row_id", "code", "message", "row", "state")
    return {**{name: row[name] for name in names}, "refused_at": time_text(row["refused_at"])}


def resend(
    access: TableAccess,
    stream: options.Stream,
    batch: _Batch = None,
    up_to: Annotated[
        int | None, typer.Option("--up-to", metavar="BATCH", help="Only those of batches up to this one.")
    ] = None,
    ids: _Ids = None,
    code: _Codes = None,
    since: _Since = None,
    until: _Until = None,
    yes: options.Yes = False,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Send the delivered dead letters of a stream to its destination again, or some of them.

    Do this after you have corrected the destination. The rows that were not sent again yet are one batch with
    its own token: a table gets all of them exactly once, or none. A request-based destination gets them at
    least once: after a failure, the next call sends them again. The rows stay in the dead-letter table.

    Example: `penstock dead-letters resend flights --code does_not_fit --checkpoint /checkpoints/flights`
    """
    from dataclasses import replace

    from ...committers.store.selection import select_one
    from ...operating import dead_letters
    from .. import output

    wanted = dead_letters.Wanted(
        ids or (), code or (), parse_time("--since", since), parse_time("--until", until), batch, up_to
    )
    with opened_store(checkpoint, store, access) as opened:
        chosen = select_one(opened.streams(), stream)
        found = dead_letters.load(opened, chosen, access, only_table=True)
        with dead_letters.resending(opened, chosen, access) as resends:
            found = replace(found, resends=resends)
            letters = dead_letters.to_send(found, wanted)
            if letters.num_rows:
                what = f"{output.count(letters.num_rows, 'row')} of {output.title(chosen)}"
                confirm(f"Send {what} to {chosen.key.table_uri} again?", yes)
                dead_letters.send_again(opened, found, letters, access)
    if as_json:
        sent = dead_letters.names_of(letters)
        output.print_json({**output.stream_json(chosen), "rows": letters.num_rows, "letters": sent})
    elif letters.num_rows:
        output.print_line(f"Sent {output.count(letters.num_rows, 'row')} again.")
    else:
        output.print_line("There is nothing to send: all of them were sent again already, or there are none.")


COMMANDS: dict[str, Callable[..., None]] = {"list": list_letters, "show": show_letters, "resend": resend}
