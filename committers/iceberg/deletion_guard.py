"""Which folders of an Iceberg table files are deleted in, and may be named in by manifests of the store."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table import Table

from ..contract import Manifest
from ..deletion import DeletionGuard, has_folder
from ..errors import ManifestCorruptError
from ..file_tables.manifest import LakeManifest
from .plan import data_location

OWN_PATHS = ("penstock.data-path", "penstock.metadata-path")
"""Properties of the catalog, which the operator gives: folders of the table outside of its location."""

REMEDY = (
    "If the table keeps its own files there, give the option catalog.penstock.data-path (or "
    "catalog.penstock.metadata-path) with this folder, to the query, `penstock deliver` and `penstock gc`."
)


def table_deletion_guard(table: Table) -> DeletionGuard:
    """Let pass what lies below the table's location, or below the folders that the operator gives.

    The table's properties (`write.data.path`, ...) widen nothing: anybody who may write the table sets them.
    Nor does a location that is the root of a disk, a bucket or a container.
    """
    given: Mapping[str, str | None] = table.catalog.properties
    folders = [table.location(), *(str(given[name]) for name in OWN_PATHS if given.get(name))]
    return DeletionGuard([folder for folder in folders if has_folder(folder)], REMEDY)


def is_own_location(table: Table, location: str) -> bool:
    """Return True if the table keeps data files at this location now, or may have kept them there earlier."""
    return location == data_location(table) or table_deletion_guard(table).allows(
        f"{location.rstrip('/')}/file"
    )


def check_location(table: Table, manifest: Manifest, content: LakeManifest) -> None:
    """Check that the files of a manifest from the store lie where the table's own files do.

    Raises:
        ManifestCorruptError: they do not.
    """
    if not is_own_location(table, content.location):
        batch = manifest.batch
        raise ManifestCorruptError(
            f"The manifest of batch {batch.batch_id} of {batch.stream} names files at {content.location}, "
            f"which is not a location of the table at {table.location()}. Nothing was committed. If the "
            "table's property write.data.path was changed since the batch was written, give the option "
            "catalog.penstock.data-path with this folder; if not, find out who has written to the store."
        )
