"""`penstock history`: the newest batches and deliveries of one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .common import opened_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...committers.contract import ManifestRecord
    from ...committers.store.delivery_queries import DeliveryRecord

WIDE = 110
"""Columns of a terminal in which the times of the steps of each batch are shown, too."""
_STEPS = ("Write", "Prepare", "Commit")


def history(
    stream: options.OfQuery,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of batches, and of deliveries.")] = 20,
    as_json: options.Json = False,
) -> None:
    """List the newest batches of a stream and, for a decoupled stream, its newest deliveries.

    The name of a fan-out lists those of each target.

    Example: `penstock history flights --checkpoint /checkpoints/flights`
    """
    from ...committers.store.selection import select_query
    from .. import output

    with opened_store(checkpoint, store) as opened:
        found = [
            (one, opened.history(one.key, limit), opened.deliveries.recent(one.key, limit))
            for one in select_query(opened.streams(), stream)
        ]
    if as_json:
        listed = [
            {
                **output.stream_json(one),
                "batches": [output.record_json(batch) for batch in batches],
                "deliveries": [_delivery_json(delivery) for delivery in deliveries],
            }
            for one, batches, deliveries in found
        ]
        output.print_json(listed[0] if len(listed) == 1 else {"streams": listed})
        return
    for one, batches, deliveries in found:
        if len(found) > 1:
            output.print_line(f"{output.title(one)} -> {one.key.table_uri}", style="bold")
        _print(batches, deliveries)


def _print(batches: Sequence[ManifestRecord], deliveries: Sequence[DeliveryRecord]) -> None:
    from ...operating.formatting import short_seconds
    from .. import output

    is_wide = output.console().width >= WIDE
    headings = ["Batch", "State", "Rows", "Files", "Size", "Prepared", "Finished"]
    table = output.table(*headings, *(_STEPS if is_wide else ()), left=("State",))
    for batch in batches:
        times = [_second(output.time_text(moment)) for moment in (batch.prepared_at, batch.finished_at)]
        row = (str(batch.batch.batch_id), batch.shown_state, f"{batch.rows:,}", f"{batch.files:,}")
        lasted = [short_seconds(one) for one in (batch.write_s, batch.prepare_s, batch.commit_s)]
        table.add_row(*row, output.size(batch.size_bytes), *times, *(lasted if is_wide else ()))
    output.console().print(table)
    for delivery in deliveries:
        version = "" if delivery.table_version is None else f"version {delivery.table_version}, "
        output.print_line(
            f"Delivery of batches {delivery.first_batch_id} to {delivery.last_batch_id}: "
            f"{delivery.phase.value}, {delivery.rows:,} rows, "
            f"{delivery.source_files:,} -> {delivery.files:,} files, by {delivery.trigger}, {version}"
            f"{_second(output.time_text(delivery.finished_at or delivery.prepared_at))}"
        )


def _second(time: str | None) -> str:
    """Without the year, fractions and the time zone, which is UTC: it fits 80 columns."""
    return "-" if time is None else time[5:19].replace("T", " ")


def _delivery_json(delivery: DeliveryRecord) -> dict[str, Any]:
    from ...delivery.listeners import version_json
    from ..output import rounded, time_text

    return {
        "first_batch_id": delivery.first_batch_id,
        "last_batch_id": delivery.last_batch_id,
        "batches": delivery.batches,
        "state": delivery.phase.value,
        "trigger": delivery.trigger,
        "rows": delivery.rows,
        "source_files": delivery.source_files,
        "files": delivery.files,
        "size_bytes": delivery.size_bytes,
        "prepared_at": time_text(delivery.prepared_at),
        "finished_at": time_text(delivery.finished_at),
        "waited_s": rounded(delivery.waited_s),
        "commit_s": rounded(delivery.commit_s),
        **version_json("table_version", delivery.table_version),
        "reason": delivery.reason,
    }
