"""`penstock.plot`: the recent history of a query as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from ..committers.errors import ConfigurationError
from .operations import history
from .records import BatchRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(
    stream: str | None = None, store: str | None = None, *, checkpoint: str | None = None, limit: int = 200
) -> Figure:
    """Draw the rows of the newest batches, how long each waited for its commit, and how many waited.

    A notebook shows the picture; `savefig` writes it to a file. A query with several tables has a line for
    each.

    Args:
        stream: see `history`
        store: see `history`
        checkpoint: see `history`
        limit: number of batches for each table

    Returns:
        a figure of matplotlib, which has to be installed

    Raises:
        ConfigurationError: matplotlib is missing, there is no such store or query, or it has no batches.
        RetryableError: the store does not answer.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise ConfigurationError("penstock.plot needs matplotlib: pip install matplotlib") from None
    batches = history(stream, store, checkpoint=checkpoint, limit=limit).batches
    if not batches:
        raise ConfigurationError("penstock.plot: the query has no batches yet.")
    figure = Figure(figsize=(9, 6), layout="constrained")
    rows, seconds, waiting = figure.subplots(3, 1, sharex=True)
    for table in dict.fromkeys(batch.table for batch in batches):
        own = [batch for batch in reversed(batches) if batch.table == table]
        done = [batch for batch in own if batch.finished_at is not None]
        prepared = [batch.prepared_at for batch in own]
        rows.step(prepared, [batch.rows for batch in own], where="post", label=table)
        seconds.plot([batch.prepared_at for batch in done], [batch.commit_s for batch in done], marker=".")
        waiting.step(*waiting_over_time(own), where="post")
    rows.set_ylabel("rows of a batch")
    seconds.set_ylabel("seconds until\nit was committed")
    waiting.set_ylabel("batches that wait")
    for axes in (rows, seconds, waiting):
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    waiting.yaxis.set_major_locator(MaxNLocator(integer=True))
    rows.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    figure.autofmt_xdate()
    return figure


def waiting_over_time(batches: Sequence[BatchRecord]) -> tuple[list[datetime], list[int]]:
    """Return the times at which the number of batches that wait for their commit changes, and the number."""
    changes = [(batch.prepared_at, 1) for batch in batches]
    changes += [(batch.finished_at, -1) for batch in batches if batch.finished_at is not None]
    times, counts = list[datetime](), list[int]()
    for moment, change in sorted(changes):
        times.append(moment)
        counts.append((counts[-1] if counts else 0) + change)
    return times, counts
