"""The command line: `penstock status`, `show`, `recover`, `gc`, `renew`, `version`.

Looks into the manifest store and the tables, never into Spark, which it does not import. Libraries are
loaded by the commands that need them, so that help and completion are instant.
"""

from __future__ import annotations

import os
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from ...committers.errors import ConfigurationError, PenstockError, TableChangedError

if TYPE_CHECKING:
    from ...committers.store.sql import SqlManifestStore, StreamStatus
    from .tables import TableAccess

ATTENTION, WRONG_USAGE, FAILED = 1, 2, 3

EPILOG = (
    "Exit codes: 0 all is well; 1 something is left to do (a batch is still pending, a table has changed, gc "
    "found files and was not told to delete them); 2 wrong usage or configuration; 3 an error of Penstock, "
    "explained on stderr."
)


class ReportingGroup(TyperGroup):
    """Turns Penstock's errors into a message on stderr and an exit code, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            _fail(error)


app = typer.Typer(
    cls=ReportingGroup,
    help="See and mend what Penstock's streams have written: batches, tables, leftover files.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        "-c",
        metavar="DIR",
        help="Checkpoint directory of the query; its store is the file penstock.sqlite there.",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        "-s",
        metavar="URL",
        help="SQLAlchemy URL of the store, as in the query's option `store`. Default: $PENSTOCK_STORE.",
    ),
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage",
        metavar="KEY=VALUE",
        help="Option for the tables' object store, such as AWS_REGION=eu-west-1. Repeat it for more. "
        "Environment variables of the cloud's SDK work too.",
    ),
]
CatalogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog",
        metavar="KEY=VALUE",
        help="Property of the catalog of Iceberg tables, such as uri=https://catalog.example. Repeat it for "
        "more. Catalogs in .pyiceberg.yaml or the environment need none, nor do those in a warehouse.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
StreamsArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[STREAM]",
        show_default=False,
        help="A query's name, its id or the beginning of it, or a table. Default: all streams.",
    ),
]


def _fail(error: PenstockError) -> NoReturn:
    from .output import print_line

    print_line(f"Error: {error}", stderr=True)
    raise typer.Exit(WRONG_USAGE if isinstance(error, ConfigurationError) else FAILED) from None


def _open(checkpoint: str | None, store: str | None) -> SqlManifestStore:
    from .access import open_named_store

    if checkpoint is None and store is None:
        store = os.environ.get("PENSTOCK_STORE") or None
    return open_named_store(checkpoint, store)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


@app.command()
def version() -> None:
    """Print the versions of Penstock and of what it stands on."""
    import platform
    from importlib.metadata import version as version_of

    from penstock import __version__

    parts = [
        f"{name} {version_of(name)}"
        for name in ("pyspark", "deltalake", "pyiceberg", "pyarrow", "sqlalchemy")
    ]
    typer.echo(f"penstock {__version__} (Python {platform.python_version()}, {', '.join(parts)})")


# Looking --------------------------------------------------------------------------------------------


@app.command()
def status(
    stream: StreamsArgument = None,
    checkpoint: CheckpointOption = None,
    store: StoreOption = None,
    table: Annotated[
        bool, typer.Option("--table", help="Look at the tables too: version now, and token.")
    ] = False,
    storage: StorageOption = None,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the streams of a store: last batch, pending batches, rows and table version.

    "Table" is the version that holds the last committed batch. With --table, exit code 1 says that a table
    was dropped, re-created or restored under its stream.
    """
    from . import output
    from .access import select
    from .tables import TableAccess

    access = TableAccess.parse(storage, catalog)
    with _open(checkpoint, store) as opened:
        rows = [
            (found, opened.written_table(found.key), _look(opened, found, access) if table else None)
            for found in select(opened.streams(), stream)
        ]
        name = opened.name
    if as_json:
        streams = [output.status_json(*row, _now()) for row in rows]
        output.print_json({"store": name, "streams": streams})
    elif rows:
        output.console().print(output.status_table(rows, _now()))
    else:
        output.print_line(f"The store {name} has no streams yet.")
    problems = [(found, look["problem"]) for found, _, look in rows if look is not None and look["problem"]]
    for found, problem in problems:
        output.print_line(f"{found.key}: {problem}", style="red", stderr=True)
    raise typer.Exit(ATTENTION if problems else 0)


def _look(store: SqlManifestStore, stream: StreamStatus, access: TableAccess) -> dict[str, Any]:
    from ..sinks.sink import check_same_table
    from .output import look_json
    from .tables import look_at_table, open_table

    table, token, problem = open_table(stream, access), None, ""
    try:
        check_same_table(table, stream.key, store.written_table(stream.key))
        token = table.token(stream.key.query_id)
    except TableChangedError as error:
        problem = str(error)
    return look_json(look_at_table(stream, access), token, problem)


@app.command()
def show(
    stream: Annotated[
        str, typer.Argument(help="A query's name, its id or the beginning of it.", show_default=False)
    ],
    batch: Annotated[int, typer.Argument(help="The batch id.", show_default=False)],
    checkpoint: CheckpointOption = None,
    store: StoreOption = None,
    files: Annotated[bool, typer.Option("--files", help="List all files, not the first ten.")] = False,
    storage: StorageOption = None,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one batch: its state, its files, and whether the table holds it."""
    from ...committers.lake_manifest import decode
    from . import output
    from .access import select_one
    from .tables import TableAccess, open_table

    access = TableAccess.parse(storage, catalog)
    with _open(checkpoint, store) as opened:
        found = select_one(opened.streams(), stream)
        record, manifest = opened.record(found.key, batch), opened.manifest(found.key, batch)
    if record is None or manifest is None:
        raise ConfigurationError(f"The store has no batch {batch} of {found.key}. {_newest(found)}")
    try:
        token = open_table(found, access).token(found.key.query_id)
        word, sentence = output.in_table(token, record.batch)
    except TableChangedError as error:
        token, word, sentence = None, "changed", str(error)
    named = decode(manifest).files
    if as_json:
        listed = [output.file_json(file) for file in named]
        answer = {"in_table": word, "token_batch_id": None if token is None else token.batch_id}
        batch_json = {**output.record_json(record), "files": listed}
        output.print_json({**output.stream_json(found), **batch_json, **answer})
    else:
        output.print_batch(found, record, sentence)
        output.print_files(named, everything=files)


def _newest(stream: StreamStatus) -> str:
    if stream.last is None:
        return "It has none yet."
    return f"Its newest is batch {stream.last.batch.batch_id}."


# Mending --------------------------------------------------------------------------------------------


@app.command()
def recover(
    stream: StreamsArgument = None,
    checkpoint: CheckpointOption = None,
    store: StoreOption = None,
    accept_table: Annotated[
        bool,
        typer.Option(
            "--accept-table",
            help="First accept the stream's table as it is now, after it was re-created or restored. "
            "Rows that it lost stay lost.",
        ),
    ] = False,
    yes: YesOption = False,
    storage: StorageOption = None,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Finish the batches that were prepared and not committed.

    Does what the query's next start would do. Safe while the query runs. Exit code 1 says that a batch is
    still pending.
    """
    from .access import select, select_one
    from .output import print_json, print_line
    from .recover import print_recoveries, recover_stream
    from .tables import TableAccess

    access = TableAccess.parse(storage, catalog)
    with _open(checkpoint, store) as opened:
        chosen = select(opened.streams(), stream)
        if accept_table:
            _accept_table(opened, select_one(chosen, None), access, yes)
            chosen = select(opened.streams(), stream)
        recoveries = [recover_stream(opened, one, access) for one in chosen if one.pending]
    if as_json:
        print_json({"streams": [recovery.to_json() for recovery in recoveries]})
    else:
        print_recoveries(recoveries)
    errors = [recovery.error for recovery in recoveries if recovery.error is not None]
    for error in errors:
        print_line(f"Error: {error}", stderr=True)
    is_pending = any(recovery.is_pending for recovery in recoveries)
    raise typer.Exit(FAILED if errors else ATTENTION if is_pending else 0)


def _accept_table(store: SqlManifestStore, stream: StreamStatus, access: TableAccess, yes: bool) -> None:
    """Take the table as it is now for the stream's own, on the operator's word."""
    from .output import print_line
    from .recover import accept, changed_table

    changed = changed_table(store, stream, access)
    if changed is None:
        print_line("The table is the one that the stream wrote: there is nothing to accept.", stderr=True)
        return
    now, what = changed
    print_line(what, stderr=True)
    _confirm("Accept the table as it is now? Rows that it lost will not be written again.", yes)
    accept(store, stream, now, access)
    print_line("Accepted.", stderr=True)


def _confirm(question: str, yes: bool) -> None:
    if not yes:
        typer.confirm(question, abort=True, err=True)


@app.command()
def gc(
    stream: StreamsArgument = None,
    checkpoint: CheckpointOption = None,
    store: StoreOption = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the files instead of only listing them.")
    ] = False,
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="AGE", help="Grace period, such as 7d or 12h; at least 1h."),
    ] = "7d",
    storage: StorageOption = None,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find data files that nothing needs any more, and delete them with --delete.

    Failed tasks and killed drivers leave them behind. A file counts only if Penstock wrote it, its batch
    can no longer be committed, and neither a manifest of the store nor a readable version of the table
    names it. Safe while queries run. Exit code 1 says that there are files to delete.
    """
    from .access import select
    from .gc import by_table, clean_table, parse_grace, print_cleaned
    from .output import print_json, print_line
    from .tables import TableAccess

    access, grace = TableAccess.parse(storage, catalog), parse_grace(older_than)
    with _open(checkpoint, store) as opened:
        tables = by_table(select(opened.streams(), stream)).values()
        cleaned = [clean_table(opened, streams, access, _now() - grace, delete=delete) for streams in tables]
    if as_json:
        listed = [table.to_json() for table in cleaned]
        print_json({"dry_run": not delete, "older_than_s": grace.total_seconds(), "tables": listed})
    else:
        for table in cleaned:
            print_cleaned(table, _now(), delete=delete)
    errors = [table.error for table in cleaned if table.error is not None]
    for error in errors:
        print_line(f"Error: {error}", stderr=True)
    is_left = not delete and any(table.files for table in cleaned)
    raise typer.Exit(FAILED if errors else ATTENTION if is_left else 0)


@app.command()
def renew(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Checkpoint directory on this machine.")
    ],
    store: StoreOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Give a checkpoint a new query id: its next start is a new stream at the same offsets.

    For a checkpoint that was rewound or copied on purpose. Rows of batches that run after this are added
    beside what the table holds. Stop the query first.
    """
    from .access import local_checkpoint
    from .output import print_json, print_line
    from .renew import check_renewable, read_checkpoint, write_query_id

    directory = local_checkpoint(checkpoint)
    state = read_checkpoint(directory)
    store = store or os.environ.get("PENSTOCK_STORE") or None
    with _open(None if store else checkpoint, store) as opened:
        streams = check_renewable(state, opened)
    new_id = str(uuid.uuid4())
    tables = ", ".join(stream.key.table_uri for stream in streams)
    print_line(f"old query id  {state.query_id}\nnew query id  {new_id}", stderr=as_json)
    print_line(f"Rows of batches that run after this are added beside what {tables} holds.", stderr=as_json)
    _confirm("Is the query stopped, and shall the checkpoint get the new id?", yes)
    write_query_id(directory, new_id)
    if as_json:
        print_json({"checkpoint": directory, "old_query_id": state.query_id, "new_query_id": new_id})
    else:
        print_line("Renewed. The query's next start goes on at the same source offsets, under the new id.")
