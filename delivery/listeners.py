"""Progress output of the delivery process: log lines, JSON, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from ..committers.contract import Committed
from ..committers.errors import PenstockError
from ..committers.store.selection import short_id
from ..committers.store.status import StreamStatus
from ..committers.store.urls import displayed_url
from ..committers.texts.safe_text import get_logger
from .attempts import DeliveryListener, DeliveryReport

logger = get_logger("penstock.delivery")


LOOPBACK = "127.0.0.1"
"""Default address of the metrics, which have no password and contain names of tables and queries."""


def name_of(stream: StreamStatus) -> str:
    return f"{stream.query_name or '(no name)'} {short_id(stream.key.query_id)}"


class LogListener(DeliveryListener):
    """Log deliveries and errors, one line each."""

    def on_delivery(self, report: DeliveryReport) -> None:
        fields = delivery_report_json(report)
        files = f"{fields['files']:,}"
        if fields["source_files"]:
            files = f"{fields['source_files']:,} -> {files}"
        logger.info(
            "%s: delivered batches %d..%d, %s rows, %s files, by %s, in %.1f s, version %s",
            name_of(report.stream),
            fields["first_batch_id"],
            fields["last_batch_id"],
            f"{fields['rows']:,}",
            files,
            fields["trigger"],
            report.seconds,
            fields["table_version"],
        )

    def on_failure(self, stream: StreamStatus, error: Exception, wait_s: float | None) -> None:
        name = name_of(stream)
        if not isinstance(error, PenstockError):
            logger.error("%s: unexpected error, next attempt %s", name, _in(wait_s), exc_info=error)
        elif wait_s is None:
            logger.error("%s: parked until `penstock retry`: %s", name, error)
        else:
            logger.warning("%s: not delivered, next attempt %s: %s", name, _in(wait_s), error)


class LastError(DeliveryListener):
    """Keep the newest error: of a delivery until the next successful one, of a store until it answers again.

    Args:
        on_change: called with the new error, and with None when a store is read for the first time
    """

    def __init__(self, on_change: Callable[[Exception | None], None] = lambda error: None) -> None:
        self.error: Exception | None = None
        self._on_change = on_change
        self._has_read = False
        self._of_delivery: Exception | None = None
        self._of_stores: dict[str, Exception] = {}

    def on_poll(self, store: str, streams: Sequence[StreamStatus], now: datetime) -> None:
        self._of_stores.pop(store, None)
        self._update(is_first=not self._has_read)
        self._has_read = True

    def on_store_failure(self, store: str, error: Exception) -> None:
        self._of_stores[store] = error
        self._update()

    def on_delivery(self, report: DeliveryReport) -> None:
        self._of_delivery = None
        self._update()

    def on_failure(self, stream: StreamStatus, error: Exception, wait_s: float | None) -> None:
        self._of_delivery = error
        self._update()

    def _update(self, *, is_first: bool = False) -> None:
        error = next(iter(self._of_stores.values()), self._of_delivery)
        if is_first or error is not self.error:
            self.error = error
            self._on_change(error)


def _in(wait_s: float | None) -> str:
    return f"in {wait_s:.1f} s" if wait_s else "at once"


@contextmanager
def with_metrics(
    all_listeners: Sequence[DeliveryListener],
    port: int | None,
    address: str,
    stores: Sequence[str],
    *,
    delivers: bool = True,
) -> Iterator[list[DeliveryListener]]:
    """Yield these listeners and, if there is a port, one that serves Prometheus metrics.

    Args:
        stores: URLs of the stores
        delivers: see `Metrics`

    Raises:
        ConfigurationError: the port is not available, or a URL is not valid.
    """
    if port is None:
        yield list(all_listeners)
        return
    from .metrics import Metrics
    from .metrics_server import serve_metrics

    metrics = Metrics([displayed_url(url) for url in stores], delivers=delivers)
    port, end = serve_metrics(port, address, metrics.registry)
    host = f"[{address}]" if ":" in address else address
    logger.info("Metrics are served at http://%s:%d/metrics", host, port)
    try:
        yield [*all_listeners, metrics]
    finally:
        end()


def delivery_report_json(report: DeliveryReport) -> dict[str, Any]:
    """Return one delivery as JSON with fixed keys."""
    delivery, outcome = report.delivered.delivery, report.delivered.outcome
    batches, requests = delivery.manifest.batches, report.requests
    return {
        "query_name": report.stream.query_name,
        "query_id": report.stream.key.query_id,
        "table_uri": report.stream.key.table_uri,
        "first_batch_id": batches[0].batch_id,
        "last_batch_id": batches[-1].batch_id,
        "batches": len(batches),
        "rows": delivery.manifest.rows,
        "dropped_rows": outcome.dropped_rows,
        "replaced_rows": outcome.replaced_rows if isinstance(outcome, Committed) else 0,
        "sent_rows": sum(one.sent for one in requests),
        "retried_rows": sum(one.retried for one in requests),
        "requests": sum(one.requests for one in requests),
        "throttled_requests": sum(one.throttled_requests for one in requests),
        "timed_out_requests": sum(one.timed_out_requests for one in requests),
        "in_flight_rows_max": round(requests[-1].in_flight_max, 3) if requests else None,
        "dead_letters": report.dead_letters,
        "dead_letters_waiting": report.dead_letters_waiting,
        "source_files": report.delivered.source_files,
        "files": delivery.manifest.files,
        "size_bytes": delivery.manifest.size_bytes,
        "trigger": delivery.trigger,
        "seconds": round(report.seconds, 3),
        **version_json("table_version", outcome.table_version),
    }


def version_json(name: str, version: int | None) -> dict[str, int | str | None]:
    """Return a table version as a number and as a string: jq and JavaScript round Iceberg's snapshot ids."""
    return {name: version, f"{name}_text": None if version is None else str(version)}
