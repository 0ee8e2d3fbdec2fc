"""Options of all sinks. Parsed once, on the driver, and immutable."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, TypeVar

from ...committers.dead_letters import BadRows
from ...committers.file_tables.evolution import Evolution, Narrowing, SchemaEvolution
from ...committers.origins import origin
from ...committers.texts.safe_text import has_credentials
from ...writers.local_path import local_path
from .dead_letters import DeadLetterOptions, problems_of_dead_letters
from .declaring import declared, option, optional, options_of, prefixes_of
from .parsing import (
    Prefix,
    check,
    count,
    duration_s,
    flag,
    one_of,
    parse_options,
    renames,
    storable,
    text,
    without_refused,
)
from .places import problems_of_folders, problems_of_plain_http


class NewQuery(Enum):
    """What to do with a new query on a table that an earlier query of the same origin has written."""

    WARN = "warn"
    REFUSE = "refuse"
    ALLOW = "allow"


class NewTarget(Enum):
    """What to do with a table that does not have the earlier batches of the query."""

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
    store_wait_s: int = option(
        "storeWaitSeconds",
        count(0, 86_400),
        "How many seconds a query waits for a manifest store that does not answer, with a warning in the "
        "driver's log. Then it fails. Streams only.",
        default="120",
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
        "before anything is written (which needs a `queryName`), or `allow`. Streams only.",
        default="warn",
    )
    new_target: NewTarget = option(  # noqa: RUF009  it returns a field
        "newTarget",
        one_of({choice.value: choice for choice in NewTarget}),
        "What to do when a query goes on from its checkpoint with a table or service that does not have its "
        "earlier batches, because it wrote to another one before: `refuse` before anything is written, or "
        "`allow`, and the rows before are not written there. Streams only.",
        default="refuse",
    )
    create_table: bool = option("createTable", flag, "Create the table if it does not exist.", default="true")
    schema_evolution: SchemaEvolution = option(  # noqa: RUF009  it returns a field
        "schemaEvolution",
        one_of(
            {
                **{choice.value: choice for choice in SchemaEvolution},
                "none": SchemaEvolution.FAIL,
            }
        ),
        "What to do with columns that do not fit the table. `fail` (or `none`) ends the query. `addColumns` "
        "adds new columns, as nullable columns. `evolve` also widens types, drops NOT NULL and renames "
        "columns. `quarantine`, with `badRows=deadLetter`, keeps the rows that do not fit as dead letters. "
        "See [Schemas that change](schemas.md) for what each destination can do.",
        default="fail",
    )
    renames: tuple[tuple[str, str], ...] = field(
        default=(),
        metadata=declared(
            "renameColumns",
            renames,
            "With `schemaEvolution=evolve`: columns of the table that get another name with the next batch, "
            "as `old:new, struct.old:new`. A column that has its new name already is left alone.",
        ),
    )
    commit_attempts_max: int = option(
        "maxCommitAttempts",
        count(1, 10_000),
        "Attempts to commit a batch while other writers commit too, spread over a few minutes. Then the "
        "query fails.",
        default="100",
    )
    lineage: bool = option(
        "lineage",
        flag,
        "Record with each batch which offsets of its sources it has read, such as the names of Kafka topics: "
        "in the store, and in the history of Delta, Iceberg and other tables. `penstock lineage` shows them. "
        "Streams only.",
        default="true",
    )
    lineage_events: bool = option(
        "lineageEvents",
        flag,
        "Send events of OpenLineage for each batch and each delivery. See [Lineage events and "
        "traces](observability.md). Needs the extra `penstock[openlineage]`, whose client has its own "
        "configuration, such as the environment variable `OPENLINEAGE_URL`.",
        default="false",
    )
    lineage_kafka: str = option(
        "lineageKafka",
        text,
        "With `lineageEvents`: the namespace of the Kafka topics that the query reads, "
        "`kafka://host:port` with the first bootstrap server. Spark does not pass it to sinks.",
        default="kafka",
    )
    open_telemetry: bool = option(
        "openTelemetry",
        flag,
        "Send spans and metrics of each batch and each delivery by OpenTelemetry. See [Lineage events and "
        "traces](observability.md). Needs the extra `penstock[opentelemetry]`, on the executors too, and is "
        "configured by the environment variables `OTEL_*`.",
        default="false",
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

    schema_evolutions: ClassVar[frozenset[SchemaEvolution]] = frozenset(
        {SchemaEvolution.FAIL, SchemaEvolution.ADD_COLUMNS}
    )
    """Those that the destination can do."""
    takes_variants: ClassVar[bool] = False
    """True: the destination can store Spark's VARIANT."""
    not_renamed: ClassVar[str] = ""
    """Why the destination does not rename columns, if it can do the rest of `evolve`."""

    @property
    def only_for_streams(self) -> str:
        """An option that batch writes cannot have, with its value and why; empty if there is none."""
        return ""

    @property
    def evolution(self) -> Evolution:
        """What a batch may change in the schema of the table."""
        evolves = self.schema_evolution is SchemaEvolution.EVOLVE
        adds = evolves or self.schema_evolution is SchemaEvolution.ADD_COLUMNS
        return Evolution(adds, evolves, self.renames)

    @property
    def narrows(self) -> Narrowing:
        """See `WriteConfig`."""
        if self.schema_evolution is SchemaEvolution.QUARANTINE:
            return Narrowing.ANY
        return Narrowing.NONE if self.bad_rows is BadRows.FAIL else Narrowing.NUMBERS


OptionsT = TypeVar("OptionsT", bound=StreamOptions)


def parse_as(
    cls: type[OptionsT],
    name: str,
    given: Mapping[str, str],
    *,
    examples: Mapping[str, str] | None = None,
    refused: Mapping[str, str] | None = None,
    problems_of_values: Callable[[Mapping[str, Any]], Iterable[str]] = lambda values: (),
) -> OptionsT:
    """Parse the options that Spark passes to an object of `cls`. Fields without a default are required.

    Args:
        cls: declares the options, see `declaring`
        name: name of the data source, for messages
        examples: values of required options, by name
        refused: problems of options that this destination does not have, by name
        problems_of_values: returns problems of values that are all valid one by one. Fields with their
            default are missing

    Raises:
        ConfigurationError: lists all problems, one sentence each.
    """
    options, prefixes = options_of(cls), prefixes_of(cls)
    keys = [key.lower() for key in given]
    kept, problems_of_refused = without_refused(given, refused)
    values, problems = parse_options(options, prefixes, kept)
    are_valid = not problems
    problems += problems_of_refused
    required = required_fields(cls)
    problems += [
        missing_option(option.name, (examples or {}).get(option.name))
        for option in options
        if option.field in required and option.name.lower() not in keys
    ]
    stored = storable(options, kept)
    refused_values = {option.name for option in options if option.field not in values}
    accepted = {name: value for name, value in stored.items() if name not in refused_values}
    problems += problems_of(values, accepted, prefixes)
    problems += problems_of_evolution(cls, name, values)
    problems += _problems_of_routes(values, has_row_log=getattr(cls, "has_row_log", False))
    if are_valid:
        problems += problems_of_values(values)
    check(name, problems)
    return cls(**values, given=stored)


def required_fields(cls: Any) -> set[str]:
    """Return the fields of a dataclass that have no default."""
    return {one.name for one in fields(cls) if one.default is MISSING and one.default_factory is MISSING}


def missing_option(name: str, example: str | None = None, start: str = " or .start(path)") -> str:
    """Return the problem of a required option that is not given."""
    value = "..." if example is None else f'"{example}"'
    or_start = start if name == "path" else ""
    return f'{name} is missing: give .option("{name}", {value}){or_start}.'


def problems_of(values: Mapping[str, Any], given: Mapping[str, str], prefixes: Sequence[Prefix]) -> list[str]:
    """Return problems of values that are valid one by one.

    Args:
        given: see `StreamOptions.given`
        prefixes: prefixes of the options for secrets
    """
    problems = []
    if values.get("store", "").startswith("sqlite") and _is_memory(values["store"]):
        problems.append(
            "store: an in-memory database loses its manifests when the process ends. Give a file or a "
            "Postgres URL."
        )
    return [
        *problems,
        *problems_of_folders(values),
        *problems_of_plain_http(values, ("checkpoint_location", "row_log")),
        *problems_of_urls(given, prefixes),
        *problems_of_dead_letters(values),
    ]


def problems_of_evolution(cls: type[StreamOptions], name: str, values: Mapping[str, Any]) -> list[str]:
    """
    Args:
        name: of the data source
    """
    wanted = values.get("schema_evolution", SchemaEvolution.FAIL)
    problems = []
    if wanted not in cls.schema_evolutions:
        known = ", ".join(one.value for one in SchemaEvolution if one in cls.schema_evolutions)
        problems.append(
            f"schemaEvolution={wanted.value} is not supported by {name}, which knows {known}. Change the "
            "table by its own means, and start the query again."
        )
    elif wanted is SchemaEvolution.QUARANTINE and values.get("bad_rows") is not BadRows.DEAD_LETTER:
        problems.append(
            "schemaEvolution=quarantine needs badRows=deadLetter and deadLetter: say where rows of another "
            'shape are kept, for example .option("deadLetter", "/tables/refused_rows").'
        )
    if not values.get("renames"):
        return problems
    if SchemaEvolution.EVOLVE not in cls.schema_evolutions or cls.not_renamed:
        why = cls.not_renamed or "it does not change schemas"
        problems.append(f"renameColumns is not supported by {name}: {why}.")
    elif wanted is not SchemaEvolution.EVOLVE:
        problems.append("renameColumns: only a query with schemaEvolution=evolve has it.")
    compared = {name.lower() for name in (*values.get("keys", ()), *values.get("order_by", ()))}
    if named := [new for _, new in values["renames"] if new.lower() in compared]:
        problems.append(
            f"renameColumns contains {', '.join(named)} of keys or orderBy: rename them in the table before "
            "the query starts."
        )
    return problems


def _problems_of_routes(values: Mapping[str, Any], *, has_row_log: bool) -> list[str]:
    """
    Args:
        has_row_log: see `DeliveryOptions`
    """
    only = {"routeDefault": "route_default", **({} if has_row_log else {"rowLog": "row_log"})}
    given = [name for name, of_field in only.items() if of_field in values]
    return [] if "route_by" in values else [f"{name}: only a query with routeBy has it." for name in given]


def problems_of_urls(texts: Mapping[str, str], prefixes: Sequence[Prefix]) -> list[str]:
    """Return problems of texts that have secrets in a URL.

    Args:
        texts: by the name of their option
    """
    others = ("dead_letter_options", "registry_properties")
    own = [prefix for prefix in prefixes if prefix.field not in others]
    secret_options = " or ".join(f"{prefix.name}*" for prefix in own)
    return [
        f"{name} contains a password, key or signature in its URL, which would end up in the store, the "
        f"table and the executors. Give it as {secret_options} instead."
        for name, text in texts.items()
        if has_credentials(text)
    ]


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
