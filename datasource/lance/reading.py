"""Options for reading with `penstock.lance`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ...readers.lance.history import LanceHistory, check_change_fields
from ...readers.lance.scan import LanceTableReader
from ...readers.lance.table import WantedVersion, load_version
from ...readers.table import TableScan
from ..options.declaring import option_of, optional, options_of, prefixes_of
from ..options.parsing import text
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
from .options import NAME, LanceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceReadOptions(FileReadOptions):
    """Options for reading with `penstock.lance`."""

    path: str = option_of(LanceOptions, "path")
    version_as_of: int | None = optional(
        "versionAsOf", number, "Version of the table.", default="the newest one"
    )
    timestamp_as_of: datetime | None = optional(  # noqa: RUF009  it returns a field
        "timestampAsOf", time_of, "Read the newest version at this time, such as `2026-11-29T10:00:00Z`."
    )
    tag: str | None = optional("tag", text, "Tag to read.")
    storage_options: Mapping[str, str] = option_of(LanceOptions, "storage_options")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> LanceReadOptions:
        """
        Raises:
            ConfigurationError: lists all problems.
        """
        names = {"version_as_of": "versionAsOf", "timestamp_as_of": "timestampAsOf", "tag": "tag"}
        return parse_read_options(cls, NAME, options, lambda values: only_one(values, names))

    def open(self) -> LanceTableReader:
        """See `Opens`."""
        wanted = WantedVersion(self.version_as_of, self.timestamp_as_of, self.tag)
        table = load_version(normalized_location(self.path), self.storage_options, wanted)
        return LanceTableReader(table, self.storage_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceStreamOptions(ChangeStreamReadOptions):
    """Options for reading streams with `penstock.lance`."""

    path: str = option_of(LanceOptions, "path")
    storage_options: Mapping[str, str] = option_of(LanceOptions, "storage_options")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> LanceStreamOptions:
        """
        Raises:
            ConfigurationError: lists all problems.
        """
        return parse_read_options(cls, NAME, options, problems_of_streams)

    def open(self) -> LanceTableReader:
        """See `Opens`."""
        table = load_version(normalized_location(self.path), self.storage_options, WantedVersion())
        if self.changes:
            check_change_fields(table)
        return LanceTableReader(table, self.storage_options, self.changes)

    def history(self, scan: TableScan) -> LanceHistory:
        """See `OpensStream`."""
        assert isinstance(scan.reader, LanceTableReader)
        return LanceHistory(scan.reader, scan, allows_more=self.columns is not None)


OPTIONS = options_of(LanceReadOptions)
PREFIXES = prefixes_of(LanceReadOptions)
STREAM_OPTIONS = options_of(LanceStreamOptions)
STREAM_PREFIXES = prefixes_of(LanceStreamOptions)
