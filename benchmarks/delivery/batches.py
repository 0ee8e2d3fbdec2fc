"""Evaluates the journal of the driver program: a table row for each stream, and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.report import lines

Batch = dict[str, Any]
STREAM_HEADER = (
    "stream",
    "batches",
    "median batch, ms",
    "p95, ms",
    "table commits",
    "files",
    "rows",
    "reads",
)
COLORS = {"coupled": "#c0392b", "decoupled": "#1f618d", "outage": "#7d3c98"}
FIRST_COUNTED = 3
"""Earlier batches start Spark's workers."""


def batches_of(name: str, journal: Sequence[Batch]) -> list[Batch]:
    """Return the counted batches of a stream."""
    return [line for line in journal if line.get("query") == name and line["batch"] >= FIRST_COUNTED]


def stream_row(
    name: str, batches: Sequence[Batch], commits: int, files: int, rows: int, reads: int
) -> Sequence[object]:
    times = sorted(batch["ms"] for batch in batches)
    p95 = times[int(0.95 * (len(times) - 1))]
    return name, len(batches), statistics.median(times), p95, commits, files, rows, reads


def plot(journal: Sequence[Batch]) -> Any:
    start = min(line["time"] for line in journal)
    series = {}
    for name in COLORS:
        if batches := batches_of(name, journal):
            minutes = [(batch["time"] - start) / 60 for batch in batches]
            series[name] = (minutes, [batch["ms"] for batch in batches])
    return lines(series, "minutes", "time of a batch, ms", colors=COLORS)
