"""Options for reading with `penstock.delta`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ...readers.delta.history import DeltaHistory, with_change_fields
from ...readers.delta.scan import DeltaTableReader
from ...readers.delta.table import load_version
from ...readers.table import TableScan
from ..options.declaring import option_of, optional, options_of, prefixes_of
from ..options.stream import normalized_location
from ..reading.options import (
    ChangeStreamReadOptions,
    FileReadOptions,
    number,
    only_one,
    parse_read_options,
    problems_of_streams,
    time_of,
)
from .options import NAME, DeltaOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaReadOptions(FileReadOptions):
    """Options for reading with `penstock.delta`."""

    path: str = option_of(DeltaOptions, "path")
    version_as_of: int | None = optional(
        "versionAsOf", number, "Version of the table.", default="the newest one"
    )
    timestamp_as_of: datetime | None = optional(  # noqa: RUF009  it returns a field
        "timestampAsOf", time_of, "Read the newest version at this time, such as `2026-11-29T10:00:00Z`."
    )
    storage_options: Mapping[str, str] = option_of(DeltaOptions, "storage_options")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> DeltaReadOptions:
        """
        Raises:
            ConfigurationError: lists all problems.
        """
        names = {"version_as_of": "versionAsOf", "timestamp_as_of": "timestampAsOf"}
        return parse_read_options(cls, NAME, options, lambda values: only_one(values, names))

    def open(self) -> DeltaTableReader:
        """See `Opens`."""
        uri = normalized_location(self.path)
        version = load_version(uri, self.storage_options, self.version_as_of, self.timestamp_as_of)
        return DeltaTableReader(version, self.storage_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaStreamOptions(ChangeStreamReadOptions):
    """Options for reading streams with `penstock.delta`."""

    path: str = option_of(DeltaOptions, "path")
    storage_options: Mapping[str, str] = option_of(DeltaOptions, "storage_options")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> DeltaStreamOptions:
        """
        Raises:
            ConfigurationError: lists all problems.
        """
        return parse_read_options(cls, NAME, options, problems_of_streams)

    def open(self) -> DeltaTableReader:
        """See `Opens`."""
        version = load_version(normalized_location(self.path), self.storage_options)
        if self.changes:
            version = with_change_fields(version)
        return DeltaTableReader(version, self.storage_options, self.changes)

    def history(self, scan: TableScan) -> DeltaHistory:
        """See `OpensStream`."""
        assert isinstance(scan.reader, DeltaTableReader)
        return DeltaHistory(scan.reader, scan, allows_more=self.columns is not None)


OPTIONS = options_of(DeltaReadOptions)
PREFIXES = prefixes_of(DeltaReadOptions)
STREAM_OPTIONS = options_of(DeltaStreamOptions)
STREAM_PREFIXES = prefixes_of(DeltaStreamOptions)
