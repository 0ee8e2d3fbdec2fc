"""Options for reading with `penstock.delta`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...readers.delta.history import DeltaHistory, with_change_fields
from ...readers.delta.scan import DeltaTableReader
from ...readers.delta.table import load_version
from ...readers.table import TableScan
from ..options.declaring import option_of, options_of, prefixes_of
from ..options.stream import normalized_location
from ..reading.options import (
    ChangeStreamReadOptions,
    VersionReadOptions,
)
from .options import NAME, DeltaOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaReadOptions(VersionReadOptions):
    """Options for reading with `penstock.delta`."""

    data_source = NAME
    path: str = option_of(DeltaOptions, "path")
    storage_options: Mapping[str, str] = option_of(DeltaOptions, "storage_options")

    def open(self) -> DeltaTableReader:
        """See `Opens`."""
        uri = normalized_location(self.path)
        version = load_version(uri, self.storage_options, self.version_as_of, self.timestamp_as_of)
        return DeltaTableReader(version, self.storage_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaStreamOptions(ChangeStreamReadOptions):
    """Options for reading streams with `penstock.delta`."""

    data_source = NAME
    path: str = option_of(DeltaOptions, "path")
    storage_options: Mapping[str, str] = option_of(DeltaOptions, "storage_options")

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
