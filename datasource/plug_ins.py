"""Destinations of other packages, found through the entry-point group `penstock.destinations`.

The name of an entry point is the kind of the destination's manifests. Its object is a
`destinations.DestinationType`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from typing import Any

GROUP = "penstock.destinations"
BUILT_IN = {
    "delta": "penstock.datasource.delta.sink:DESTINATION",
    "iceberg": "penstock.datasource.iceberg.sink:DESTINATION",
    "postgres": "penstock.datasource.postgres.stored:DESTINATION",
    "dynamodb": "penstock.datasource.aws.dynamodb:DESTINATION",
    "firehose": "penstock.datasource.aws.firehose:DESTINATION",
    "kinesis": "penstock.datasource.aws.kinesis:DESTINATION",
    "sqs": "penstock.datasource.aws.sqs:DESTINATION",
    "http": "penstock.datasource.http.sink:DESTINATION",
}
"""Built-in destinations. They are no entry points, because a zip of `--py-files` has none."""


def plug_ins() -> EntryPoints:
    """Return the entry points, without loading them."""
    return entry_points(group=GROUP)


def load(reference: str) -> Any:
    """Import the object of a reference `module:name`."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
