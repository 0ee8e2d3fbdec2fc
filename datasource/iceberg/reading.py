"""Options for reading with `penstock.iceberg`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...committers.iceberg.address import IcebergAddress, parse_table_name
from ...committers.iceberg.catalog import CatalogConfig
from ...readers.iceberg.scan import IcebergTableReader
from ...readers.iceberg.table import WantedVersion, load_version
from ..options.declaring import option_of, optional, options_of, prefixes_of
from ..options.parsing import text
from ..reading.options import ReadOptions, number, only_one, parse_read_options, time_of
from .options import NAME, IcebergOptions, problems_of_catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergReadOptions(ReadOptions):
    """Options for reading with `penstock.iceberg`."""

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
    def parse(cls, options: Mapping[str, str]) -> IcebergReadOptions:
        """
        Raises:
            ConfigurationError: lists all problems.
        """
        return parse_read_options(cls, NAME, options, _problems)

    def open(self) -> IcebergTableReader:
        """See `Opens`."""
        config = CatalogConfig.of(self.catalog, self.catalog_properties, self.warehouse)
        branch = {} if self.read_branch is None else {"branch": self.read_branch}
        address = IcebergAddress(config.address_name, parse_table_name(self.table), **branch)
        wanted = WantedVersion(self.snapshot_id, self.timestamp_as_of, self.read_branch, self.tag)
        return IcebergTableReader(load_version(config, address, wanted))


_VERSIONS = {
    "read_branch": "branch",
    "tag": "tag",
    "snapshot_id": "snapshotId",
    "timestamp_as_of": "timestampAsOf",
}


def _problems(values: Mapping[str, Any]) -> Iterator[str]:
    yield from only_one(values, _VERSIONS)
    yield from problems_of_catalog(values)


OPTIONS = options_of(IcebergReadOptions)
PREFIXES = prefixes_of(IcebergReadOptions)
