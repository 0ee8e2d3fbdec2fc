"""Destinations of other packages, found through the entry-point group `penstock.destinations`.

The entry's name is the kind of the destination's manifests, and its object a `destinations.DestinationType`.
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
}
"""Named here: a zip given with `--py-files` has no entry points."""


def plug_ins() -> EntryPoints:
    """None is loaded yet."""
    return entry_points(group=GROUP)


def load(reference: str) -> Any:
    """The object of a reference `module:name`."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
