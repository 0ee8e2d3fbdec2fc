"""Snapshots of a DuckLake table, for readers: its columns, and what of it cannot be read. Driver only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ...committers.ducklake.connection import Lake, LakeServer
from ...committers.ducklake.table import settings_of
from ...committers.errors import ConfigurationError
from ..unreadable import UnreadableFeature, refuse
from .columns import LakeColumn, column_trees

CATALOG_VERSION = "1.0"
SO = "Nothing was read"
_IN_SNAPSHOT = "{0}.begin_snapshot <= ? AND ({0}.end_snapshot IS NULL OR {0}.end_snapshot > ?)"


def in_snapshot(table: str) -> str:
    """Return the condition for rows of the catalog that are in a snapshot. It has two parameters."""
    return _IN_SNAPSHOT.format(table)


@dataclass(frozen=True, slots=True)
class DuckLakeVersion:
    """A table in one snapshot."""

    server: LakeServer
    snapshot: int
    table_id: int
    uuid: str
    folder: str
    """Below which its files are, with a slash at the end; files with absolute paths are elsewhere."""
    columns: tuple[LakeColumn, ...]

    @property
    def shown(self) -> str:
        return f"snapshot {self.snapshot} of the DuckLake table {self.server.address.uri}"


@dataclass(frozen=True, slots=True)
class ColumnHistory:
    """The columns of a table in snapshots."""

    rows: Sequence[Sequence[Any]]
    """Of `column_trees`, with the first snapshot that has the column, and the first that no longer has it."""

    @classmethod
    def load(cls, lake: Lake, table_id: int, first: int) -> ColumnHistory:
        """
        Args:
            first: snapshots before are not needed
        """
        return cls(
            lake.rows(
                "SELECT column_id, column_name, column_type, nulls_allowed, parent_column, initial_default, "
                f"begin_snapshot, end_snapshot FROM {lake.metadata('ducklake_column')} "
                "WHERE table_id = ? AND (end_snapshot IS NULL OR end_snapshot > ?) ORDER BY column_order",
                table_id,
                first,
            )
        )

    def at(self, snapshot: int) -> tuple[LakeColumn, ...]:
        return column_trees(
            row for *row, begin, end in self.rows if begin <= snapshot and (end is None or end > snapshot)
        )


def load_version(
    server: LakeServer, snapshot: int | None = None, at: datetime | None = None
) -> DuckLakeVersion:
    """Load the newest snapshot, a given one, or the newest one at a time.

    Raises:
        ConfigurationError: the table or the snapshot does not exist.
        TableNotSupportedError: it has a feature that the reader does not know.
        RetryableError: the catalog cannot be reached now.
    """
    address = server.address
    with server.attached(SO) as lake:
        if lake is None:
            raise ConfigurationError(
                f"There is no DuckLake for {address.uri}. Check the option catalog. {SO}."
            )
        lake.begin()
        settings = settings_of(lake)
        refuse(_unreadable(settings), f"The DuckLake of {address.uri}", "DuckLake")
        number = _snapshot(lake, server, snapshot, at)
        found = lake.rows(
            "SELECT t.table_id, t.table_uuid::VARCHAR, s.path, s.path_is_relative, t.path, "
            f"t.path_is_relative FROM {lake.metadata('ducklake_table')} t "
            f"JOIN {lake.metadata('ducklake_schema')} s "
            f"ON s.schema_id = t.schema_id AND {in_snapshot('s')} "
            f"WHERE {in_snapshot('t')} AND s.schema_name = ? AND t.table_name = ?",
            *[number] * 4,
            address.schema,
            address.table,
        )
        if not found:
            raise ConfigurationError(
                f"There is no DuckLake table {address.uri} in snapshot {number}. Check the option table. "
                f"{SO}."
            )
        ((table_id, uuid, *paths),) = found
        folder = settings["data_path"]
        for path, is_relative in (paths[:2], paths[2:]):
            folder = f"{folder}{path}" if is_relative else path
        columns = ColumnHistory.load(lake, table_id, number).at(number)
    return DuckLakeVersion(server, number, table_id, uuid, folder, columns)


def _snapshot(lake: Lake, server: LakeServer, wanted: int | None, at: datetime | None) -> int:
    if wanted is None and at is None:
        return lake.snapshot()
    if at is not None:
        ((found,),) = lake.rows(
            f"SELECT max(snapshot_id) FROM {lake.name}.snapshots() WHERE snapshot_time <= ?", at
        )
        what = f"snapshot at {at.astimezone(timezone.utc).isoformat()}"
    else:
        found, what = wanted, f"snapshot {wanted}"
    if found is None or not is_there(lake, found):
        ((first, last),) = lake.rows(
            f"SELECT min(snapshot_id), max(snapshot_id) FROM {lake.metadata('ducklake_snapshot')}"
        )
        raise ConfigurationError(
            f"The DuckLake of {server.address.uri} has no {what}, or it has expired. It has the snapshots "
            f"{first} to {last}. {SO}."
        )
    return int(found)


def is_there(lake: Lake, snapshot: int) -> bool:
    """Return False if a snapshot has expired."""
    return bool(
        lake.rows(f"SELECT 1 FROM {lake.metadata('ducklake_snapshot')} WHERE snapshot_id = ?", snapshot)
    )


def _unreadable(settings: Mapping[str, str]) -> Iterator[UnreadableFeature]:
    version = settings.get("version", "")
    if version != CATALOG_VERSION:
        yield UnreadableFeature(
            f"catalog version {version}", f"this version of Penstock knows {CATALOG_VERSION}"
        )
    if settings.get("encrypted") == "true":
        yield UnreadableFeature("encryption", "Penstock does not read encrypted files")
