"""The plot of a stream's batches, from what the manifest store knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from penstock.committers.contract import ManifestRecord

WATER, DEEP, ALARM, GREY = "#7fb3d5", "#1b4f72", "#c0392b", "#5d6d7e"


def plot_batches(batches: Sequence[ManifestRecord]) -> Figure:
    """Rows and commit time of every batch, with a mark where the driver was killed and started again.

    Args:
        batches: COMMITTED ones, in ascending order. Another run id than before is a restart.
    """
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    figure = Figure(figsize=(11, 6), dpi=130, layout=layout, facecolor="white")
    rows, times = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    restarts = [before for before, after in pairwise(batches) if before.run_id != after.run_id]
    _draw_rows(rows, batches, restarts)
    _draw_commit_times(times, batches, restarts)
    for axes in (rows, times):
        _clean(axes)
    total = sum(batch.rows for batch in batches)
    figure.suptitle(
        f"{total:,} flights into a Delta table in {len(batches)} batches, every row once",
        x=0.01,
        ha="left",
        fontsize=14,
        fontweight="bold",
        color=DEEP,
    )
    return figure


def _draw_rows(axes: Axes, batches: Sequence[ManifestRecord], restarts: Sequence[ManifestRecord]) -> None:
    killed = {batch.batch.batch_id for batch in restarts}
    axes.bar(
        [batch.batch.batch_id for batch in batches],
        [batch.rows for batch in batches],
        width=0.8,
        color=[ALARM if batch.batch.batch_id in killed else WATER for batch in batches],
    )
    top = max(batch.rows for batch in batches)
    axes.set_ylim(0, top * (1.28 if restarts else 1.08))
    axes.set_title("Rows per batch", loc="left", fontsize=10.5, color=GREY)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    for batch in restarts:
        batch_id = batch.batch.batch_id
        on_the_left = batch_id > len(batches) / 2
        axes.vlines(batch_id, batch.rows, top * 1.26, color=ALARM, linewidth=1.2)
        axes.annotate(
            f"Driver killed while batch {batch_id} was PREPARED.\n"
            f"The restarted driver committed it {_commit_s(batch):.1f} s later.",
            xy=(batch_id, top * 1.26),
            xytext=(-7 if on_the_left else 7, 2),
            textcoords="offset points",
            ha="right" if on_the_left else "left",
            va="top",
            color=ALARM,
            fontsize=10,
            linespacing=1.4,
        )


def _draw_commit_times(
    axes: Axes, batches: Sequence[ManifestRecord], restarts: Sequence[ManifestRecord]
) -> None:
    """The killed batch took seconds: it is marked and left out, or the others would lie on the axis."""
    times_ms = [float("nan") if batch in restarts else _commit_s(batch) * 1000 for batch in batches]
    axes.plot(
        [batch.batch.batch_id for batch in batches],
        times_ms,
        color=DEEP,
        linewidth=1.5,
        marker="o",
        markersize=3.5,
    )
    axes.set_ylim(0, 1.15 * max(time_ms for time_ms in times_ms if time_ms == time_ms))
    axes.set_title(
        "Commit time: from PREPARED to COMMITTED, milliseconds", loc="left", fontsize=10.5, color=GREY
    )
    axes.set_xlabel("batch", color=GREY)
    axes.set_xlim(-0.8, len(batches) - 0.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, steps=[1, 2, 5, 10]))
    for batch in restarts:
        batch_id = batch.batch.batch_id
        axes.axvspan(batch_id - 0.4, batch_id + 0.4, color=ALARM, alpha=0.15, linewidth=0)
        axes.annotate(
            f"{_commit_s(batch):.1f} s",
            xy=(batch_id + 0.4, 0.92),
            xycoords=axes.get_xaxis_transform(),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=ALARM,
            fontsize=10,
        )


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#c8d0d6")
    axes.grid(axis="y", color="#e5e9ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=GREY, labelsize=9)


def _commit_s(batch: ManifestRecord) -> float:
    assert batch.finished_at is not None, f"batch {batch.batch.batch_id} is {batch.state.value}"
    return (batch.finished_at - batch.prepared_at).total_seconds()
