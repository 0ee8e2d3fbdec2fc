"""Output of `penstock status` about the deliveries of a stream."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from ..committers.store.status import StreamStatus
from ..delivery.statistics import DeliveryStatistics, Quantiles
from ..operating.formatting import seconds_text
from . import output


def delivery_json(
    stream: StreamStatus, statistics: DeliveryStatistics | None, now: datetime
) -> dict[str, Any] | None:
    """Return the deliveries as JSON with fixed keys; None for a coupled stream."""
    if statistics is None:
        return None
    state, backlog, last = stream.delivery, stream.backlog, statistics.last
    return {
        "backlog_batches": backlog.batches,
        "backlog_files": backlog.files,
        "backlog_rows": backlog.rows,
        "backlog_bytes": backlog.size_bytes,
        "backlog_s": output.seconds_since(backlog.oldest_prepared_at, now),
        "waiting_since": output.time_text(stream.waiting_since),
        "parked_at": output.time_text(state.parked_at),
        "parked_by": state.parked_by or None,
        "parked_why": state.parked_why or None,
        "tries": state.tries,
        "retry_at": output.time_text(state.retry_at),
        "error": state.error or None,
        "deliveries": statistics.deliveries,
        **_quantiles_json("freshness", statistics.freshness),
        **_quantiles_json("event_freshness", statistics.event_freshness),
        "rows_per_s": None if statistics.rows_per_s is None else round(statistics.rows_per_s, 3),
        "last_delivery_at": output.time_text(None if last is None else last.finished_at),
        "last_delivery_trigger": None if last is None else last.trigger,
    }


def _quantiles_json(name: str, quantiles: Quantiles | None) -> dict[str, float | None]:
    return {
        f"{name}_p50_s": None if quantiles is None else round(quantiles.p50, 3),
        f"{name}_p95_s": None if quantiles is None else round(quantiles.p95, 3),
    }


def print_delivery(stream: StreamStatus, statistics: DeliveryStatistics, now: datetime) -> None:
    """Print backlog, statistics and errors below the table of streams."""
    output.print_line(f"Delivery of {output.title(stream)}", style="bold")
    for label, text, style in _lines(stream, statistics, now):
        output.print_line(f"  {label:<11}{text}", style=style)


def _lines(stream: StreamStatus, statistics: DeliveryStatistics, now: datetime) -> list[tuple[str, str, str]]:
    state = stream.delivery
    lines = [("Backlog", _backlog(stream, now), "")]
    if statistics.last is not None:
        lines += _statistics_lines(statistics, now)
    if stream.waiting_since is not None:
        lines.append(("Waiting", f"the query, for {output.age(now - stream.waiting_since)}", "yellow"))
    if state.parked_at is not None:
        who = f" by {state.parked_by}" if state.parked_by else ""
        since = output.age(now - state.parked_at)
        lines.append(("Parked", f"for {since}{who}: {state.parked_why}", "red"))
    if state.error:
        lines.append(("Error", state.error, "red"))
        if state.tries:
            again = "" if state.retry_at is None else f", next {_in(state.retry_at - now)}"
            lines.append(("", f"{output.count(state.tries, 'failure')} in a row{again}", "red"))
    return lines


def _backlog(stream: StreamStatus, now: datetime) -> str:
    backlog = stream.backlog
    if not backlog.batches or backlog.oldest_prepared_at is None:
        return "none"
    waited = output.age(now - backlog.oldest_prepared_at)
    return (
        f"{output.count(backlog.batches, 'batch', 'es')}, {backlog.rows:,} rows, "
        f"{output.size(backlog.size_bytes)}, for {waited}"
    )


def _statistics_lines(statistics: DeliveryStatistics, now: datetime) -> list[tuple[str, str, str]]:
    lines = []
    for label, quantiles, what in (
        ("Freshness", statistics.freshness, "from prepared to readable"),
        ("", statistics.event_freshness, "from event to readable"),
    ):
        if quantiles is not None:
            lines.append(
                (label, f"p50 {seconds_text(quantiles.p50)}, p95 {seconds_text(quantiles.p95)} {what}", "")
            )
    rate = "" if statistics.rows_per_s is None else f"{statistics.rows_per_s:,.1f} rows/s, "
    last = statistics.last
    lines.append(("Rate", f"{rate}{output.count(statistics.deliveries, 'commit')}", ""))
    if last is not None and last.finished_at is not None:
        lines.append(("Last", f"{output.age(now - last.finished_at)} ago, triggered by {last.trigger}", ""))
    return lines


def _in(duration: timedelta) -> str:
    return f"in {output.age(duration)}" if duration > timedelta(0) else "now"
