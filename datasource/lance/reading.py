"""Options for reading with `penstock.lance`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...readers.lance.history import LanceHistory
from ...readers.lance.scan import LanceTableReader
from ...readers.lance.table import WantedVersion, load_version
from ...readers.streaming.change_feed import check_change_names
from ...readers.table import TableScan
from ..options.declaring import option_of, optional, options_of, prefixes_of
from ..options.parsing import text
from ..options.stream import normalized_location
from ..reading.options import (
    ChangeStreamReadOptions,
    VersionReadOptions,
)
from .options import NAME, LanceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceReadOptions(VersionReadOptions):
    """Options for reading with `penstock.lance`."""

    data_source = NAME
    versions: ClassVar = {**VersionReadOptions.versions, "tag": "tag"}
    path: str = option_of(LanceOptions, "path")
    tag: str | None = optional("tag", text, "Tag to read.")
    storage_options: Mapping[str, str] = option_of(LanceOptions, "storage_options")

    def open(self) -> LanceTableReader:
        """See `Opens`."""
        wanted = WantedVersion(self.version_as_of, self.timestamp_as_of, self.tag)
        table = load_version(normalized_location(self.path), self.storage_options, wanted)
        return LanceTableReader(table, self.storage_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceStreamOptions(ChangeStreamReadOptions):
    """Options for reading streams with `penstock.lance`."""

    data_source = NAME
    path: str = option_of(LanceOptions, "path")
    storage_options: Mapping[str, str] = option_of(LanceOptions, "storage_options")

    def open(self) -> LanceTableReader:
        """See `Opens`."""
        table = load_version(normalized_location(self.path), self.storage_options, WantedVersion())
        if self.changes:
            check_change_names(f"Lance table {table.uri}", table.schema.names)
        return LanceTableReader(table, self.storage_options, self.changes)

    def history(self, scan: TableScan) -> LanceHistory:
        """See `OpensStream`."""
        assert isinstance(scan.reader, LanceTableReader)
        return LanceHistory(scan.reader, scan, allows_more=self.columns is not None)


OPTIONS = options_of(LanceReadOptions)
PREFIXES = prefixes_of(LanceReadOptions)
STREAM_OPTIONS = options_of(LanceStreamOptions)
STREAM_PREFIXES = prefixes_of(LanceStreamOptions)
