"""Options and arguments of several commands, used as `checkpoint: options.Checkpoint = None`."""

from __future__ import annotations

from typing import Annotated

import typer

ACCESS = "Where the store and the tables are"
"""Heading in the help of a command."""

Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        "-c",
        metavar="DIR",
        rich_help_panel=ACCESS,
        help="Checkpoint directory of the query. The store is the file penstock.sqlite in it.",
    ),
]
Checkpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint",
        "-c",
        metavar="DIR",
        rich_help_panel=ACCESS,
        help="Checkpoint directory of a query, with the store in it. Can be repeated.",
    ),
]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait for a store that does not exist yet or does not answer.")
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        "-s",
        metavar="URL",
        rich_help_panel=ACCESS,
        help="SQLAlchemy URL of the store, as in the query's option `store`. Default: $PENSTOCK_STORE.",
    ),
]
OptionsFile = Annotated[
    str | None,
    typer.Option(
        "--options-file",
        metavar="FILE",
        envvar="PENSTOCK_OPTIONS_FILE",
        rich_help_panel=ACCESS,
        help='JSON file, such as {"store": "URL", "storage": {"KEY": "VALUE"}, "catalog": {"KEY": "VALUE"}, '
        '"streams": {"STREAM": {"url": "URL"}}}. It keeps secrets out of the process list; only its owner '
        "should be able to read it.",
    ),
]
Storage = Annotated[
    list[str] | None,
    typer.Option(
        "--storage",
        metavar="KEY=VALUE",
        rich_help_panel=ACCESS,
        help="Option of the tables' object store, such as AWS_REGION=eu-west-1: the query's storage.KEY. Can "
        "be repeated. $PENSTOCK_STORAGE, a JSON object, and the environment variables of the cloud's SDK "
        "work too.",
    ),
]
Catalog = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog",
        metavar="KEY=VALUE",
        rich_help_panel=ACCESS,
        help="Property of the tables' catalog, such as uri=https://catalog.example: the query's catalog.KEY. "
        "Can be repeated. $PENSTOCK_CATALOG, a JSON object, works too. Not needed for a catalog in "
        ".pyiceberg.yaml or pyiceberg's environment variables, nor for tables in a `warehouse` directory.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Streams = Annotated[
    str | None,
    typer.Argument(
        metavar="STREAM",
        show_default=False,
        help="Name of the query or of a fan-out, its id or the beginning of its id, or the table. Default: "
        "all streams.",
    ),
]
Stream = Annotated[
    str,
    typer.Argument(
        help="Name of the query, its id or the beginning of its id, or the table.", show_default=False
    ),
]
OfQuery = Annotated[
    str,
    typer.Argument(
        help="Name of the query or of a fan-out, its id or the beginning of its id, or the table.",
        show_default=False,
    ),
]
"""All targets of a fan-out."""
Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="The reason, kept in the store.", show_default=False)
]
Who = Annotated[
    str | None,
    typer.Option("--who", metavar="NAME", help="Who decides, kept in the store. Default: the current user."),
]
