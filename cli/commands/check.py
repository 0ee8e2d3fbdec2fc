"""`penstock check`: a query before it starts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from ...committers.errors import ConfigurationError, shown
from ..exit_codes import ATTENTION
from . import options

_STYLES = {"ok": "green", "warning": "yellow", "error": "red", "skipped": "dim"}


def check(
    format: Annotated[  # noqa: A002  as in Spark's own writers
        str,
        typer.Argument(
            metavar="FORMAT", show_default=False, help="Format of the query, such as penstock.delta."
        ),
    ],
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="KEY=VALUE",
            help="Option of the query, such as path=/lake/events. Can be repeated.",
        ),
    ] = None,
    query_options: Annotated[
        Path | None,
        typer.Option(
            "--options-file",
            metavar="FILE",
            help='JSON file with options of the query, such as {"path": "s3://lake/events", "storage": '
            '{"AWS_REGION": "eu-west-1"}}. It keeps secrets out of the process list; only its owner should '
            "be able to read it.",
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="COLUMNS",
            help='Columns of the query, as in SQL, such as "id BIGINT, name STRING", or the JSON of '
            "df.schema.json(). Without it, rows are not compared with the table.",
        ),
    ] = None,
    output_mode: Annotated[
        str, typer.Option("--output-mode", metavar="MODE", help="Output mode: append or complete.")
    ] = "append",
    wait: Annotated[
        float,
        typer.Option("--wait", min=1.0, metavar="SECONDS", help="How long to wait for what does not answer."),
    ] = 30.0,
    as_json: options.Json = False,
) -> None:
    """Check a query before it starts: options, versions, credentials, permissions, clocks, rows, checkpoint.

    Nothing is created, and no data is moved: a small test object is written into each place of files, and
    deleted. Run it where the driver runs, with the environment of the driver. Exit code 1 means that there is
    an error with which the query would end.

    Example: `penstock check penstock.delta -o path=/lake/events -o checkpointLocation=/checkpoints/events`
    """
    from ...operating.checking.checks import check_query
    from ...operating.checking.described import described
    from ...operating.checking.report import is_any_waiting
    from ...operating.findings import Severity
    from .. import output

    given = {**_in_file(query_options), **_typed(option or ())}
    wanted = described(format, given, schema, output_mode)
    with output.progress("Checking"):
        findings = check_query(wanted, wait)
    if as_json:
        found = [
            {
                "severity": one.severity.value,
                "subject": one.subject,
                "target": one.target,
                "message": one.message,
                "remedy": one.remedy,
            }
            for one in findings
        ]
        output.print_json({"format": wanted.format, "findings": found})
    else:
        for one in findings:
            output.print_line(str(one), style=_STYLES[one.severity.value])
    code = ATTENTION if any(one.severity is Severity.ERROR for one in findings) else 0
    if is_any_waiting():
        # Libraries wait for their threads when the interpreter ends, or abort the process.
        sys.stdout.flush()
        os._exit(code)
    raise typer.Exit(code)


def _typed(pairs: Iterable[str]) -> dict[str, str]:
    from ...committers.texts.safe_text import has_credentials
    from ...committers.texts.secrets import names_a_secret
    from ..output import print_line

    found = {}
    for number, pair in enumerate(pairs, start=1):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(
                f"--option number {number} is not KEY=VALUE. Write it as path=/lake/events."
            )
        found[key.strip()] = value
    if any(names_a_secret(key) or has_credentials(value) for key, value in found.items()):
        print_line(
            "Warning: There is a secret in --option, which everybody who can list the processes of this "
            "machine can read. Put it into the file of --options-file.",
            stderr=True,
        )
    return found


def _in_file(path: Path | None) -> dict[str, str]:
    """Return the options in a file. Those of an object have its name and a dot before their own."""
    if path is None:
        return {}
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The options file {path} cannot be read: {error}.") from None
    except (ValueError, RecursionError):
        given = None  # no error shows its content
    if not isinstance(given, dict):
        raise ConfigurationError(
            f'The options file {path} must be a JSON object, such as {{"path": "/lake/events"}}.'
        )
    found: dict[str, str] = {}
    for name, value in given.items():
        nested = value.items() if isinstance(value, dict) else ()
        found |= {f"{name}.{key}": _text(path, f"{name}.{key}", one) for key, one in nested}
        if not isinstance(value, dict):
            found[name] = _text(path, name, value)
    return found


def _text(path: Path, name: str, value: Any) -> str:
    if isinstance(value, dict | list) or value is None:
        raise ConfigurationError(f"The value of {shown(name)} in the options file {path} must be a string.")
    return str(value).lower() if isinstance(value, bool) else str(value)
