"""The commands that only read: `penstock status`, `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...committers.errors import ConfigurationError, TableChangedError
from ...datasource.stored.table_access import TableAccess
from ..exit_codes import ATTENTION
from . import options
from .common import opened_store, rare_collections, utc_now

if TYPE_CHECKING:
    from ...committers.store.status import StreamStatus


def status(
    access: TableAccess,
    stream: options.Streams = None,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    table: Annotated[
        bool, typer.Option("--table", help="Also read the tables: their current version and token.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the streams of a store: last batch, pending batches, committed rows, table version, deliveries.

    "Table" is the version of the table that contains the last committed batch. Exit code 1 means that a batch
    was skipped and nobody has acknowledged it (penstock acknowledge), or, with --table, that a table was
    dropped, re-created or restored after the stream had written to it.

    Example: `penstock status --checkpoint /checkpoints/flights --table`
    """
    with rare_collections():
        needs_attention = _print_status(
            access, stream, checkpoint, store, reads_tables=table, as_json=as_json
        )
    raise typer.Exit(ATTENTION if needs_attention else 0)


def _print_status(
    access: TableAccess,
    stream: str | None,
    checkpoint: str | None,
    store: str | None,
    *,
    reads_tables: bool,
    as_json: bool,
) -> bool:
    """Return True if a table has changed or a skipped batch is not acknowledged."""
    from ...committers.store.selection import select
    from ...operating.figures import delivery_statistics
    from ...operating.tables import table_status
    from .. import delivery_output, output, status_output
    from ..routed_status import Row, rows_of
    from ..status_output import table_status_json

    with opened_store(checkpoint, store, access) as opened:
        chosen = select(opened.streams(), stream)
        listed = [Row(found) for found in chosen] if as_json or stream is not None else rows_of(chosen)
        rows = [
            (
                row.stream,
                row.stream.written,
                table_status_json(table_status(opened, row.stream, access))
                if reads_tables and not row.tables
                else None,
            )
            for row in listed
        ]
        attended = [found for row in listed for found in row.attended]
        deliveries = list(delivery_statistics(opened, attended))
        name = opened.name
    if as_json:
        now = utc_now()
        streams = [
            {
                **status_output.status_json(*row, now),
                "dead_letters": of_row[0].dead_letters_waiting,
                "skipped": status_output.skipped_json(of_row[0]),
                "delivery": delivery_output.delivery_json(*of_row, now),
            }
            for row, of_row in zip(rows, deliveries, strict=True)
        ]
        output.print_json({"store": name, "streams": streams})
    elif rows:
        status_output.print_status(rows, utc_now(), {row.stream.key: row.tables for row in listed})
        for found, statistics in deliveries:
            if statistics is not None:
                delivery_output.print_delivery(found, statistics, utc_now())
        for row in listed:
            status_output.print_waiting_letters(row.stream)
        for found in attended:
            status_output.print_skipped(found)
    else:
        output.print_line(f"The store {name} has no streams yet.")
    problems = [(found, read["problem"]) for found, _, read in rows if read is not None and read["problem"]]
    for found, problem in problems:
        output.print_line(f"{found.key}: {problem}", style="red", stderr=True)
    return bool(problems) or any(found.skipped.unacknowledged for found in chosen)


def show(
    access: TableAccess,
    stream: options.Stream,
    batch: Annotated[int, typer.Argument(help="The batch id.", show_default=False)],
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    files: Annotated[bool, typer.Option("--files", help="List all files instead of the first ten.")] = False,
    rows: Annotated[
        bool, typer.Option("--rows", help="Show the rows of a batch that waits for its commit.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="With --rows: show at most this many.")
    ] = 20,
    as_json: options.Json = False,
) -> None:
    """Show one batch: its state, its files, and whether the table contains it.

    With --rows, its rows are read from the data files, staging tables or row log in which they wait.

    Example: `penstock show flights 41 --rows --limit 5 --checkpoint /checkpoints/flights`
    """
    from ...committers.store.selection import select_one
    from ...datasource.destinations import files_of, open_committer
    from ...operating.batch_rows import shown_rows
    from .. import output
    from ..batch_rows import print_rows

    with opened_store(checkpoint, store, access) as opened:
        found = select_one(opened.streams(), stream)
        record, manifest = opened.record(found.key, batch), opened.manifest(found.key, batch)
        if record is None or manifest is None:
            raise ConfigurationError(f"The store has no batch {batch} of {found.key}. {_newest(found)}")
        try:
            token = open_committer(found, access, opened).token(found.key.query_id)
            word, sentence = output.in_table(token, record.batch)
        except TableChangedError as error:
            token, word, sentence = None, "changed", str(error)
        waiting = shown_rows(opened, found, record, manifest, access, limit) if rows else None
    named = files_of(manifest)
    if as_json:
        listed = [output.file_json(file) for file in named]
        answer = {"in_table": word, "token_batch_id": None if token is None else token.batch_id}
        batch_json = {**output.record_json(record), "files": listed}
        if waiting is not None:
            batch_json |= {"waiting_rows": [row.to_json() for row in waiting]}
        output.print_json({**output.stream_json(found), **batch_json, **answer})
    else:
        output.print_batch(found, record, sentence)
        output.print_files(named, everything=files)
        if waiting is not None:
            print_rows(waiting, record.rows)


def _newest(stream: StreamStatus) -> str:
    if stream.last is None:
        return "It has none yet."
    return f"Its newest is batch {stream.last.batch.batch_id}."
