"""Plots the batches of one or two streams from the manifest store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import floor, log10
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

if TYPE_CHECKING:
    from notebooks.store import Batch

ALARM, DEEP, GREY = "#c0392b", "#1b4f72", "#5d6d7e"
BARS = ("#7fb3d5", "#b9aed9")
LINES = ("#1f618d", "#7d3c98")
BAR_WIDTH = 0.8
TABLES = {"Delta": "a Delta table", "Iceberg": "an Iceberg table"}

Streams = Mapping[str, "Sequence[Batch]"]


def plot_batches(streams: Streams) -> Figure:
    """Plot rows and commit time of every batch, and mark the restarts of the driver.

    Args:
        streams: COMMITTED batches of the same source in ascending order, keyed by table format, for one or
            two streams. A change of the run id is a restart.
    """
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    figure = Figure(figsize=(11, 6), dpi=130, layout=layout, facecolor="white")
    rows, times = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    restarts = _restarts(streams)
    _draw_rows(rows, streams, restarts)
    _draw_commit_times(times, streams, restarts)
    for axes in (rows, times):
        clean(axes)
        if len(streams) > 1:
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, labelcolor=GREY)
    batches, tables = next(iter(streams.values())), " and ".join(TABLES[name] for name in streams)
    figure.suptitle(
        f"{sum(batch.rows for batch in batches):,} flights into {tables}, "
        f"{len(batches)} batches, every row once",
        x=0.01,
        ha="left",
        fontsize=14,
        fontweight="bold",
        color=DEEP,
    )
    return figure


def _restarts(streams: Streams) -> dict[int, list[float]]:
    """Return the seconds from PREPARED to COMMITTED in each stream, for batches finished after a restart."""
    restarts: dict[int, list[float]] = {}
    for batches in streams.values():
        for before, after in pairwise(batches):
            if before.run_id != after.run_id:
                restarts.setdefault(before.batch_id, []).append(_commit_s(before))
    return restarts


def _draw_rows(axes: Axes, streams: Streams, restarts: Mapping[int, Sequence[float]]) -> None:
    width, batches_max, top = BAR_WIDTH / len(streams), 0, 0
    for position, (name, batches) in enumerate(streams.items()):
        shift = width * (position - (len(streams) - 1) / 2)
        bars = axes.bar(
            [batch.batch_id + shift for batch in batches],
            [batch.rows for batch in batches],
            width=width,
            color=BARS[position],
            label=name,
        )
        for bar, batch in zip(bars, batches, strict=True):
            if batch.batch_id in restarts:
                bar.set_color(ALARM)
        batches_max = max(batches_max, len(batches))
        top = max(top, *(batch.rows for batch in batches))
    axes.set_ylim(0, top * (1.28 if restarts else 1.08))
    axes.set_title("Rows per batch", loc="left", fontsize=10.5, color=GREY)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    for batch_id, seconds in restarts.items():
        on_the_left = batch_id > batches_max / 2
        axes.vlines(batch_id, 0, top * 1.26, color=ALARM, linewidth=1.2)
        axes.annotate(
            f"Driver killed while batch {batch_id} was PREPARED.\n"
            f"The restarted driver committed it {_joined(seconds)} later.",
            xy=(batch_id, top * 1.26),
            xytext=(-7 if on_the_left else 7, 2),
            textcoords="offset points",
            ha="right" if on_the_left else "left",
            va="top",
            color=ALARM,
            fontsize=10,
            linespacing=1.4,
        )


def _draw_commit_times(axes: Axes, streams: Streams, restarts: Mapping[int, Sequence[float]]) -> None:
    """The scale is logarithmic, because a batch that waits for the restart takes a thousand times as long."""
    for position, (name, batches) in enumerate(streams.items()):
        axes.plot(
            [batch.batch_id for batch in batches],
            [_commit_s(batch) for batch in batches],
            color=LINES[position],
            linewidth=1.5,
            marker="o",
            markersize=3.5,
            label=name,
        )
        axes.set_xlim(-0.8, len(batches) - 0.2)
    axes.set_yscale("log")
    fastest_s = min(_commit_s(batch) for batches in streams.values() for batch in batches)
    axes.set_ylim(bottom=10 ** floor(log10(fastest_s)))  # to have at least two ticks
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title("Commit time: from PREPARED to COMMITTED", loc="left", fontsize=10.5, color=GREY)
    axes.set_xlabel("batch", color=GREY)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, steps=[1, 2, 5, 10]))
    for batch_id in restarts:
        axes.axvspan(batch_id - 0.4, batch_id + 0.4, color=ALARM, alpha=0.15, linewidth=0)


def _short(seconds: float) -> str:
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


def clean(axes: Axes) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#c8d0d6")
    axes.grid(axis="y", color="#e5e9ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=GREY, labelsize=9)


def _joined(seconds: Sequence[float]) -> str:
    return " and ".join(f"{one:.1f} s" for one in seconds)


def _commit_s(batch: Batch) -> float:
    assert batch.finished_at is not None, f"batch {batch.batch_id} is {batch.state}"
    return (batch.finished_at - batch.prepared_at).total_seconds()
