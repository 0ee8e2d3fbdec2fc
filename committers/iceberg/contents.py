"""How large the files of an Iceberg table are, and how many of their rows are deleted."""

from __future__ import annotations

from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table

from ..error_causes import retryable
from .address import IcebergAddress
from .catalog import CatalogConfig, in_short
from .live_files import live_files


def sizes_and_rows(
    table: Table, address: IcebergAddress, config: CatalogConfig
) -> tuple[list[int], int, int]:
    """Return the bytes of each data file, the rows of all of them, and the rows in position deletes.

    Raises:
        RetryableError: a manifest cannot be read.
    """
    try:
        live = live_files(table, address.branch)
    except Exception as error:  # noqa: BLE001  storages raise errors of any type
        raise retryable(error)(
            f"The manifests of the Iceberg table {address.uri} cannot be read: {in_short(error, config)}. "
            "Check that the storage is reachable."
        ) from None
    files = [entry.data_file for entry in live.data.values()]
    deletes = [entry.data_file for entry in live.deletes]
    return (
        [file.file_size_in_bytes for file in files],
        sum(file.record_count for file in files),
        sum(one.record_count for one in deletes if one.content == DataFileContent.POSITION_DELETES),
    )
