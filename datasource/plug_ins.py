"""Destinations of other packages, found through the entry-point group `penstock.destinations`.

The name of an entry point is the kind of the destination's manifests. Its object is a
`destinations.DestinationType`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from ..committers.errors import ConfigurationError, shown

GROUP = "penstock.destinations"
BUILT_IN = {
    "delta": "penstock.datasource.delta.sink:DESTINATION",
    "iceberg": "penstock.datasource.iceberg.sink:DESTINATION",
    "hudi": "penstock.datasource.hudi.sink:DESTINATION",
    "postgres": "penstock.datasource.postgres.stored:DESTINATION",
    "mysql": "penstock.datasource.mysql.stored:DESTINATION",
    "sql": "penstock.datasource.sql.stored:DESTINATION",
    "clickhouse": "penstock.datasource.clickhouse.stored:DESTINATION",
    "duckdb": "penstock.datasource.duckdb.stored:DESTINATION",
    "ducklake": "penstock.datasource.ducklake.sink:DESTINATION",
    "dynamodb": "penstock.datasource.aws.dynamodb:DESTINATION",
    "firehose": "penstock.datasource.aws.firehose:DESTINATION",
    "kinesis": "penstock.datasource.aws.kinesis:DESTINATION",
    "sqs": "penstock.datasource.aws.sqs:DESTINATION",
    "http": "penstock.datasource.http.sink:DESTINATION",
    "opensearch": "penstock.datasource.search.opensearch:DESTINATION",
    "elasticsearch": "penstock.datasource.search.elasticsearch:DESTINATION",
    "redis": "penstock.datasource.redis.sink:DESTINATION",
    "nats": "penstock.datasource.nats.sink:DESTINATION",
    "kafka": "penstock.datasource.kafka.stored:DESTINATION",
    "files": "penstock.datasource.files.sink:DESTINATION",
    "lance": "penstock.datasource.lance.sink:DESTINATION",
    "paimon": "penstock.datasource.paimon.sink:DESTINATION",
}
"""Built-in destinations. They are no entry points, because a zip of `--py-files` has none."""
INTERNAL = {"routes": "penstock.datasource.routing.sink:DESTINATION"}
"""Kinds of streams that no option names: of a query with routes, whose tables are other streams."""


def plug_ins() -> EntryPoints:
    """Return the entry points, without loading them."""
    return entry_points(group=GROUP)


def load(reference: str) -> Any:
    """Import the object of a reference `module:name`."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def data_source_of(name: str) -> Any:
    """Return the class of a data source by its name, such as `penstock.delta`.

    Raises:
        ConfigurationError: no such destination is installed.
    """
    kind = name.strip().lower().removeprefix("penstock.")
    if kind in BUILT_IN:
        return load(load(BUILT_IN[kind]).data_source)
    for entry in plug_ins().select(name=kind):
        return load(entry.load().data_source)
    raise ConfigurationError(
        f"There is no destination {shown(name)}. Known: {', '.join(f'penstock.{one}' for one in BUILT_IN)}."
    )
