"""The command line, `penstock`: its commands are in `commands`, by topic.

Looks into the manifest store and the tables, not into Spark, which only `deliver --spark` imports. Libraries
are loaded by the commands that need them, so that help and completion are instant.
"""

from __future__ import annotations

from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from ..committers.errors import ConfigurationError, PenstockError, StoreUnreachableError
from .commands import admin, delivery, history, inspect, repair
from .commands.common import FAILED, UNREACHABLE, WRONG_USAGE
from .commands.options_file import with_options_file

EPILOG = (
    "Exit codes: 0 all is well; 1 something is left to do (a batch is still pending, a table has changed, gc "
    "found files and was not told to delete them, deliver --once left batches); 2 wrong usage or "
    "configuration; 3 an error of Penstock, explained on stderr; 4 the manifest store does not answer."
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
    help="See, deliver and mend what Penstock's streams have written: batches, tables, leftover files.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _fail(error: PenstockError) -> NoReturn:
    from .output import print_line

    print_line(f"Error: {error}", stderr=True)
    raise typer.Exit(_code(error)) from None


def _code(error: PenstockError) -> int:
    if isinstance(error, StoreUnreachableError):
        return UNREACHABLE
    return WRONG_USAGE if isinstance(error, ConfigurationError) else FAILED


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
    """Print the versions of Penstock and of what it stands on."""
    import platform
    from importlib.metadata import version as version_of

    from penstock import __version__

    parts = [
        f"{name} {version_of(name)}"
        for name in ("pyspark", "deltalake", "pyiceberg", "pyarrow", "sqlalchemy")
    ]
    typer.echo(f"penstock {__version__} (Python {platform.python_version()}, {', '.join(parts)})")


COMMANDS = (
    inspect.status,
    inspect.show,
    history.history,
    delivery.deliver,
    delivery.metrics,
    admin.park,
    admin.retry,
    admin.skip,
    admin.abort,
    repair.recover,
    repair.gc,
    repair.reset_query_id,
    version,
)
for command in COMMANDS:
    app.command()(with_options_file(command))
app.command("renew", hidden=True)(with_options_file(repair.reset_query_id))  # its earlier name
