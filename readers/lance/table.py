"""Versions of a Lance table, for readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ...committers.error_causes import retryable
from ...committers.errors import ConfigurationError, RetryableError, shown
from ...committers.lance.library import in_short, require_library

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.dataset import Version


@dataclass(frozen=True, slots=True)
class WantedVersion:
    """Which version of a table is read; nothing set: the newest one. At most one is set."""

    version: int | None = None
    at: datetime | None = None
    tag: str | None = None


def load_version(table_uri: str, storage_options: Mapping[str, str], wanted: WantedVersion) -> LanceDataset:
    """Load a version of a table.

    Raises:
        ConfigurationError: the table or the version does not exist.
        RetryableError: it cannot be read now.
    """
    table = open_version(table_uri, storage_options, None)
    if table is None:
        raise ConfigurationError(
            f"There is no Lance table {table_uri}. Check the path and the storage.* options. Nothing was "
            "read."
        )
    if wanted.version is None and wanted.at is None and wanted.tag is None:
        return table
    version = _version(table, wanted)
    found = None if version is None else open_version(table_uri, storage_options, version)
    if found is None:
        raise _missing(table, wanted)
    return found


def _version(table: LanceDataset, wanted: WantedVersion) -> int | None:
    if wanted.tag is not None:
        tag = table.tags.list().get(wanted.tag)
        return None if tag is None or tag["branch"] is not None else tag["version"]
    if wanted.at is not None:
        older = [number for number, time in _times(table) if time <= wanted.at]
        return older[-1] if older else None
    return wanted.version


def _times(table: LanceDataset) -> list[tuple[int, datetime]]:
    """Return the versions that the table still has, oldest first, and when each was committed."""
    return [(one["version"], time_of(one)) for one in table.versions()]


def time_of(version: Version) -> datetime:
    """Return when a version was committed. The library gives local times without a zone."""
    at = version["timestamp"]
    assert isinstance(at, datetime)
    return at.astimezone(timezone.utc)


def _missing(table: LanceDataset, wanted: WantedVersion) -> ConfigurationError:
    if wanted.tag is not None:
        what = f"tag {shown(wanted.tag)}"
    elif wanted.at is not None:
        what = f"version at {wanted.at.astimezone(timezone.utc).isoformat()}"
    else:
        what = f"version {wanted.version}"
    numbers = [number for number, _ in _times(table)]
    tags = ", ".join(sorted(table.tags.list()))
    return ConfigurationError(
        f"The Lance table {table.uri} has no {what}, or it was cleaned up. It has the versions "
        f"{numbers[0]} to {numbers[-1]}, and the tags: {tags or 'none'}. Nothing was read."
    )


def open_version(
    table_uri: str, storage_options: Mapping[str, str], version: int | None
) -> LanceDataset | None:
    """Open a version of a table, or the newest one; None if it does not exist.

    Raises:
        RetryableError: it cannot be read now.
    """
    require_library()
    import lance

    try:
        return lance.dataset(table_uri, version=version, storage_options=dict(storage_options) or None)
    except Exception as error:
        if isinstance(error, ValueError) and "was not found" in str(error):
            return None
        raise unreadable(f"The Lance table {table_uri}", error) from error


def newest_version(table: LanceDataset, storage_options: Mapping[str, str]) -> int | None:
    """Return the newest version of a table that was opened earlier; None if it does not exist.

    Raises:
        RetryableError: it cannot be read now.
    """
    try:
        return int(table.latest_version)
    except Exception as error:
        if open_version(table.uri, storage_options, None) is None:
            return None
        raise unreadable(f"The Lance table {table.uri}", error) from error


def versions_there(table: LanceDataset) -> list[int]:
    """Return the versions that a table still has, oldest first. Costs one request.

    Raises:
        RetryableError: it cannot be read now.
    """
    try:
        return sorted(one["version"] for one in table.version_refs())
    except Exception as error:
        raise unreadable(f"The Lance table {table.uri}", error) from error


def unreadable(what: str, error: Exception) -> RetryableError:
    return retryable(error)(
        f"{what} cannot be read: {in_short(error)}. Check the path, the storage.* options and that the "
        "storage is reachable, and read again."
    )
