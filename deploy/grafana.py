"""The Grafana dashboard as code: rows of panels, of which `docs/grafana-dashboard.json` is made.

Each replica of the delivery process serves the metrics that are read from the store, so panels take their
maximum. What a process has delivered itself is added up.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN = '{query_name=~"$query", table=~"$table"}'
STREAM = "{{query_name}} → {{table}}"
WIDTH = 24


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph, or with `steps` a number that is coloured by them."""

    title: str
    description: str
    queries: dict[str, str]
    """PromQL by legend."""
    unit: str = "short"
    steps: tuple[tuple[float, str], ...] = ()
    width: int = 8


def of_store(metric: str) -> str:
    return f"max by (query_name, table) ({metric}{CHOSEN})"


def rate(metric: str) -> str:
    return f"sum by (query_name, table) (rate({metric}{CHOSEN}[$__rate_interval]))"


def committed(unit: str) -> str:
    """A rate of what all processes and queries have committed, which the store counts."""
    return f"max by (query_name, table) (rate(penstock_committed_{unit}_total{CHOSEN}[$__rate_interval]))"


def quantiles(histogram: str) -> dict[str, str]:
    grouped = f"sum by (query_name, table, le) (rate({histogram}_bucket{CHOSEN}[$__rate_interval]))"
    return {f"p{int(q * 100)} {STREAM}": f"histogram_quantile({q}, {grouped})" for q in (0.5, 0.95)}


BAD, GOOD = "red", "green"
NONE_IS_GOOD = ((0, GOOD), (1, BAD))

ROWS: dict[str, tuple[Panel, ...]] = {
    "At a glance": (
        Panel(
            "Store",
            "0: the manifest store cannot be read. Alert PenstockStoreDown.",
            {"": "min(penstock_store_up)"},
            steps=((0, BAD), (1, GOOD)),
            width=4,
        ),
        Panel(
            "Parked",
            "Streams that wait for an operator. Alert PenstockParked.",
            {"": f"sum({of_store('penstock_parked')})"},
            steps=NONE_IS_GOOD,
            width=4,
        ),
        Panel(
            "Queries that wait",
            "Their backlog is full. Alert PenstockQueryWaiting.",
            {"": f"sum({of_store('penstock_query_waiting')})"},
            steps=NONE_IS_GOOD,
            width=4,
        ),
        Panel(
            "Oldest backlog",
            "Age of the oldest batch that is not in its table yet. Alert PenstockBacklogOld.",
            {"": f"max(penstock_backlog_age_seconds{CHOSEN})"},
            "s",
            ((0, GOOD), (600, "orange"), (43200, BAD)),
            4,
        ),
        Panel(
            "Skipped batches",
            "Not acknowledged yet. Alert PenstockSkipped.",
            {"": f"sum({of_store('penstock_skipped_unacknowledged')})"},
            steps=NONE_IS_GOOD,
            width=4,
        ),
        Panel(
            "Rows per second",
            "Into all chosen tables.",
            {"": f"sum({committed('rows')})"},
            "rowsps",
            ((0, "blue"),),
            4,
        ),
    ),
    "Throughput": (
        Panel(
            "Rows into tables",
            "Rows of committed batches, from the store: coupled queries, too.",
            {STREAM: committed("rows")},
            "rowsps",
        ),
        Panel("Bytes into tables", "Bytes of their data files.", {STREAM: committed("bytes")}, "Bps"),
        Panel("Batches into tables", "Committed batches.", {STREAM: committed("batches")}, "ops"),
        Panel(
            "Since the last batch",
            "Time since the query prepared one. Alert PenstockQuerySilent.",
            {STREAM: f"time() - {of_store('penstock_last_prepare_timestamp_seconds')}"},
            "s",
        ),
        Panel(
            "Replaced rows",
            "Not sent, as a later row of the same key replaces them.",
            {STREAM: rate("penstock_replaced_rows_total")},
            "rowsps",
        ),
        Panel(
            "Skipped rows",
            "Rows of batches that operators have skipped.",
            {STREAM: of_store("penstock_skipped_rows_total")},
        ),
    ),
    "Backlog": (
        Panel(
            "Age",
            "Of the oldest batch that is prepared and not in the table yet.",
            {STREAM: of_store("penstock_backlog_age_seconds")},
            "s",
        ),
        Panel(
            "Batches",
            "That are prepared and not in the table yet.",
            {STREAM: of_store("penstock_backlog_batches")},
        ),
        Panel("Bytes", "Of their data files.", {STREAM: of_store("penstock_backlog_bytes")}, "bytes"),
    ),
    "Deliveries": (
        Panel(
            "Freshness",
            "From the prepare of a delivery's oldest batch to the commit. Alert PenstockNotFresh.",
            quantiles("penstock_freshness_seconds"),
            "s",
        ),
        Panel(
            "Freshness of events",
            "From the oldest event time of a delivery to the commit.",
            quantiles("penstock_event_freshness_seconds"),
            "s",
        ),
        Panel(
            "Duration",
            "From choosing the batches to the commit. Alert PenstockDeliveriesSlow.",
            quantiles("penstock_delivery_seconds"),
            "s",
        ),
        Panel(
            "Deliveries",
            "By what triggered them.",
            {
                "{{trigger}} " + STREAM: "sum by (query_name, table, trigger) "
                f"(rate(penstock_deliveries_total{CHOSEN}[$__rate_interval]))"
            },
            "ops",
        ),
        Panel(
            "Rows and batches for each delivery",
            "Few of them: raise deliverAfterSeconds for larger files.",
            {
                "rows "
                + STREAM: f"{rate('penstock_delivered_rows_total')} / {rate('penstock_deliveries_total')}",
                "batches "
                + STREAM: f"{rate('penstock_delivered_batches_total')} / {rate('penstock_deliveries_total')}",
            },
        ),
        Panel(
            "Failures",
            "Attempts that are repeated. Alert PenstockDeliveriesFail.",
            {STREAM: rate("penstock_failures_total")},
            "ops",
        ),
        Panel(
            "Since the last delivery",
            "Alert PenstockNothingDelivered, if a backlog waits.",
            {STREAM: f"time() - {of_store('penstock_last_success_timestamp')}"},
            "s",
        ),
    ),
    "Requests to services": (
        Panel(
            "Rows",
            "Sent, and sent again.",
            {
                "sent " + STREAM: rate("penstock_sent_rows_total"),
                "again " + STREAM: rate("penstock_retried_rows_total"),
            },
            "rowsps",
        ),
        Panel(
            "Requests",
            "All, throttled, and without a response. Alert PenstockThrottled.",
            {
                "all " + STREAM: rate("penstock_requests_total"),
                "throttled " + STREAM: rate("penstock_throttled_requests_total"),
                "timed out " + STREAM: rate("penstock_timed_out_requests_total"),
            },
            "reqps",
        ),
        Panel(
            "Rows in flight at most",
            "As throttled requests have taught.",
            {STREAM: of_store("penstock_in_flight_rows_max")},
        ),
    ),
    "Dead letters": (
        Panel(
            "Refused rows",
            "Alert PenstockDeadLetters.",
            {STREAM: f"max by (query_name, table) (increase(penstock_dead_letters_total{CHOSEN}[$__range]))"},
            width=12,
        ),
        Panel(
            "Waiting in the store",
            "The dead-letter table cannot be written. Alert PenstockDeadLettersWait.",
            {STREAM: of_store("penstock_dead_letters_waiting")},
            width=12,
        ),
    ),
    "Manifest store": (
        Panel(
            "Errors",
            "Failed attempts to read it. Alert PenstockStoreErrors.",
            {"{{store}}": "sum by (store) (rate(penstock_store_errors_total[$__rate_interval]))"},
            "ops",
            width=12,
        ),
        Panel(
            "Since it was read",
            "Alert PenstockStoreStale.",
            {"{{store}}": "time() - max by (store) (penstock_store_last_poll_timestamp_seconds)"},
            "s",
            width=12,
        ),
    ),
}


def variable(name: str, label: str, of: str) -> dict[str, Any]:
    query = f"label_values(penstock_parked, {of})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATA_SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def dashboard() -> dict[str, Any]:
    """Return the model that Grafana imports."""
    return {
        "uid": "penstock",
        "title": "Penstock",
        "description": "Streams, backlogs, deliveries and dead letters: the metrics of `penstock deliver`.",
        "tags": ["penstock"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        "annotations": {"list": []},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                variable("query", "Query", "query_name"),
                variable("table", "Table", "table"),
            ]
        },
        "panels": panels(),
    }


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        at = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        found.append({"id": len(found) + 1, "type": "row", "title": title, "gridPos": at, "panels": []})
        x, y = 0, y + 1
        height = 4 if row[0].steps else 8
        for panel in row:
            if x + panel.width > WIDTH:
                x, y = 0, y + height
            at = {"x": x, "y": y, "w": panel.width, "h": height}
            found.append({"id": len(found) + 1, "gridPos": at, **model(panel)})
            x += panel.width
        y += height
    return found


def model(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.steps:
        steps = [{"value": value or None, "color": color} for value, color in panel.steps]
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps}, "color": {"mode": "thresholds"}}
        options: dict[str, Any] = {"colorMode": "background", "reduceOptions": {"calcs": ["lastNotNull"]}}
    else:
        defaults |= {"min": 0, "custom": {"fillOpacity": 10, "showPoints": "never"}}
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return {
        "type": "stat" if panel.steps else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": DATA_SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": DATA_SOURCE,
                "expr": query,
                "legendFormat": legend,
            }
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def text() -> str:
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"
