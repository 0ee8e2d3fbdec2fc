"""Options of all sinks. Parsed once, on the driver, and immutable."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ...committers.origins import origin
from ...committers.safe_text import has_credentials
from ...writers.local_path import local_path
from .dead_letters import DeadLetterOptions, problems_of_dead_letters
from .declaring import declared, option, optional
from .parsing import Prefix, count, duration_s, flag, one_of, text


class NewQuery(Enum):
    """What to do with a new query on a table that an earlier query of the same origin has written."""

    WARN = "warn"
    REFUSE = "refuse"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(DeadLetterOptions):
    """Options of all sinks."""

    checkpoint_location: str | None = optional(
        "checkpointLocation",
        text,
        "Spark's own option. Set it on the stream writer: Spark does not pass the configuration "
        "`spark.sql.streaming.checkpointLocation` to Python sinks.",
    )
    store: str | None = optional(
        "store",
        text,
        "SQLAlchemy URL of the manifest store.",
        default="a SQLite file in the checkpoint directory, if that is on a local disk",
        is_secret=True,
    )
    query_name: str = field(
        default="",
        metadata=declared(
            "queryName", text, "Spark's own option. `penstock status` and the metrics show it."
        ),
    )
    new_query: NewQuery = option(  # noqa: RUF009  it returns a field
        "newQuery",
        one_of({choice.value: choice for choice in NewQuery}),
        "What to do when a query starts with a new checkpoint, and an earlier query with the same checkpoint "
        "directory or `queryName` has already written to the table: `warn` in the driver's log, `refuse` "
        "before anything is written, or `allow`. Streams only.",
        default="warn",
    )
    create_table: bool = option("createTable", flag, "Create the table if it does not exist.", default="true")
    add_columns: bool = option(
        "schemaEvolution",
        one_of({"none": False, "addColumns": True}),
        "`addColumns` adds new columns to the table, as nullable columns.",
        default="none",
    )
    commit_attempts_max: int = option(
        "maxCommitAttempts",
        count(1, 10_000),
        "Attempts to commit a batch while other writers commit too, spread over a few minutes. Then the "
        "query fails.",
        default="100",
    )
    event_time: str | None = optional(
        "eventTime",
        text,
        "A timestamp or date column. `penstock status` and the metrics report the age of the oldest row of "
        "each delivery.",
    )
    delivered_max: int = option(
        "keepDelivered",
        count(1, 10_000_000),
        "Maximum number of records of committed batches in the store.",
        default="10000",
    )
    delivered_s_max: float = option(
        "keepDeliveredFor",
        duration_s,
        "How long the store keeps the records of committed batches.",
        default="7d",
    )
    given: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The given texts by documented option name, without possible secrets."""


def problems_of(values: Mapping[str, Any], given: Mapping[str, str], prefixes: Sequence[Prefix]) -> list[str]:
    """Return problems of values that are valid one by one.

    Args:
        given: see `StreamOptions.given`
        prefixes: prefixes of the options for secrets
    """
    problems = []
    own = [prefix for prefix in prefixes if prefix.field != "dead_letter_options"]
    secret_options = " or ".join(f"{prefix.name}*" for prefix in own)
    if values.get("store", "").startswith("sqlite") and _is_memory(values["store"]):
        problems.append(
            "store: an in-memory database loses its manifests when the process ends. Give a file or a "
            "Postgres URL."
        )
    problems += [
        f"{name} contains a password, key or signature in its URL, which would end up in the store, the "
        f"table and the executors. Give it as {secret_options} instead."
        for name, text in given.items()
        if has_credentials(text)
    ]
    return problems + problems_of_dead_letters(values)


def _is_memory(url: str) -> bool:
    return url in ("sqlite://", "sqlite:///") or ":memory:" in url


def origins_of(options: StreamOptions) -> tuple[str, ...]:
    """Return what the query's commits record in the table: its checkpoint directory and its name, if any."""
    checkpoint = normalized_location(options.checkpoint_location or "")
    named = [origin("name", options.query_name)] if options.query_name else []
    return (*([origin("checkpoint", checkpoint)] if checkpoint else []), *named)


def normalized_location(location: str) -> str:
    """Return the normalized location: an absolute local path, or a URL without a trailing slash."""
    local = local_path(location) if location else None
    return posixpath.normpath(local) if local else location.replace("s3a://", "s3://", 1).rstrip("/")
