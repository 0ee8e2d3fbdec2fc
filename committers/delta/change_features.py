"""What a Delta table must have, so that commits may change its rows."""

from __future__ import annotations

from collections.abc import Mapping

from deltalake import DeltaTable, TableFeatures

from ..contract import Changes, Mode
from ..error_causes import retryable
from ..errors import NEXT_TRY, ConfigurationError
from .library import in_short
from .log_files import open_log_files

VECTORS_PROPERTY = "delta.enableDeletionVectors"
FEED_PROPERTY = "delta.enableChangeDataFeed"


def has_vectors(properties: Mapping[str, str]) -> bool:
    """Return True if commits may add deletion vectors to a table with these properties."""
    return properties.get(VECTORS_PROPERTY, "false").strip().lower() == "true"


def has_change_data(properties: Mapping[str, str]) -> bool:
    """Return True if the table has a change data feed."""
    return properties.get(FEED_PROPERTY, "false").strip().lower() == "true"


def check_reachable(table_uri: str, storage_options: Mapping[str, str]) -> None:
    """
    Raises:
        ConfigurationError: only the Delta library can write the log of the table.
    """
    if open_log_files(table_uri, storage_options) is None:
        raise ConfigurationError(
            f"writeMode=upsert cannot write the log of the Delta table {table_uri}: it can on a local disk, "
            "and on S3 and Azure with a key, a role of the machine or a service principal in the storage.* "
            "options. Nothing was written. See docs/storage.md."
        )


def new_table_properties(mode: Mode) -> Mapping[str, str]:
    """Return properties of a table that a query creates."""
    return {VECTORS_PROPERTY: "true"} if isinstance(mode, Changes) and mode.merge != "on-write" else {}


def allow_vectors(table: DeltaTable) -> None:
    """Let commits add deletion vectors: readers that do not know them can no longer read the table.

    Raises:
        RetryableError: another writer was faster, or the storage cannot be reached.
    """
    try:
        table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
        table.alter.set_table_properties({VECTORS_PROPERTY: "true"})
    except Exception as error:
        raise retryable(error)(
            f"The Delta table {table.table_uri} could not get deletion vectors (merge=on-read): "
            f"{in_short(error)}. No row was changed. {NEXT_TRY}"
        ) from error
