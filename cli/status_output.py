"""Output of `penstock status`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..committers.contract import StreamKey
from ..committers.row_log.sharing import routes_of
from ..committers.store.status import StreamStatus, WrittenTable
from ..committers.texts.safe_text import one_line
from ..delivery.listeners import version_json
from ..operating.tables import TableStatus
from .output import (
    PIPED_WIDTH,
    age,
    console,
    count,
    print_line,
    record_json,
    seconds_since,
    size,
    stream_json,
    time_text,
    title,
)

NAME_WIDTH_MIN = 24
"""Minimum width of the first column of `penstock status`. With less, each value gets its own line."""

STYLED_MAX = 500
"""With more streams, layout and styles would take seconds: each gets one plain line."""

StatusRow: TypeAlias = "tuple[StreamStatus, WrittenTable | None, Mapping[str, Any] | None]"
"""A stream, the table that it wrote, and the state of the table (`table_status_json`) if it was read."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """One value of a stream, in parts: the lines of a table cell, or joined in one line."""

    heading: str
    parts: Sequence[str]
    style: str = ""


def print_status(
    rows: Sequence[StatusRow],
    now: datetime,
    tables: Mapping[StreamKey, Sequence[StreamStatus]] = MappingProxyType({}),
) -> None:
    """Print one row per stream or, if the terminal is too narrow, one line per value. Nothing is cut.

    Args:
        tables: of queries with routes, whose row has the sums
    """
    streams = [
        (title(row[0]), one_line(row[0].key.table_uri), _cells(row, now, tables.get(row[0].key, ())))
        for row in rows
    ]
    if len(streams) > STYLED_MAX:
        _print_plain(streams)
        return
    shown = console()
    table = _status_table(streams)
    if _width(shown, table) <= shown.width:
        shown.print(table)
        return
    for name, uri, cells in streams:
        print_line(name, style="bold")
        for cell in (_Cell("Address", (uri,)), *cells):
            print_line(f"  {cell.heading:<11}{', '.join(cell.parts)}", style=cell.style)


def _print_plain(streams: Sequence[tuple[str, str, Sequence[_Cell]]]) -> None:
    """Print one line per stream, in columns of equal width."""
    headings = ["Stream", *(cell.heading for cell in streams[0][2])]
    lines = [[f"{name} {uri}", *(", ".join(cell.parts) for cell in cells)] for name, uri, cells in streams]
    widths = [max(map(len, column)) for column in zip(headings, *lines, strict=True)]
    for first, *others in (headings, *lines):
        texts = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        sys.stdout.write("  ".join([first.ljust(widths[0]), *texts]) + "\n")


def _status_table(streams: Sequence[tuple[str, str, Sequence[_Cell]]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("Stream", overflow="fold", min_width=NAME_WIDTH_MIN)
    for cell in streams[0][2]:
        table.add_column(cell.heading, justify="right", no_wrap=True)
    for name, uri, cells in streams:
        texts = [Text("\n".join(cell.parts), cell.style) for cell in cells]
        table.add_row(Text.assemble((name, "bold"), "\n", uri), *texts)
    return table


def _width(shown: Console, table: Table) -> int:
    """Return the width that the table needs if only its first column is folded."""
    wide = shown.options.update(max_width=PIPED_WIDTH)
    first = table.columns[0]
    first.max_width = NAME_WIDTH_MIN
    needed = shown.measure(table, options=wide).maximum
    first.max_width = None
    return needed


def _cells(row: StatusRow, now: datetime, tables: Sequence[StreamStatus]) -> list[_Cell]:
    stream, written, table_status = row
    return [
        _Cell("Last batch", _last_batch(stream, now)),
        _pending(stream, now),
        _Cell("Committed", (f"{stream.committed_rows:,} rows", size(stream.committed_bytes))),
        _tables_cell(tables) if tables else _table_cell(written, table_status),
    ]


def _tables_cell(tables: Sequence[StreamStatus]) -> _Cell:
    parked = sum(table.delivery.parked_at is not None for table in tables)
    parts = (count(len(tables), "table"), *([f"{parked:,} parked"] if parked else []))
    return _Cell("Table", parts, "red" if parked else "")


def _last_batch(stream: StreamStatus, now: datetime) -> Sequence[str]:
    if stream.last is None:
        return ("none",)
    moment = stream.last.finished_at or stream.last.prepared_at
    return str(stream.last.batch.batch_id), stream.last.state.value, f"{age(now - moment)} ago"


def _pending(stream: StreamStatus, now: datetime) -> _Cell:
    """Batches that are prepared and not committed yet."""
    if not stream.pending or stream.oldest_pending_at is None:
        return _Cell("Pending", ("0",))
    parts = (
        count(stream.pending, "batch", "es"),
        f"{stream.backlog.rows:,} rows",
        f"for {age(now - stream.oldest_pending_at)}",
    )
    return _Cell("Pending", parts, "yellow")


def _table_cell(written: WrittenTable | None, table_status: Mapping[str, Any] | None) -> _Cell:
    parts, style = ["-" if written is None else f"version {written.table_version}"], ""
    if table_status is not None:
        version, batch_id = table_status["version"], table_status["token_batch_id"]
        parts.append(f"now {'missing' if version is None else version}")
        parts.append(f"token {'none' if batch_id is None else batch_id}")
        if table_status["problem"]:
            parts.append("changed")
            style = "red"
    return _Cell("Table", parts, style)


def status_json(
    stream: StreamStatus, written: WrittenTable | None, table_status: Mapping[str, Any] | None, now: datetime
) -> dict[str, Any]:
    oldest = stream.oldest_pending_at
    return {
        **stream_json(stream),
        **({"routes_of": query} if (query := routes_of(stream.settings)) else {}),
        "created_at": time_text(stream.created_at),
        "last_batch": None if stream.last is None else record_json(stream.last),
        "pending": stream.pending,
        "oldest_pending_at": time_text(oldest),
        "oldest_pending_s": seconds_since(oldest, now),
        "committed_batches": stream.committed_batches,
        "committed_rows": stream.committed_rows,
        "committed_bytes": stream.committed_bytes,
        "table_id": None if written is None else written.table_id,
        **version_json("table_version", None if written is None else written.table_version),
        **({} if table_status is None else {"table": dict(table_status)}),
    }


def print_waiting_letters(stream: StreamStatus) -> None:
    if waiting := stream.dead_letters_waiting:
        print_line(
            f"{title(stream)}: {count(waiting, 'dead letter')} not in the dead-letter table yet. To see "
            "them: penstock dead-letters list",
            style="yellow",
        )


def skipped_json(stream: StreamStatus) -> dict[str, Any]:
    skipped = stream.skipped
    return {
        "batches": list(skipped.batch_ids),
        "rows": skipped.rows,
        "unacknowledged": list(skipped.unacknowledged),
    }


def print_skipped(stream: StreamStatus) -> None:
    if left := stream.skipped.unacknowledged:
        batches = ", ".join(map(str, left))
        query_id = stream.key.query_id
        print_line(
            f"{title(stream)}: {count(len(left), 'skipped batch', 'es')} ({batches}) not acknowledged. Their "
            f"rows: penstock dead-letters show {query_id} --code skipped. To acknowledge them: penstock "
            f"acknowledge {query_id}",
            style="yellow",
        )


def table_status_json(status: TableStatus) -> dict[str, Any]:
    """Return the current state of the table, and the stream's token in it."""
    now, token = status.now, status.token
    return {
        "id": None if now is None else now.table_id,
        **version_json("version", None if now is None else now.version),
        "token_batch_id": None if token is None else token.batch_id,
        "token_digest": None if token is None else token.digest,
        "problem": status.problem or None,
    }
