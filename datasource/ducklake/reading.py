"""Options for reading with `penstock.ducklake`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ...committers.ducklake.address import DuckLakeAddress, DuckLakeCatalog
from ..options.declaring import option_of, optional, options_of, prefixes_of
from ..reading.options import FileReadOptions, number, only_one, parse_read_options, time_of
from .options import NAME, DuckLakeOptions, require_duckdb

if TYPE_CHECKING:
    from ...readers.ducklake.scan import DuckLakeTableReader


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckLakeReadOptions(FileReadOptions):
    """Options for reading with `penstock.ducklake`."""

    catalog: str = option_of(DuckLakeOptions, "catalog")
    table: tuple[str, str] = option_of(DuckLakeOptions, "table")
    version_as_of: int | None = optional(
        "versionAsOf", number, "Id of the snapshot to read.", default="the newest one"
    )
    timestamp_as_of: datetime | None = optional(  # noqa: RUF009  it returns a field
        "timestampAsOf", time_of, "Read the newest snapshot at this time, such as `2026-11-29T10:00:00Z`."
    )
    storage_options: Mapping[str, str] = option_of(DuckLakeOptions, "storage_options")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> DuckLakeReadOptions:
        """
        Raises:
            ConfigurationError: lists all problems.
        """
        names = {"version_as_of": "versionAsOf", "timestamp_as_of": "timestampAsOf"}
        return parse_read_options(cls, NAME, options, lambda values: only_one(values, names))

    def open(self) -> DuckLakeTableReader:
        """See `Opens`."""
        require_duckdb()
        from ...committers.ducklake.connection import LakeServer
        from ...readers.ducklake.scan import DuckLakeTableReader
        from ...readers.ducklake.table import load_version

        address = DuckLakeAddress(DuckLakeCatalog.parse(self.catalog), *self.table)
        server = LakeServer(address, self.storage_options)
        return DuckLakeTableReader(load_version(server, self.version_as_of, self.timestamp_as_of))


OPTIONS = options_of(DuckLakeReadOptions)
PREFIXES = prefixes_of(DuckLakeReadOptions)
