"""`penstock.watch`: a live view of a running query, in a notebook or a terminal."""

from __future__ import annotations

import html
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import import_module
from typing import Any, TextIO

from ..committers.errors import StoreMissingError
from ..datasource.spark.explanation import explain
from .operations import status
from .records import Records, StreamRecord

COLUMNS = ("batch", "rows", "rows/s", "batch time", "committed", "waiting", "age")


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a query at one moment."""

    progress: Mapping[str, Any]
    """Of its last batch, from Spark; empty before the first one."""
    rows: int
    """Of all batches since the start of the view."""
    streams: Records[StreamRecord]
    """Its targets, from the store; none without a store."""
    now: datetime

    def cells(self) -> tuple[str, ...]:
        """Return the values of `COLUMNS`."""
        if not self.progress:
            return ("-",) * len(COLUMNS)
        pending = max((one.pending_batches for one in self.streams), default=0)
        return (
            str(self.progress.get("batchId", "-")),
            f"{self.rows:,}",
            f"{self.progress.get('processedRowsPerSecond') or 0:,.0f}",
            f"{self.progress.get('durationMs', {}).get('triggerExecution', 0) / 1000:.2f} s",
            f"{sum(one.committed_rows for one in self.streams):,}" if self.streams else "-",
            f"{pending:,} batches" if self.streams else "-",
            self._age(),
        )

    def _age(self) -> str:
        """How long the oldest batch has waited for its commit."""
        waiting = [one.oldest_pending_at for one in self.streams if one.oldest_pending_at is not None]
        if not self.streams:
            return "-"
        return f"{(self.now - min(waiting)).total_seconds():.0f} s" if waiting else "0 s"

    @property
    def problems(self) -> list[str]:
        return [f"{one.table}: {one.state}. {one.error}".strip() for one in self.streams if one.error]


def watch(
    query: Any,
    store: str | None = None,
    *,
    checkpoint: str | None = None,
    every: float = 1.0,
    seconds: float | None = None,
) -> None:
    """Show what a query does until it ends: rows, batch time, waiting batches, and how old the oldest is.

    A notebook shows a table that is updated. Elsewhere each change is a line on stdout. Interrupt it to end
    the view; the query goes on. After the end of the query, its error is shown as `explain` tells it.

    Args:
        query: a running `StreamingQuery`, of classic Spark or Spark Connect
        store: SQLAlchemy URL of its store, by default $PENSTOCK_STORE; without one, what is committed and
            what waits is not shown
        checkpoint: instead of `store`: its checkpoint directory, with the store in it
        every: seconds between two looks
        seconds: end the view after this time; by default only with the query

    Raises:
        ConfigurationError: both `store` and `checkpoint` are given, or there is no such directory.
        RetryableError: the store does not answer.
    """
    has_store = bool(store or checkpoint or os.environ.get("PENSTOCK_STORE"))
    shown = _notebook() or Lines(sys.stdout)
    ends_at = None if seconds is None else time.monotonic() + seconds
    last_batch, rows, progress = -1, 0, dict[str, Any]()
    try:
        while True:
            is_active = bool(query.isActive)
            for one in query.recentProgress:
                if one["batchId"] > last_batch:
                    last_batch, progress = one["batchId"], one
                    rows += one["numInputRows"]
            streams = _streams(str(query.id), store, checkpoint) if has_store else Records(StreamRecord, ())
            shown(Seen(progress, rows, streams, datetime.now(timezone.utc)))
            if not is_active or (ends_at is not None and time.monotonic() >= ends_at):
                break
            time.sleep(min(every, max((ends_at or float("inf")) - time.monotonic(), 0)))
    except KeyboardInterrupt:
        return
    if not query.isActive and (why := explain(query)) is not None:
        print(why, file=sys.stderr)  # noqa: T201  for people


def _streams(query_id: str, store: str | None, checkpoint: str | None) -> Records[StreamRecord]:
    try:
        found = [one for one in status(store, checkpoint=checkpoint) if one.query_id == query_id]
    except StoreMissingError:  # until the first batch
        found = []
    return Records(StreamRecord, found)


class Lines:
    """A line for each change.

    Args:
        out: where they are written
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last: tuple[str, ...] = ()

    def __call__(self, seen: Seen) -> None:
        cells = seen.cells()
        if not self._last:
            self._write(COLUMNS)
        if cells[:-1] != self._last[:-1]:
            self._write(cells)
            for problem in seen.problems:
                self._out.write(f"  {problem}\n")
            self._out.flush()
        self._last = cells

    def _write(self, cells: tuple[str, ...]) -> None:
        self._out.write("  ".join(f"{cell:>12}" for cell in cells) + "\n")


def _notebook() -> Callable[[Seen], None] | None:
    """Return what updates a table in the output of a notebook's cell; None elsewhere."""
    try:
        shown: Any = import_module("IPython.display")
    except ImportError:
        return None
    shell = import_module("IPython").get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    handle = shown.display(shown.HTML(""), display_id=True)

    def show(seen: Seen) -> None:
        handle.update(shown.HTML(as_html(seen)))

    return show


def as_html(seen: Seen) -> str:
    """Return the view as a table, with texts as they are."""
    heads = "".join(f"<th>{html.escape(one)}</th>" for one in COLUMNS)
    cells = "".join(f"<td>{html.escape(one)}</td>" for one in seen.cells())
    problems = "".join(f"<p>{html.escape(one)}</p>" for one in seen.problems)
    return f"<table><thead><tr>{heads}</tr></thead><tbody><tr>{cells}</tr></tbody></table>{problems}"
