"""Options for reading with `penstock.ducklake`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from ...committers.ducklake.address import DuckLakeAddress, DuckLakeCatalog
from ...readers.table import TableScan
from ..options.declaring import option_of, optional, options_of, prefixes_of
from ..reading.options import (
    ChangeStreamReadOptions,
    SnapshotStreamReadOptions,
    VersionReadOptions,
    number,
    time_of,
)
from .options import NAME, DuckLakeOptions, require_duckdb

if TYPE_CHECKING:
    from ...readers.ducklake.history import DuckLakeHistory
    from ...readers.ducklake.scan import DuckLakeTableReader


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckLakeReadOptions(VersionReadOptions):
    """Options for reading with `penstock.ducklake`."""

    data_source = NAME
    catalog: str = option_of(DuckLakeOptions, "catalog")
    table: tuple[str, str] = option_of(DuckLakeOptions, "table")
    version_as_of: int | None = optional(
        "versionAsOf", number, "Id of the snapshot to read.", default="the newest one"
    )
    timestamp_as_of: datetime | None = optional(  # noqa: RUF009  it returns a field
        "timestampAsOf", time_of, "Read the newest snapshot at this time, such as `2026-11-29T10:00:00Z`."
    )
    storage_options: Mapping[str, str] = option_of(DuckLakeOptions, "storage_options")

    def open(self) -> DuckLakeTableReader:
        """See `Opens`."""
        return _open(self.catalog, self.table, self.storage_options, self.version_as_of, self.timestamp_as_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckLakeStreamOptions(SnapshotStreamReadOptions):
    """Options for reading streams with `penstock.ducklake`."""

    data_source = NAME
    catalog: str = option_of(DuckLakeOptions, "catalog")
    table: tuple[str, str] = option_of(DuckLakeOptions, "table")
    changes: bool = option_of(ChangeStreamReadOptions, "changes")
    storage_options: Mapping[str, str] = option_of(DuckLakeOptions, "storage_options")

    def open(self) -> DuckLakeTableReader:
        """See `Opens`."""
        reader = _open(self.catalog, self.table, self.storage_options)
        if not self.changes:
            return reader
        from ...readers.streaming.change_feed import check_change_names

        check_change_names(f"DuckLake table {reader.version.server.address.uri}", reader.column_names)
        return replace(reader, reads_changes=True)

    def history(self, scan: TableScan) -> DuckLakeHistory:
        """See `OpensStream`."""
        from ...readers.ducklake.history import DuckLakeHistory
        from ...readers.ducklake.scan import DuckLakeTableReader

        assert isinstance(scan.reader, DuckLakeTableReader)
        return DuckLakeHistory(scan.reader, scan, allows_more=self.columns is not None)


def _open(
    catalog: str,
    table: tuple[str, str],
    storage: Mapping[str, str],
    version: int | None = None,
    at: datetime | None = None,
) -> DuckLakeTableReader:
    require_duckdb()
    from ...committers.ducklake.connection import LakeServer
    from ...readers.ducklake.scan import DuckLakeTableReader
    from ...readers.ducklake.table import load_version

    server = LakeServer(DuckLakeAddress(DuckLakeCatalog.parse(catalog), *table), storage)
    return DuckLakeTableReader(load_version(server, version, at))


OPTIONS = options_of(DuckLakeReadOptions)
PREFIXES = prefixes_of(DuckLakeReadOptions)
STREAM_OPTIONS = options_of(DuckLakeStreamOptions)
STREAM_PREFIXES = prefixes_of(DuckLakeStreamOptions)
