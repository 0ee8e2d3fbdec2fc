"""Options for reading with `penstock.hudi`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ...readers.hudi.history import HudiHistory
from ...readers.hudi.scan import HudiTableReader
from ...readers.hudi.table import load_version
from ...readers.streaming.change_feed import check_change_names
from ...readers.table import TableScan
from ..options.declaring import option, option_of, optional, options_of, prefixes_of
from ..options.parsing import flag
from ..options.stream import normalized_location
from ..reading.options import FileReadOptions, StreamReadOptions, starting_version, time_of
from .options import NAME, HudiOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class HudiReadOptions(FileReadOptions):
    """Options for reading with `penstock.hudi`."""

    data_source = NAME
    path: str = option_of(HudiOptions, "path")
    timestamp_as_of: datetime | None = optional(  # noqa: RUF009  it returns a field
        "timestampAsOf",
        time_of,
        "Read the table as of this time, such as `2026-11-29T10:00:00Z`: all commits that had begun by then.",
    )
    storage_options: Mapping[str, str] = option_of(HudiOptions, "storage_options")

    def open(self) -> HudiTableReader:
        """See `Opens`."""
        uri = normalized_location(self.path)
        version = load_version(uri, self.storage_options, self.timestamp_as_of)
        return HudiTableReader(version, self.storage_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class HudiStreamOptions(StreamReadOptions):
    """Options for reading streams with `penstock.hudi`."""

    data_source = NAME
    path: str = option_of(HudiOptions, "path")
    starting_version: int | str | None = optional(
        "startingVersion",
        starting_version,
        "Instant of the commit from which on a new query reads the rows that are added, without those that "
        "were there before; `latest`: only those of later commits.",
        default="all rows of the newest instant, then those that are added",
    )
    starting_timestamp: datetime | None = optional(  # noqa: RUF009  it returns a field
        "startingTimestamp",
        time_of,
        "The same, from the first commit on that was completed at or after this time, such as "
        "`2026-11-29T10:00:00Z`; in tables of version 6, that had begun then.",
    )
    changes: bool = option(
        "changes",
        flag,
        "Read changes: rows that are new, updated and gone, with the columns `_change_type` (`insert`, "
        "`delete`, or `update_preimage` and `update_postimage`), `_commit_version` and `_commit_timestamp` "
        "(when the commit was completed; in tables of version 6, its instant). The option "
        "`changes=delta-cdf` of sinks takes them.",
        default="false",
    )
    storage_options: Mapping[str, str] = option_of(HudiOptions, "storage_options")

    def open(self) -> HudiTableReader:
        """See `Opens`."""
        version = load_version(normalized_location(self.path), self.storage_options)
        if self.changes:
            check_change_names(f"Hudi table {version.table_uri}", version.schema.names)
        return HudiTableReader(version, self.storage_options, self.changes)

    def history(self, scan: TableScan) -> HudiHistory:
        """See `OpensStream`."""
        assert isinstance(scan.reader, HudiTableReader)
        return HudiHistory(scan.reader, scan, allows_more=self.columns is not None)


OPTIONS = options_of(HudiReadOptions)
PREFIXES = prefixes_of(HudiReadOptions)
STREAM_OPTIONS = options_of(HudiStreamOptions)
STREAM_PREFIXES = prefixes_of(HudiStreamOptions)
