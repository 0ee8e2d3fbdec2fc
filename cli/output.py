"""How the commands show things: rich tables for people, JSON with fixed keys for scripts.

Names, paths and messages are other people's text, so nothing is read as rich's markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..committers.cleanup import ListedFile
from ..committers.contract import Batch, DataFile, ManifestRecord, Token
from ..committers.recovery import Recovered
from ..committers.safe_text import one_line, safe, without_credentials
from ..committers.store.selection import short_id
from ..committers.store.sql import StreamStatus, WrittenTable
from ..datasource.destinations import TableNow

FILES_SHOWN = 10
VERSION_DIGITS_MAX = 9


def console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


def print_json(value: Mapping[str, Any]) -> None:
    """Without the credentials that a URL in the store may have: earlier versions kept them."""
    sys.stdout.write(json.dumps(_masked(value), indent=2) + "\n")


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, Mapping):
        return {key: _masked(one) for key, one in value.items()}
    return [_masked(one) for one in value] if isinstance(value, list | tuple) else value


def print_line(text: str = "", *, style: str = "", stderr: bool = False) -> None:
    """One line that no terminal width breaks: paths and ids stay whole."""
    console(stderr=stderr).print(Text(safe(text), style), soft_wrap=True)


# Words for values -----------------------------------------------------------------------------------


def size(size_bytes: int) -> str:
    value, units = float(size_bytes), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    for bigger in units:
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"


def age(duration: timedelta) -> str:
    seconds = max(int(duration.total_seconds()), 0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def count(number: int, noun: str, ending: str = "s") -> str:
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def title(stream: StreamStatus) -> str:
    name = stream.query_name or "(no name)"
    return one_line(f"{name} {short_id(stream.key.query_id)}")


def time_text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


# penstock status ------------------------------------------------------------------------------------


def status_table(
    rows: Sequence[tuple[StreamStatus, WrittenTable | None, Mapping[str, Any] | None]], now: datetime
) -> Table:
    """One row per stream, in 80 columns.

    Args:
        rows: the stream, the table that it wrote, and the status of the table now if it was loaded
    """
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("Stream", overflow="fold", min_width=24)
    for heading in ("Last batch", "Pending", "Written", "Table"):
        table.add_column(heading, justify="right", overflow="fold")
    for stream, written, table_status in rows:
        table.add_row(
            Text.assemble((title(stream), "bold"), "\n", one_line(stream.key.table_uri)),
            _last_batch(stream, now),
            _pending(stream, now),
            f"{stream.committed_rows:,} rows\n{size(stream.committed_bytes)}",
            _table_cell(written, table_status),
        )
    return table


def _last_batch(stream: StreamStatus, now: datetime) -> str:
    if stream.last is None:
        return "none"
    moment = stream.last.finished_at or stream.last.prepared_at
    return f"{stream.last.batch.batch_id}\n{stream.last.state.value}\n{age(now - moment)} ago"


def _pending(stream: StreamStatus, now: datetime) -> Text:
    if not stream.pending or stream.oldest_pending_at is None:
        return Text("0")
    return Text(f"{stream.pending}\nfor {age(now - stream.oldest_pending_at)}", style="yellow")


def _table_cell(written: WrittenTable | None, table_status: Mapping[str, Any] | None) -> Text:
    text = Text("-" if written is None else f"version {_short(written.table_version)}")
    if table_status is not None:
        version, batch_id = table_status["version"], table_status["token_batch_id"]
        text.append(f"\nnow {'gone' if version is None else _short(version)}")
        text.append(f"\ntoken {'none' if batch_id is None else batch_id}")
        if table_status["problem"]:
            text.append("\nchanged", style="red")
    return text


def status_json(
    stream: StreamStatus, written: WrittenTable | None, table_status: Mapping[str, Any] | None, now: datetime
) -> dict[str, Any]:
    oldest = stream.oldest_pending_at
    return {
        **stream_json(stream),
        "created_at": time_text(stream.created_at),
        "last_batch": None if stream.last is None else record_json(stream.last),
        "pending": stream.pending,
        "oldest_pending_at": time_text(oldest),
        "oldest_pending_s": None if oldest is None else round((now - oldest).total_seconds(), 3),
        "committed_batches": stream.committed_batches,
        "committed_rows": stream.committed_rows,
        "committed_bytes": stream.committed_bytes,
        "table_id": None if written is None else written.table_id,
        "table_version": None if written is None else written.table_version,
        **({} if table_status is None else {"table": dict(table_status)}),
    }


def table_status_json(now: TableNow | None, token: Token | None, problem: str) -> dict[str, Any]:
    """What the table itself says of a stream."""
    return {
        "id": None if now is None else now.table_id,
        "version": None if now is None else now.version,
        "token_batch_id": None if token is None else token.batch_id,
        "token_digest": None if token is None else token.digest,
        "problem": problem or None,
    }


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
        "table_version": record.table_version,
        "reason": record.reason,
    }


# penstock show --------------------------------------------------------------------------------------


def _short(version: int | None) -> str:
    """Iceberg's snapshot ids are too long for a column of a table: their beginning, as for query ids."""
    text = str(version)
    return text if len(text) <= VERSION_DIGITS_MAX else f"{text[: VERSION_DIGITS_MAX - 1]}…"


def in_table(token: Token | None, batch: Batch) -> tuple[str, str]:
    """Does the table hold the batch, by its token? A fixed word for scripts, and a sentence."""
    if token is None:
        return "no", "No: the table holds no batch of this query."
    if token.batch_id < batch.batch_id:
        return "no", f"No: the table is at batch {token.batch_id} of this query."
    if token.batch_id > batch.batch_id:
        return "passed", f"Yes: the table is at batch {token.batch_id} of this query."
    if token.matches(batch.digest):
        return "yes", "Yes: it is the query's last batch in the table."
    return "other_offsets", (
        f"The table holds this batch id with other source offsets (digest {token.digest}...)."
    )


def print_batch(stream: StreamStatus, record: ManifestRecord, answer: str) -> None:
    """Plain lines, not a table: ids and digests stay whole at any width."""
    lines = {
        "Stream": title(stream),
        "Query id": stream.key.query_id,
        "Table": stream.key.table_uri,
        "Batch": f"{record.batch.batch_id} {record.state.value}",
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
        print_line(f"... and {count(len(files) - len(shown), 'more file')}; --files shows all of them.")


# penstock recover -----------------------------------------------------------------------------------


def recovered_table(batches: Iterable[Recovered]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("Batch", justify="right")
    table.add_column("Rows", justify="right")
    table.add_column("Now")
    table.add_column("How", overflow="fold")
    for batch in batches:
        record = batch.record
        table.add_row(
            str(record.batch.batch_id), f"{record.rows:,}", batch.state.value, one_line(batch.reason)
        )
    return table


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
