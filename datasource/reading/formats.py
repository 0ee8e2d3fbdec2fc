"""The formats that can be read."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from ...committers.errors import ConfigurationError, shown
from ..options.declaring import options_of
from ..plug_ins import load
from .options import Opens, OpensStream

READ_OPTIONS = {
    "penstock.delta": "penstock.datasource.delta.reading:DeltaReadOptions",
    "penstock.iceberg": "penstock.datasource.iceberg.reading:IcebergReadOptions",
    "penstock.lance": "penstock.datasource.lance.reading:LanceReadOptions",
    "penstock.ducklake": "penstock.datasource.ducklake.reading:DuckLakeReadOptions",
    "penstock.hudi": "penstock.datasource.hudi.reading:HudiReadOptions",
    "penstock.postgres": "penstock.datasource.postgres.reading:PostgresReadOptions",
}
STREAM_OPTIONS = {
    "penstock.delta": "penstock.datasource.delta.reading:DeltaStreamOptions",
    "penstock.iceberg": "penstock.datasource.iceberg.reading:IcebergStreamOptions",
    "penstock.lance": "penstock.datasource.lance.reading:LanceStreamOptions",
    "penstock.ducklake": "penstock.datasource.ducklake.reading:DuckLakeStreamOptions",
    "penstock.hudi": "penstock.datasource.hudi.reading:HudiStreamOptions",
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


def stream_options(name: str, options: Mapping[str, str]) -> OpensStream:
    """Parse the options of a format for a stream. Called by stream readers: Spark hides errors of
    `DataSource.streamReader`.

    Raises:
        ConfigurationError: the format cannot be read as a stream, or lists all problems with the options.
    """
    if name not in STREAM_OPTIONS:
        raise ConfigurationError(
            f"spark.readStream does not read {shown(name)}. It reads {', '.join(STREAM_OPTIONS)}. Use "
            f"spark.read.format({shown(name)}) for the rows that the table has now."
        )
    parsed: OpensStream = load(STREAM_OPTIONS[name]).parse(options)
    return parsed


def any_options(name: str, options: Mapping[str, str]) -> Opens:
    """Parse the options of a format where Spark does not say whether a stream is read. It is one if an option
    of streams is given, or a name that is near one. Raises as `read_options`.
    """
    if name not in STREAM_OPTIONS:
        return read_options(name, options)
    of_batches = {one.name.lower() for one in options_of(load(READ_OPTIONS[name]))}
    of_streams = {one.name.lower() for one in options_of(load(STREAM_OPTIONS[name]))} - of_batches
    near = (get_close_matches(key.lower(), [*of_batches, *of_streams], n=1) for key in options)
    is_stream = any(not of_streams.isdisjoint(names) for names in near)
    return stream_options(name, options) if is_stream else read_options(name, options)
