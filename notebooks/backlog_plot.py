"""Plots how many rows wait for their delivery to each destination, over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator
from notebooks.batch_plot import ALARM, DEEP, GREY, clean

if TYPE_CHECKING:
    from notebooks.store import Batch

COLORS = ("#1f618d", "#b9770e", "#7d3c98", "#117a65", "#a04000")


def plot_backlogs(
    streams: Mapping[str, Sequence[Batch]],
    outage: tuple[str, datetime, datetime] | None,
    kills: Mapping[str, datetime],
    title: str,
) -> Figure:
    """Plot the backlog of each stream, an outage and the moments of kills.

    Args:
        streams: COMMITTED batches by the name of the destination
        outage: what was down, from when to when; None: nothing was
    """
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, hspace=0.08)
    figure = Figure(figsize=(11, 2 + 1.5 * len(streams)), dpi=130, layout=layout, facecolor="white")
    rows = figure.subplots(len(streams), 1, sharex=True)
    start = min(batch.prepared_at for batches in streams.values() for batch in batches)

    def second(moment: datetime) -> float:
        return (moment - start) / timedelta(seconds=1)

    for axes, color, (name, batches) in zip(rows, COLORS, streams.items(), strict=False):
        times, waiting = _backlog(batches)
        axes.fill_between(
            [second(one) for one in times], waiting, step="post", color=color, alpha=0.85, linewidth=0
        )
        axes.set_title(f"{name}: rows that wait for their delivery", loc="left", fontsize=10.5, color=GREY)
        if outage is not None:
            axes.axvspan(second(outage[1]), second(outage[2]), color=ALARM, alpha=0.1, linewidth=0)
        for moment in kills.values():
            axes.axvline(second(moment), color=ALARM, linewidth=1.2, linestyle="--")
        axes.set_ylim(0)
        axes.set_xlim(0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
        clean(axes)
    marks = [(rows[0], what, moment) for moment, what in _together(kills)]
    if outage is not None:
        marks.append((rows[list(streams).index(outage[0])], f"{outage[0]} is down", outage[1]))
    for axes, what, moment in marks:
        axes.set_ylim(0, axes.dataLim.ymax * 1.3)
        axes.annotate(
            what,
            (second(moment), 1),
            xytext=(4, -4),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            va="top",
            color=ALARM,
            fontsize=9,
        )
    rows[-1].set_xlabel("seconds", color=GREY)
    figure.suptitle(
        title,
        x=0.01,
        ha="left",
        fontsize=14,
        fontweight="bold",
        color=DEEP,
    )
    return figure


def _together(kills: Mapping[str, datetime]) -> list[tuple[datetime, str]]:
    """Return the moments of kills, those within a few seconds as one."""
    moments: list[tuple[datetime, str]] = []
    for what, moment in sorted(kills.items(), key=lambda kill: kill[1]):
        if moments and moment - moments[-1][0] < timedelta(seconds=5):
            moments[-1] = (moments[-1][0], f"{moments[-1][1]}, {what}")
        else:
            moments.append((moment, what))
    return moments


def _backlog(batches: Sequence[Batch]) -> tuple[list[datetime], list[int]]:
    """Return the moments at which the number of waiting rows changes, and that number."""
    changes = [(batch.prepared_at, batch.rows) for batch in batches]
    changes += [(batch.finished_at, -batch.rows) for batch in batches if batch.finished_at is not None]
    changes.sort()
    return [moment for moment, _ in changes], list(accumulate(change for _, change in changes))
