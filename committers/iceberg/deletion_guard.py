"""Folders of an Iceberg table in which files may be deleted, and which manifests in the store may refer
to.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table import Table

from ..cleaning.deletion import DeletionGuard, has_folder
from ..contract import Manifest
from ..errors import ManifestCorruptError
from ..file_tables.manifest import LakeManifest
from ..file_tables.shared_files import shared_with
from .plan import data_location

OWN_PATHS = ("penstock.data-path", "penstock.metadata-path")
"""Catalog properties set by the operator: folders of the table outside of its location."""

REMEDY = (
    "If the table stores its own files there, set the option catalog.penstock.data-path (or "
    "catalog.penstock.metadata-path) to this folder for the query, `penstock deliver` and `penstock gc`."
)


def table_deletion_guard(table: Table) -> DeletionGuard:
    """The guard that accepts files below the table's location and below the operator's folders.

    The table's properties (`write.data.path`, ...) are not used: anyone who can write the table can set them.
    A location that is the root of a disk, a bucket or a container is not used either.
    """
    given: Mapping[str, str | None] = table.catalog.properties
    is_shared = shared_with(table.properties) is not None  # its data files are those of another table, too
    own = OWN_PATHS[1:] if is_shared else OWN_PATHS
    folders = [table.location(), *(str(given[name]) for name in own if given.get(name))]
    return DeletionGuard([folder for folder in folders if has_folder(folder)], REMEDY)


def is_own_location(table: Table, location: str) -> bool:
    """Return True if the table stores data files at this location now, or may have done so earlier."""
    return location == data_location(table) or table_deletion_guard(table).allows(
        f"{location.rstrip('/')}/file"
    )


def check_location(table: Table, manifest: Manifest, content: LakeManifest) -> None:
    """Check that the files of a manifest from the store are in a location of the table.

    Raises:
        ManifestCorruptError: they are not.
    """
    if not is_own_location(table, content.location):
        batch = manifest.batch
        raise ManifestCorruptError(
            f"The manifest of batch {batch.batch_id} of {batch.stream} lists files at {content.location}, "
            f"which is not a location of the table at {table.location()}. Nothing was committed. If the "
            "table's property write.data.path was changed since the batch was written, set the option "
            "catalog.penstock.data-path to this folder. If not, find out who has written to the store."
        )
