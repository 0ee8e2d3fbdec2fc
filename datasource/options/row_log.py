"""Where the row log of a query is."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from pathlib import Path

from ...committers.cleaning.regular_files import sync
from ...committers.dry_runs import in_dry_run
from ...committers.error_causes import retryable
from ...committers.errors import ConfigurationError
from ...writers.local_path import local_path
from .stream import normalized_location

ROW_LOG = "row-log"
"""Directory of the row log in a local checkpoint."""


def row_log_of(row_log: str | None, checkpoint: str | None) -> str | None:
    """Return the location of the row log; None if it is not known."""
    if row_log is not None:
        return normalized_location(row_log)  # targets that share a log are found by it
    directory = local_path(checkpoint) if checkpoint else None
    return None if directory is None else posixpath.join(directory, ROW_LOG)


def storage_options_of(options: object) -> Mapping[str, str]:
    """Return the options of the object store with the row log; empty for a destination that has none."""
    found: Mapping[str, str] = getattr(options, "storage_options", {})
    return found


def missing_row_log(option: str = "delivery=decoupled") -> ConfigurationError:
    """
    Args:
        option: because of which the query needs a row log
    """
    return ConfigurationError(
        f"rowLog is missing: with {option}, tasks write the rows to a row log, and checkpointLocation is not "
        "on a local disk. Give a location that driver, executors and delivery process can reach: "
        '.option("rowLog", "s3://bucket/row-log").'
    )


def create_row_log(location: str) -> None:
    """Create the directory of a local row log, durably: a manifest must not outlive its files.

    Raises:
        RetryableError: it cannot be created.
    """
    path = local_path(location)
    if path is None or Path(path).is_dir() or in_dry_run():
        return
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        sync(Path(path).parent)
    except OSError as error:
        raise retryable(error)(
            f"The directory of the row log {location} cannot be created: {error}. No row was written. Check "
            "that this user may write there, or give another place with rowLog."
        ) from error
