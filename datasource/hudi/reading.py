"""Options for reading with `penstock.hudi`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ...readers.hudi.scan import HudiTableReader
from ...readers.hudi.table import load_version
from ..options.declaring import option_of, optional, options_of, prefixes_of
from ..options.stream import normalized_location
from ..reading.options import FileReadOptions, parse_read_options, time_of
from .options import NAME, HudiOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class HudiReadOptions(FileReadOptions):
    """Options for reading with `penstock.hudi`."""

    path: str = option_of(HudiOptions, "path")
    timestamp_as_of: datetime | None = optional(  # noqa: RUF009  it returns a field
        "timestampAsOf",
        time_of,
        "Read the table as of this time, such as `2026-11-29T10:00:00Z`: all commits that had begun by then.",
    )
    storage_options: Mapping[str, str] = option_of(HudiOptions, "storage_options")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> HudiReadOptions:
        """
        Raises:
            ConfigurationError: lists all problems.
        """
        return parse_read_options(cls, NAME, options, lambda values: [])

    def open(self) -> HudiTableReader:
        """See `Opens`."""
        uri = normalized_location(self.path)
        version = load_version(uri, self.storage_options, self.timestamp_as_of)
        return HudiTableReader(version, self.storage_options)


OPTIONS = options_of(HudiReadOptions)
PREFIXES = prefixes_of(HudiReadOptions)
