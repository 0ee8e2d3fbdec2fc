"""What all commands have in common: options, exit codes, the store that they work on."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from ....committers.errors import ConfigurationError

if TYPE_CHECKING:
    from ....committers.store.sql import SqlManifestStore

ATTENTION, WRONG_USAGE, FAILED = 1, 2, 3

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
StreamArgument = Annotated[
    str, typer.Argument(help="A query's name, its id or the beginning of it.", show_default=False)
]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the store.", show_default=False)
]
WhoOption = Annotated[
    str | None,
    typer.Option("--who", metavar="NAME", help="Who decides; kept in the store. Default: the user."),
]


def opened_store(checkpoint: str | None, store: str | None) -> SqlManifestStore:
    """The store that the options of a command name, or the environment."""
    from ..access import open_named_store

    if checkpoint is None and store is None:
        store = os.environ.get("PENSTOCK_STORE") or None
    return open_named_store(checkpoint, store)


def deciding(who: str | None) -> str:
    """The name that is kept with a decision."""
    import getpass

    try:
        return who or getpass.getuser()
    except (KeyError, OSError):
        raise ConfigurationError("This user has no name. Give one with --who NAME.") from None


def checked_reason(reason: str) -> str:
    if not reason.strip():
        raise ConfigurationError("Say why with --reason TEXT: it is kept for those who ask later.")
    return reason


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def confirm(question: str, yes: bool) -> None:
    if not yes:
        typer.confirm(question, abort=True, err=True)
