"""Options and arguments that several commands have, as `checkpoint: options.Checkpoint = None`."""

from __future__ import annotations

from typing import Annotated

import typer

Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        "-c",
        metavar="DIR",
        help="Checkpoint directory of the query; its store is the file penstock.sqlite there.",
    ),
]
Checkpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint",
        "-c",
        metavar="DIR",
        help="Checkpoint directory of a query whose store is there. Repeat it for more.",
    ),
]
Wait = Annotated[
    bool,
    typer.Option("--wait", help="Wait for a store that is not there yet, or whose database is down."),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        "-s",
        metavar="URL",
        help="SQLAlchemy URL of the store, as in the query's option `store`. Default: $PENSTOCK_STORE.",
    ),
]
OptionsFile = Annotated[
    str | None,
    typer.Option(
        "--options-file",
        metavar="FILE",
        envvar="PENSTOCK_OPTIONS_FILE",
        help='JSON file such as {"store": "URL", "storage": {"KEY": "VALUE"}, "catalog": {"KEY": "VALUE"}}: '
        "keeps secrets out of the list of processes. Only its owner should be able to read it.",
    ),
]
Storage = Annotated[
    list[str] | None,
    typer.Option(
        "--storage",
        metavar="KEY=VALUE",
        help="Option for the tables' object store, such as AWS_REGION=eu-west-1. Repeat it for more. "
        "Environment variables of the cloud's SDK work too.",
    ),
]
Catalog = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog",
        metavar="KEY=VALUE",
        help="Property of the catalog of Iceberg tables, such as uri=https://catalog.example. Repeat it for "
        "more. Catalogs in .pyiceberg.yaml or the environment need none, nor do those in a warehouse.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Streams = Annotated[
    str | None,
    typer.Argument(
        metavar="[STREAM]",
        show_default=False,
        help="A query's name, its id or the beginning of it, or a table. Default: all streams.",
    ),
]
Stream = Annotated[
    str, typer.Argument(help="A query's name, its id or the beginning of it.", show_default=False)
]
Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the store.", show_default=False)
]
Who = Annotated[
    str | None,
    typer.Option("--who", metavar="NAME", help="Who decides; kept in the store. Default: the user."),
]
