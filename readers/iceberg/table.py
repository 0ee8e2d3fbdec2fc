"""Versions of an Iceberg table, for readers: its snapshot, its schema, and what of it cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from ...committers.errors import ConfigurationError, shown
from ...committers.iceberg.address import MAIN_BRANCH, IcebergAddress
from ...committers.iceberg.catalog import CatalogConfig
from ...committers.iceberg.table import load_if_there
from ..unreadable import UnreadableFeature, refuse

FORMAT_VERSION_MAX = 3


@dataclass(frozen=True, slots=True)
class WantedVersion:
    """Which version of a table is read; nothing set: the head of the main branch. At most one is set."""

    snapshot_id: int | None = None
    at: datetime | None = None
    branch: str | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class IcebergVersion:
    """One version of a table."""

    table: Table
    address: IcebergAddress
    config: CatalogConfig
    snapshot: Snapshot | None
    """None: the table is empty."""
    schema: Schema

    @property
    def shown(self) -> str:
        which = "without snapshots" if self.snapshot is None else f"at snapshot {self.snapshot.snapshot_id}"
        return f"the Iceberg table {self.address.uri} {which}"


def load_version(config: CatalogConfig, address: IcebergAddress, wanted: WantedVersion) -> IcebergVersion:
    """Load a version of a table.

    Raises:
        ConfigurationError: the table or the version does not exist, or the catalog cannot be opened.
        TableNotSupportedError: it has a feature that the reader does not know.
        RetryableError: it cannot be read now.
    """
    table = load_if_there(config, address)
    if table is None:
        raise ConfigurationError(
            f"There is no Iceberg table {address.uri}. Check table, catalog and warehouse. Nothing was read."
        )
    snapshot = _snapshot(table.metadata, address, wanted)
    schema = _schema(table, snapshot, wanted)
    refuse(_unreadable(table.metadata, schema), f"The Iceberg table {address.uri}", "Iceberg")
    return IcebergVersion(table, address, config, snapshot, schema)


def _snapshot(metadata: TableMetadata, address: IcebergAddress, wanted: WantedVersion) -> Snapshot | None:
    if wanted.snapshot_id is not None:
        found = metadata.snapshot_by_id(wanted.snapshot_id)
        if found is None:
            raise _missing(metadata, address, f"snapshot {wanted.snapshot_id}, or it has expired")
        return found
    if wanted.at is not None:
        return _snapshot_at(metadata, address, wanted.at)
    name = wanted.tag or wanted.branch or MAIN_BRANCH
    kind = SnapshotRefType.TAG if wanted.tag else SnapshotRefType.BRANCH
    ref = metadata.refs.get(name)
    if ref is None and name == MAIN_BRANCH:
        return None
    if ref is None or ref.snapshot_ref_type != kind:
        raise _missing(metadata, address, f"{kind.value} {shown(name)}")
    return metadata.snapshot_by_id(ref.snapshot_id)


def _snapshot_at(metadata: TableMetadata, address: IcebergAddress, at: datetime) -> Snapshot:
    """Return the snapshot that was the head of the main branch at a time."""
    at_ms = at.timestamp() * 1000
    found = [entry for entry in metadata.snapshot_log if entry.timestamp_ms <= at_ms]
    snapshot = metadata.snapshot_by_id(found[-1].snapshot_id) if found else None
    if snapshot is None:
        time = at.astimezone(timezone.utc).isoformat()
        raise _missing(metadata, address, f"snapshot at {time}, or it has expired")
    return snapshot


def _missing(metadata: TableMetadata, address: IcebergAddress, what: str) -> ConfigurationError:
    refs = ", ".join(f"{name} ({ref.snapshot_ref_type.value})" for name, ref in metadata.refs.items())
    return ConfigurationError(
        f"The Iceberg table {address.uri} has no {what}. It has {len(metadata.snapshots)} snapshots, and "
        f"these branches and tags: {refs or 'none'}. Nothing was read."
    )


def _schema(table: Table, snapshot: Snapshot | None, wanted: WantedVersion) -> Schema:
    """Return the current schema for a branch, and the schema of its time for other versions, as Iceberg for
    Spark does.
    """
    is_past = wanted.snapshot_id is not None or wanted.at is not None or wanted.tag is not None
    if not is_past or snapshot is None or snapshot.schema_id is None:
        return table.schema()
    return table.schemas().get(snapshot.schema_id, table.schema())


def _unreadable(metadata: TableMetadata, schema: Schema) -> Iterator[UnreadableFeature]:
    if metadata.format_version > FORMAT_VERSION_MAX:
        yield UnreadableFeature(
            f"format version {metadata.format_version}", "this version of Penstock knows 1 to 3"
        )
    for number in sorted(schema.field_ids):
        field = schema.find_field(number)
        if field.initial_default is not None:
            yield UnreadableFeature(
                f"default value of the column {schema.find_column_name(number)!r}",
                "rows of older files would be NULL instead",
            )
