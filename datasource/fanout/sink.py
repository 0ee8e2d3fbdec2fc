"""The sink `penstock.fanout`: several sinks, which one query writes in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...committers.contract import Batch, Target
from ...committers.errors import ConfigurationError, PenstockError, shown
from ...writers.delta.filesystem import open_filesystem
from ..options.delivery import DeliveryOptions
from ..options.parsing import check
from ..plug_ins import BUILT_IN, load, plug_ins
from ..sink import Sink
from .options import NAME, FanoutOptions

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from ...committers.store.sql import SqlManifestStore
    from ..destinations import DestinationType

KIND = "fanout"


@dataclass(frozen=True, slots=True)
class TargetSink:
    """The sink of one target, and the addresses of all targets of the query. See `Sink`."""

    sink: Sink[Any, Any]
    all_uris: tuple[str, ...]
    """See `OneOfSeveral`."""

    @property
    def options(self) -> DeliveryOptions:
        return self.sink.options

    @property
    def kind(self) -> str:
        return self.sink.kind

    @property
    def table_uri(self) -> str:
        return self.sink.table_uri

    def open_table(self) -> Target[Any, Any]:
        return self.sink.open_table()

    def open_filesystem(self, location: str) -> tuple[FileSystem, str]:
        return self.sink.open_filesystem(location)

    def maintain(self, store: SqlManifestStore, batch: Batch) -> None:
        self.sink.maintain(store, batch)


@dataclass(frozen=True, slots=True)
class FanoutSink:
    """See `FansOut`. Its own address exists only within a batch: the store knows the targets alone."""

    options: FanoutOptions
    target_sinks: Mapping[str, TargetSink] = field(repr=False)
    kind: str = KIND

    @classmethod
    def of(cls, given: Mapping[str, str]) -> FanoutSink:
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
        addresses = tuple(sink.table_uri for sink in sinks.values())
        return cls(options, {name: TargetSink(sink, addresses) for name, sink in sinks.items()})

    @property
    def table_uri(self) -> str:
        return f"{KIND}:{','.join(self.target_sinks)}"

    def open_table(self) -> Target[Any, Any]:
        raise PenstockError("A fan-out has no table of its own.")

    def open_filesystem(self, location: str) -> tuple[FileSystem, str]:
        """Open the location of the checkpoint, a remote one with the options `storage.*`."""
        return open_filesystem(location, dict(self.options.storage_options))

    def maintain(self, store: SqlManifestStore, batch: Batch) -> None:
        """Do nothing: the deliveries of the targets do."""


def _sink_of(name: str, asked: str, options: FanoutOptions, given: Mapping[str, str]) -> Sink[Any, Any]:
    destination = _destination_of(asked)
    known = frozenset(option.name.lower() for option in destination.options)
    source = load(destination.data_source)
    sink: Sink[Any, Any] = source(options.options_of_target(name, given, known)).sink()
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
