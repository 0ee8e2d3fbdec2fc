"""Options for reading with `penstock.iceberg`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...committers.iceberg.address import IcebergAddress, parse_table_name
from ...committers.iceberg.catalog import CatalogConfig
from ...readers.iceberg.history import IcebergHistory, with_change_fields
from ...readers.iceberg.scan import IcebergTableReader
from ...readers.iceberg.table import IcebergVersion, WantedVersion, load_version
from ...readers.table import TableScan
from ..options.declaring import option, option_of, optional, options_of, prefixes_of
from ..options.parsing import flag, text
from ..reading.options import (
    FileReadOptions,
    SnapshotStreamReadOptions,
    number,
    only_one,
    problems_of_streams,
    time_of,
)
from .options import NAME, IcebergOptions, problems_of_catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergReadOptions(FileReadOptions):
    """Options for reading with `penstock.iceberg`."""

    data_source = NAME
    table: str = option_of(IcebergOptions, "table")
    catalog: str | None = option_of(IcebergOptions, "catalog")
    warehouse: str | None = option_of(IcebergOptions, "warehouse")
    read_branch: str | None = optional("branch", text, "Branch to read.", default="`main`")
    tag: str | None = optional("tag", text, "Tag to read.")
    snapshot_id: int | None = optional("snapshotId", number, "Id of the snapshot to read.")
    timestamp_as_of: datetime | None = optional(  # noqa: RUF009  it returns a field
        "timestampAsOf",
        time_of,
        "Read what was the head of the main branch at this time, such as `2026-11-29T10:00:00Z`.",
    )
    catalog_properties: Mapping[str, str] = option_of(IcebergOptions, "catalog_properties")

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        """See `ReadOptions`."""
        return [*only_one(values, _VERSIONS), *problems_of_catalog(values)]

    def open(self) -> IcebergTableReader:
        """See `Opens`."""
        return IcebergTableReader(
            _load(
                self.table,
                self.catalog,
                self.catalog_properties,
                self.warehouse,
                self.read_branch,
                self.snapshot_id,
                self.timestamp_as_of,
                self.tag,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergStreamOptions(SnapshotStreamReadOptions):
    """Options for reading streams with `penstock.iceberg`."""

    data_source = NAME
    table: str = option_of(IcebergOptions, "table")
    catalog: str | None = option_of(IcebergOptions, "catalog")
    warehouse: str | None = option_of(IcebergOptions, "warehouse")
    read_branch: str | None = option_of(IcebergReadOptions, "read_branch")
    changes: bool = option(
        "changes",
        flag,
        "Read changes: rows that are new and rows that are gone, with the columns `_change_type` (`INSERT` "
        "or `DELETE`), `_change_ordinal` and `_commit_snapshot_id`. The option `changes=iceberg-changelog` "
        "of sinks takes them.",
        default="false",
    )
    catalog_properties: Mapping[str, str] = option_of(IcebergOptions, "catalog_properties")

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        """See `ReadOptions`."""
        return [*problems_of_streams(values), *problems_of_catalog(values)]

    def open(self) -> IcebergTableReader:
        """See `Opens`."""
        version = _load(self.table, self.catalog, self.catalog_properties, self.warehouse, self.read_branch)
        return IcebergTableReader(with_change_fields(version) if self.changes else version, self.changes)

    def history(self, scan: TableScan) -> IcebergHistory:
        """See `OpensStream`."""
        assert isinstance(scan.reader, IcebergTableReader)
        return IcebergHistory(scan.reader, scan, allows_more=self.columns is not None)


def _load(
    table: str,
    catalog: str | None,
    properties: Mapping[str, str],
    warehouse: str | None,
    branch: str | None,
    snapshot_id: int | None = None,
    at: datetime | None = None,
    tag: str | None = None,
) -> IcebergVersion:
    config = CatalogConfig.of(catalog, properties, warehouse)
    of_branch = {} if branch is None else {"branch": branch}
    address = IcebergAddress(config.address_name, parse_table_name(table), **of_branch)
    return load_version(config, address, WantedVersion(snapshot_id, at, branch, tag))


_VERSIONS = {
    "read_branch": "branch",
    "tag": "tag",
    "snapshot_id": "snapshotId",
    "timestamp_as_of": "timestampAsOf",
}


OPTIONS = options_of(IcebergReadOptions)
PREFIXES = prefixes_of(IcebergReadOptions)
STREAM_OPTIONS = options_of(IcebergStreamOptions)
STREAM_PREFIXES = prefixes_of(IcebergStreamOptions)
