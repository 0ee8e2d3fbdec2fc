"""The formats that can be read."""

from __future__ import annotations

from collections.abc import Mapping

from ...committers.errors import ConfigurationError, shown
from ..plug_ins import load
from .options import Opens

READ_OPTIONS = {
    "penstock.delta": "penstock.datasource.delta.reading:DeltaReadOptions",
    "penstock.iceberg": "penstock.datasource.iceberg.reading:IcebergReadOptions",
}


def read_options(name: str, options: Mapping[str, str]) -> Opens:
    """Parse the options of a format.

    Raises:
        ConfigurationError: the format cannot be read, or lists all problems with the options.
    """
    if name not in READ_OPTIONS:
        raise ConfigurationError(
            f"{shown(name)} cannot be read. Formats that can be read: {', '.join(READ_OPTIONS)}."
        )
    parsed: Opens = load(READ_OPTIONS[name]).parse(options)
    return parsed
