"""What the page of a stream shows, computed from what the store knows of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from ..committers.contract import ManifestRecord, ManifestState
from ..committers.store.delivery_queries import DeliveryPhase, DeliveryRecord
from ..operating.formatting import count, seconds_text, short_seconds
from ..operating.overview import Details
from ..operating.plotting import waiting_over_time
from ..operating.records import BatchRecord, DeliveredRecord
from .charts import Column, Span, columns, steps, timeline
from .commands import Commands


@dataclass(frozen=True, slots=True)
class Remedy:
    """What an operator can do: a command and, if the page allows it, a form."""

    label: str
    command: str
    action: str = ""
    """Of the form; empty: only by the command."""
    batch_id: int | None = None
    needs_reason: bool = False
    warning: str = ""
    path: str = ""
    """Of a page of the stream that shows it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that needs attention."""

    css: str
    title: str
    error: str = ""
    """Message of a program."""
    note: str = ""
    remedies: Sequence[Remedy] = ()


@dataclass(frozen=True, slots=True)
class BatchRow:
    record: BatchRecord
    bar: Markup


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    record: DeliveredRecord
    bar: Markup


@dataclass(frozen=True, slots=True)
class Charts:
    rows: Markup
    rows_max: int
    seconds: Markup
    seconds_max: float
    waiting: Markup
    waiting_max: int
    batches: int
    since: datetime
    until: datetime


def batch_rows(details: Details, now: datetime) -> list[BatchRow]:
    """Return the batches, newest first, each with its bar in a common timeline."""
    batches = details.batches
    if not batches:
        return []
    start = min(one.planned_at or one.prepared_at for one in batches)
    end = max([_end(one, now) for one in batches])
    return [
        BatchRow(BatchRecord.of(details.status, one), timeline(_spans(one, now), start, end))
        for one in batches
    ]


def _spans(batch: ManifestRecord, now: datetime) -> Iterator[Span]:
    if batch.planned_at is not None and batch.written_at is not None:
        yield Span(batch.planned_at, batch.written_at, "write", f"{short_seconds(batch.write_s)} write")
        yield Span(
            batch.written_at, batch.prepared_at, "prepare", f"{short_seconds(batch.prepare_s)} prepare"
        )
    end = _end(batch, now)
    waited = max((end - batch.prepared_at).total_seconds(), 0.0)
    yield Span(batch.prepared_at, end, _css(batch), f"{short_seconds(waited)} from prepared on")


def delivery_rows(details: Details, now: datetime) -> list[DeliveryRow]:
    """Return the deliveries, newest first, each with its bar in a common timeline."""
    deliveries = details.deliveries
    if not deliveries:
        return []
    start = min(one.oldest_prepared_at for one in deliveries)
    end = max(one.finished_at or now for one in deliveries)
    rows = []
    for one in deliveries:
        spans = [
            Span(one.oldest_prepared_at, one.prepared_at, "wait", f"{short_seconds(one.waited_s)} waiting"),
            Span(
                one.prepared_at,
                one.finished_at or now,
                _css_of_delivery(one),
                f"{short_seconds(one.commit_s)} commit",
            ),
        ]
        record = DeliveredRecord.of(details.status, one)
        rows.append(DeliveryRow(record, timeline(spans, start, end)))
    return rows


def charts(details: Details, batches: Sequence[ManifestRecord], now: datetime) -> Charts | None:
    """Return the charts of the newest batches; None if there are none.

    Args:
        batches: newest first
    """
    if not batches:
        return None
    oldest_first = list(reversed(batches))
    done = [one for one in oldest_first if one.state is ManifestState.COMMITTED]
    seconds = [one.commit_s or 0.0 for one in done]
    times, counts = waiting_over_time([BatchRecord.of(details.status, one) for one in oldest_first])
    older = max(details.status.pending - (counts[-1] if counts else 0), 0)
    """Batches that wait and are older than all of these."""
    counts = [one + older for one in counts]
    return Charts(
        columns(
            [
                Column(one.rows, _css(one), f"batch {one.batch.batch_id}: {count(one.rows, 'row')}")
                for one in oldest_first
            ],
            "Rows of each batch",
        ),
        max(one.rows for one in batches),
        columns(
            [
                Column(took, _css(one), f"batch {one.batch.batch_id}: {seconds_text(took)}")
                for one, took in zip(done, seconds, strict=True)
            ],
            "Seconds from prepared to readable of each batch",
        ),
        max(seconds, default=0.0),
        steps(times, counts, now, "Batches that wait, over time"),
        max(counts, default=0),
        len(batches),
        oldest_first[0].prepared_at,
        now,
    )


def _end(batch: ManifestRecord, now: datetime) -> datetime:
    return batch.finished_at or now


def _css(batch: ManifestRecord) -> str:
    if batch.state is ManifestState.COMMITTED:
        return "done"
    return "waiting" if batch.state is ManifestState.PREPARED else "given-up"


def _css_of_delivery(delivery: DeliveryRecord) -> str:
    if delivery.phase is DeliveryPhase.COMMITTED:
        return "done"
    return "waiting" if delivery.phase is DeliveryPhase.PREPARED else "given-up"


# Problems -------------------------------------------------------------------------------------------


def problems(details: Details, commands: Commands, now: datetime) -> list[Problem]:
    """Return what needs attention, the most urgent first, each with what resolves it."""
    return [*_of_delivery(details, commands, now), *_of_rows(details, commands)]


def _of_delivery(details: Details, commands: Commands, now: datetime) -> Iterator[Problem]:
    status, state = details.status, details.status.delivery
    retry = Remedy("Deliver again", commands.retry(), "retry")
    first = details.pending[0].batch.batch_id if details.pending else None
    looking = [] if first is None else [_see(commands, first)]
    skip = [] if first is None else [_skip(commands, first)]
    if state.parked_at is not None:
        who = f" by {state.parked_by}" if state.parked_by else ""
        title = f"Parked{who}: nothing is delivered until somebody resumes it"
        text = "\n".join(one for one in (state.parked_why, _error(state.error, state.parked_why)) if one)
        yield Problem("parked", title, text, "", [retry, *looking, *skip])
    elif state.tries:
        again = "" if state.retry_at is None else f"; the next attempt is at {state.retry_at:%H:%M:%S} UTC"
        title = f"{_failed(state.tries)} in a row{again}"
        park = Remedy("Stop its deliveries", commands.park(), "park", needs_reason=True)
        yield Problem("failing", title, state.error, "", [retry, park, *looking, *skip])
    if status.waiting_since is not None:
        yield Problem(
            "failing",
            "The query waits: its backlog is full",
            note="It fails after backlogWaitSeconds unless batches are delivered.",
        )
    if details.statistics is None and status.pending:
        reason = details.pending[0].reason if details.pending else ""
        yield Problem(
            "pending",
            f"{count(status.pending, 'batch', 'es')} prepared and not committed",
            reason,
            "The query is between prepare and commit, or it stopped there. Its next start commits them.",
            [Remedy("Commit now", commands.recover(), "recover")],
        )


def _failed(tries: int) -> str:
    return f"{tries:,} failed {'delivery' if tries == 1 else 'deliveries'}"


def _error(error: str, why: str) -> str:
    return "" if error in why else error


def _see(commands: Commands, batch_id: int) -> Remedy:
    return Remedy(f"See batch {batch_id}", commands.show(batch_id), path=f"batches/{batch_id}")


def _skip(commands: Commands, batch_id: int) -> Remedy:
    return Remedy(
        f"Give up batch {batch_id}",
        commands.skip(batch_id),
        "skip",
        batch_id,
        needs_reason=True,
        warning="Its rows are saved as dead letters first, and are not in the table.",
    )


def _of_rows(details: Details, commands: Commands) -> Iterator[Problem]:
    status = details.status
    if left := status.skipped.unacknowledged:
        yield Problem(
            "pending",
            f"{count(len(left), 'skipped batch', 'es')} not acknowledged: {', '.join(map(str, left[:20]))}",
            note="Decide about their rows: send them again once the cause is corrected, or leave them.",
            remedies=[
                Remedy("See their rows", commands.show_letters("--code", "skipped"), path="letters"),
                Remedy("Acknowledge", commands.acknowledge(), "acknowledge"),
            ],
        )
    if status.dead_letters_waiting:
        yield Problem(
            "pending",
            f"{count(status.dead_letters_waiting, 'dead letter')} not in the dead-letter table yet",
            note="They are safe in the store. The next batch, delivery or maintenance writes them.",
            remedies=[Remedy("See them", commands.show_letters(), path="letters")],
        )
