"""Options that every sink has. Parsed once, on the driver, frozen from then on."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ...committers.origins import origin
from ...committers.safe_text import has_credentials
from ...writers.local_path import local_path
from .declaring import declared, option, optional
from .parsing import Prefix, count, duration_s, flag, one_of, text


class NewQuery(Enum):
    """What happens when a query is new, and an earlier one of the same origin has written the table."""

    WARN = "warn"
    REFUSE = "refuse"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What all sinks have in common."""

    checkpoint_location: str | None = optional(
        "checkpointLocation",
        text,
        "Spark's own option. Must be set on the stream writer: the configuration `spark.sql.streaming."
        "checkpointLocation` is not shown to Python sinks.",
    )
    store: str | None = optional(
        "store",
        text,
        "SQLAlchemy URL of the manifest store.",
        default="SQLite in the checkpoint directory if that is local",
        is_secret=True,
    )
    query_name: str = field(
        default="", metadata=declared("queryName", text, "Spark's own option; shown by `penstock status`.")
    )
    new_query: NewQuery = option(  # noqa: RUF009  it returns a field
        "newQuery",
        one_of({choice.value: choice for choice in NewQuery}),
        "If a query begins with a new checkpoint, and the table holds rows of an earlier query with the same "
        "checkpoint directory or `queryName`: `warn` in the driver's log, `refuse` before anything is "
        "written, or `allow`. Streams only.",
        default="warn",
    )
    create_table: bool = option("createTable", flag, "Create the table if there is none.", default="true")
    add_columns: bool = option(
        "schemaEvolution",
        one_of({"none": False, "addColumns": True}),
        "`addColumns` adds new nullable columns to the table.",
        default="none",
    )
    commit_attempts_max: int = option(
        "maxCommitAttempts",
        count(1, 10_000),
        "Attempts to commit a batch against other writers, over a few minutes, before the query fails.",
        default="100",
    )
    event_time: str | None = optional(
        "eventTime",
        text,
        "A timestamp or date column: `penstock status` and the metrics say how old the oldest row of a "
        "delivery is.",
    )
    delivered_max: int = option(
        "keepDelivered",
        count(1, 10_000_000),
        "Records of delivered or committed batches that the store keeps at most.",
        default="10000",
    )
    delivered_s_max: float = option(
        "keepDeliveredFor",
        duration_s,
        "How long the store keeps records of delivered or committed batches.",
        default="7d",
    )
    given: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The text of what was given, by the options' documented names, without what may be secret."""


def problems_of(values: Mapping[str, Any], given: Mapping[str, str], prefixes: Sequence[Prefix]) -> list[str]:
    """What is wrong with values that are right one by one.

    Args:
        given: see `StreamOptions.given`
        prefixes: of the options in which the sink takes secrets
    """
    problems = []
    secret_options = " or ".join(f"{prefix.name}*" for prefix in prefixes)
    if values.get("store", "").startswith("sqlite") and _is_memory(values["store"]):
        problems.append("store: an in-memory database forgets its manifests; name a file or a Postgres URL.")
    problems += [
        f"{name} has a password, key or signature in its URL. It would be kept in the store and the table, "
        f"and sent to executors: give it as {secret_options}."
        for name, text in given.items()
        if has_credentials(text)
    ]
    return problems


def _is_memory(url: str) -> bool:
    return url in ("sqlite://", "sqlite:///") or ":memory:" in url


def origins_of(options: StreamOptions) -> tuple[str, ...]:
    """What the query's commits note in the table: its checkpoint directory and, if it has one, its name."""
    checkpoint = normalized_location(options.checkpoint_location or "")
    named = [origin("name", options.query_name)] if options.query_name else []
    return (*([origin("checkpoint", checkpoint)] if checkpoint else []), *named)


def normalized_location(location: str) -> str:
    """One spelling for one directory."""
    local = local_path(location) if location else None
    return posixpath.normpath(local) if local else location.replace("s3a://", "s3://", 1).rstrip("/")
