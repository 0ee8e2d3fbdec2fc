"""The query of `penstock.fanout`: several sinks, which are written in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...committers.errors import ConfigurationError, shown
from ...writers.delta.filesystem import open_filesystem
from ..options.parsing import check
from ..plug_ins import BUILT_IN, load, plug_ins
from ..query import Query
from ..sink import Sink
from .options import NAME, FanoutOptions
from .parts import SharedRowLogs

if TYPE_CHECKING:
    from ..destinations import DestinationType


def fanout_query(given: Mapping[str, str]) -> Query:
    """Make the sinks of all targets from the options that Spark passes.

    Raises:
        ConfigurationError: lists all problems of all targets.
    """
    options = FanoutOptions.parse(given)
    sinks: dict[str, Sink[Any, Any]] = {}
    problems: list[str] = []
    for name, asked in options.formats.items():
        try:
            sinks[name] = _sink_of(name, asked, options, given)
        except ConfigurationError as error:
            problems.append(f"Target {name}: {error}")
    problems += _problems_of_addresses(sinks)
    check(NAME, problems)
    storage = dict(options.storage_options)
    return Query(
        options,
        f"fanout:{','.join(sinks)}",
        sinks,
        lambda location: open_filesystem(location, storage),
        SharedRowLogs(),
    )


def _sink_of(name: str, asked: str, options: FanoutOptions, given: Mapping[str, str]) -> Sink[Any, Any]:
    destination = _destination_of(asked)
    source = load(destination.data_source)
    of_target = options.options_of_target(name, given, has_row_log=destination.has_row_log)
    sink: Sink[Any, Any] = source(of_target).sink()
    return sink


def _destination_of(name: str) -> DestinationType:
    """Return the destination with this format.

    Raises:
        ConfigurationError: there is none, or it is a fan-out.
    """
    if name == NAME:
        raise ConfigurationError("its format cannot be penstock.fanout: name all targets in one fan-out.")
    prefix, _, kind = name.rpartition(".")
    if prefix == "penstock" and kind in BUILT_IN:
        built_in: DestinationType = load(BUILT_IN[kind])
        return built_in
    for entry in plug_ins():
        found: DestinationType = entry.load()
        if load(found.data_source).name() == name:
            return found
    known = ", ".join(f"penstock.{kind}" for kind in BUILT_IN)
    raise ConfigurationError(
        f"{shown(name)} is not a format that is installed here. Known: {known}, and those of other packages."
    )


def _problems_of_addresses(sinks: Mapping[str, Sink[Any, Any]]) -> list[str]:
    first: dict[str, str] = {}
    problems = []
    for name, sink in sinks.items():
        other = first.setdefault(sink.table_uri, name)
        if other != name:
            problems.append(
                f"Targets {other} and {name} are the same: {shown(sink.table_uri)}. Its rows would be there "
                "twice. Remove one of them."
            )
    return problems
