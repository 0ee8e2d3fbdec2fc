"""Output of the commands: rich tables for people, JSON with fixed keys for scripts.

Names, paths and messages come from outside, so rich must not interpret them as markup.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..committers.cleaning.cleanup import ListedFile
from ..committers.contract import Batch, DataFile, ManifestRecord, Token
from ..committers.errors import PenstockError
from ..committers.protocol.recovery import Recovered
from ..committers.store.selection import short_id
from ..committers.store.status import StreamStatus
from ..committers.texts.safe_text import one_line, safe, without_credentials
from ..delivery.listeners import version_json
from ..operating.formatting import age as age
from ..operating.formatting import count as count
from ..operating.formatting import size as size
from .exit_codes import ATTENTION, FAILED

FILES_SHOWN = 10
INDENTED_MAX = 500
"""JSON with a longer list is on one line."""
PIPED_WIDTH = 10_000
"""Width of output that does not go to a terminal: nothing is folded, unless $COLUMNS is set."""


def console(*, stderr: bool = False) -> Console:
    console = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = PIPED_WIDTH
    return console


def print_json(value: Mapping[str, Any]) -> None:
    """Print JSON. URLs are shown without credentials, which earlier versions have stored.

    A long list is not indented: that takes several times as long, and nobody reads it without a program.
    """
    is_long = any(isinstance(one, list) and len(one) > INDENTED_MAX for one in value.values())
    sys.stdout.write(json.dumps(_masked(value), indent=None if is_long else 2) + "\n")


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, Mapping):
        return {key: _masked(one) for key, one in value.items()}
    return [_masked(one) for one in value] if isinstance(value, list | tuple) else value


def print_line(text: str = "", *, style: str = "", stderr: bool = False) -> None:
    """Print one line, whatever the width of the terminal: paths and ids stay whole."""
    file = sys.stderr if stderr else sys.stdout
    if file.isatty() or any(os.environ.get(name) for name in _STYLED):
        console(stderr=stderr).print(Text(safe(text), style), soft_wrap=True)
    else:  # rich takes seconds for thousands of lines
        file.write(f"{safe(text)}\n")


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done. Yield a function that replaces the text."""
    shown = console(stderr=True)
    if not shown.is_terminal:
        yield lambda _text: None
        return
    with shown.status(text) as status:
        yield status.update


_STYLED = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables with which rich writes styles into pipes and files."""


_NAMES_ACCESS = re.compile(r"\b(?:storage|catalog)\.(?:\*|\w)")
"""Matches an option of a query that a command takes in another way."""


def print_error(error: PenstockError) -> None:
    """Print the error to stderr. If it names options of a query, add how to give them to a command."""
    print_line(f"Error: {error}", stderr=True)
    if _NAMES_ACCESS.search(str(error)):
        print_line(
            "A command takes the options storage.KEY and catalog.KEY of a query as --storage KEY=VALUE and "
            "--catalog KEY=VALUE, from the file of --options-file, or from $PENSTOCK_STORAGE and "
            "$PENSTOCK_CATALOG.",
            stderr=True,
        )


def end_with(errors: Iterable[PenstockError | None], *, is_left: bool = False) -> NoReturn:
    """Print the errors of a command that has worked on several things, and exit.

    Args:
        is_left: something is left to do
    """
    found = [error for error in errors if error is not None]
    for error in found:
        print_error(error)
    raise typer.Exit(FAILED if found else ATTENTION if is_left else 0)


# Formatting values -----------------------------------------------------------------------------------


def title(stream: StreamStatus) -> str:
    name = stream.query_name or "(no name)"
    return one_line(f"{name} {short_id(stream.key.query_id)}")


def table(*headings: str, left: Sequence[str] = ()) -> Table:
    """A table with one line for each row; columns of numbers, unless named in `left`."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for heading in headings:
        made.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)
    return made


def time_text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def seconds_since(moment: datetime | None, now: datetime) -> float | None:
    return None if moment is None else rounded((now - moment).total_seconds())


def rounded(seconds: float | None) -> float | None:
    """Return the seconds with milliseconds."""
    return None if seconds is None else round(seconds, 3)


# Streams and batches as JSON --------------------------------------------------------------------------


def stream_json(stream: StreamStatus) -> dict[str, Any]:
    return {
        "query_name": stream.query_name,
        "query_id": stream.key.query_id,
        "table_uri": stream.key.table_uri,
        "kind": stream.kind,
    }


def record_json(record: ManifestRecord) -> dict[str, Any]:
    return {
        "batch_id": record.batch.batch_id,
        "state": record.state.value,
        "digest": record.batch.digest,
        "files": record.files,
        "rows": record.rows,
        "size_bytes": record.size_bytes,
        "run_id": record.run_id,
        "prepared_at": time_text(record.prepared_at),
        "finished_at": time_text(record.finished_at),
        "write_s": rounded(record.write_s),
        "prepare_s": rounded(record.prepare_s),
        "commit_s": rounded(record.commit_s),
        **version_json("table_version", record.table_version),
        "reason": record.reason,
        "is_skipped": record.is_skipped,
    }


# penstock show --------------------------------------------------------------------------------------


def in_table(token: Token | None, batch: Batch) -> tuple[str, str]:
    """Return whether the table contains the batch, by its token: a fixed word for scripts, and a sentence."""
    if token is None:
        return "no", "No: the table contains no batch of this query."
    if token.batch_id < batch.batch_id:
        return "no", f"No: the table is at batch {token.batch_id} of this query."
    if token.batch_id > batch.batch_id:
        return "passed", f"Yes: the table is at batch {token.batch_id} of this query."
    if token.matches(batch.digest):
        return "yes", "Yes: it is the query's last batch in the table."
    return "other_offsets", (
        f"No: the table contains this batch id with other source offsets (digest {token.digest}...)."
    )


def print_batch(stream: StreamStatus, record: ManifestRecord, answer: str) -> None:
    """Print a batch line by line, so that ids and digests stay whole at any width."""
    lines = {
        "Stream": title(stream),
        "Query id": stream.key.query_id,
        "Table": stream.key.table_uri,
        "Batch": f"{record.batch.batch_id} {record.shown_state}",
        "Holds": f"{record.rows:,} rows in {count(record.files, 'file')}, {size(record.size_bytes)}",
        "In the table": answer,
        "Table version": "-" if record.table_version is None else str(record.table_version),
        "Prepared": time_text(record.prepared_at) or "-",
        "Finished": time_text(record.finished_at) or "-",
        "Run id": record.run_id,
        "Digest": record.batch.digest,
        "Reason": record.reason or "-",
    }
    for label, value in lines.items():
        print_line(f"{label:<15}{value if label == 'Reason' else one_line(value)}")


def file_json(file: DataFile) -> dict[str, Any]:
    return {"path": file.path, "rows": file.rows, "size_bytes": file.size_bytes}


def print_files(files: Sequence[DataFile], *, everything: bool) -> None:
    shown = files if everything else files[:FILES_SHOWN]
    print_line()
    for file in shown:
        print_line(f"{file.rows:>12,} rows {size(file.size_bytes):>12}  {one_line(file.path)}")
    if len(shown) < len(files):
        print_line(f"... and {count(len(files) - len(shown), 'more file')}. Use --files to list all.")


# penstock recover -----------------------------------------------------------------------------------


def recovered_table(batches: Iterable[Recovered]) -> Table:
    found = table("Batch", "Rows", "Now", left=("Now",))
    found.add_column("How", overflow="fold")
    for batch in batches:
        record = batch.record
        found.add_row(
            str(record.batch.batch_id), f"{record.rows:,}", batch.state.value, one_line(batch.reason)
        )
    return found


def recovered_json(batch: Recovered) -> dict[str, Any]:
    return {
        "batch_id": batch.record.batch.batch_id,
        "rows": batch.record.rows,
        "state": batch.state.value,
        "reason": batch.reason,
    }


# penstock gc ----------------------------------------------------------------------------------------


def listed_file_json(file: ListedFile) -> dict[str, Any]:
    return {"path": file.path, "size_bytes": file.size_bytes, "modified_at": time_text(file.modified_at)}
