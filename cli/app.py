"""The command line, `penstock`. Its commands are in `commands`, by topic.

The commands read the manifest store and the tables. Only `check` and `deliver --spark` import Spark, and only
the latter starts it. Each command loads
the libraries that it needs, so that help and completion are instant.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..committers.errors import ConfigurationError, PenstockError, StoreUnreachableError
from .commands import (
    admin,
    check,
    dead_letters,
    delivery,
    forget,
    history,
    inspect,
    lineage,
    repair,
    retire,
    ui,
)
from .commands.options_file import with_options_file
from .exit_codes import FAILED, UNREACHABLE, WRONG_USAGE

HELP = """
Inspect, deliver and repair what Penstock's streams have written.

Each command needs the manifest store of a query: `--checkpoint DIR` if the store is in the checkpoint
directory, `--store URL` if the query has the option `store`. All commands may run while the queries run.

```
penstock status --checkpoint /checkpoints/flights
penstock deliver --store postgresql+psycopg://penstock@db/penstock
```
"""
EPILOG = (
    "Exit codes: 0 success; 1 something is left to do (a batch is still pending, a table has changed, "
    "`check` found an error, `gc` found files and did not delete them, `deliver --once` left batches); 2 "
    "wrong usage or configuration; 3 another error, explained on stderr; 4 the manifest store does not "
    "answer."
)


class ReportingGroup(TyperGroup):
    """Turn Penstock's errors into a message on stderr and an exit code, without a traceback.

    Characters that the terminal's encoding does not have, such as those of a query's name, are escaped.
    """

    def invoke(self, ctx: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            from .output import print_error

            print_error(error)
            code = WRONG_USAGE if isinstance(error, ConfigurationError) else FAILED
            raise typer.Exit(UNREACHABLE if isinstance(error, StoreUnreachableError) else code) from None


app = typer.Typer(
    cls=ReportingGroup,
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


def version() -> None:
    """Print the versions of Penstock and of the libraries that it uses, for bug reports."""
    import platform
    from importlib.metadata import version as version_of

    from penstock import __version__

    parts = [
        f"{name} {version_of(name)}"
        for name in ("pyspark", "deltalake", "pyiceberg", "pyarrow", "sqlalchemy")
    ]
    typer.echo(f"penstock {__version__} (Python {platform.python_version()}, {', '.join(parts)})")


COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Before the start": (check.check,),
    "Inspect": (inspect.status, inspect.show, history.history, lineage.lineage, ui.ui),
    "Deliver": (delivery.deliver, delivery.metrics),
    "Decide about undelivered batches": (admin.park, admin.retry, admin.skip, admin.acknowledge, admin.abort),
    "Repair and clean up": (repair.recover, repair.gc, retire.retire, forget.forget, repair.reset_query_id),
    "About": (version,),
}
"""The commands by their heading in the help, in this order."""

for heading, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=heading)(with_options_file(command))
letters = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help=dead_letters.HELP)
for name, one in dead_letters.COMMANDS.items():
    letters.command(name)(with_options_file(one))
app.add_typer(letters, name="dead-letters", rich_help_panel="Decide about undelivered batches")
app.command("renew", hidden=True)(with_options_file(repair.reset_query_id))  # its former name
