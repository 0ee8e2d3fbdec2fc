"""Versions of a Delta table, for readers: its schema, its files, and what of it cannot be read."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from ...committers.delta.history import open_log
from ...committers.delta.library import in_short
from ...committers.delta.log_files import LOG
from ...committers.error_causes import retryable
from ...committers.errors import ConfigurationError, RetryableError
from ..unreadable import UnreadableFeature, refuse

READABLE_FEATURES = frozenset(
    {
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "columnMapping",  # unless it is on
        "variantType",  # unless such a column is read
        "variantType-preview",
    }
)
"""Features of readers (`PROTOCOL.md` of Delta, "Table Features"). Their use is checked in columns and
properties; others are refused, because their requirements are unknown.
"""


_REFUSED_BY_LIBRARY = ("Unsupported", "not supported", "catalog-managed")
"""Parts of the library's messages for features that it does not know."""
_IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
ENGINE = "Delta"


@dataclass(frozen=True, slots=True)
class DeltaVersion:
    """One version of a table."""

    table_uri: str
    version: int
    table_id: str
    fields: Sequence[Mapping[str, Any]]
    """The columns, in Delta's JSON, which is Spark's."""
    partition_by: tuple[str, ...]
    has_times: bool = False
    """Its log has the times of versions (in-commit timestamps)."""

    @property
    def shown(self) -> str:
        return f"version {self.version} of the Delta table {self.table_uri}"

    def check_times(self, option: str, instead: str) -> None:
        """
        Args:
            option: that names a time
            instead: the option that names a version

        Raises:
            ConfigurationError: versions cannot be found by time.
        """
        if self.has_times:
            raise ConfigurationError(
                f"{option}: {_name(self.table_uri)} has in-commit timestamps ({_IN_COMMIT_TIMESTAMPS} = "
                f"true), and Penstock finds versions by the times of log files. Give {instead}. Nothing was "
                "read."
            )


def load_version(
    table_uri: str,
    storage_options: Mapping[str, str],
    version: int | None = None,
    at: datetime | None = None,
) -> DeltaVersion:
    """Load the newest version, a given one, or the newest one at a time.

    Raises:
        ConfigurationError: the table or the version does not exist.
        TableNotSupportedError: it has a feature that the reader does not know.
        RetryableError: it cannot be read now.
    """
    if at is not None:
        version = _version_at(table_uri, storage_options, at)
    try:
        table = DeltaTable(table_uri, version=version, storage_options=dict(storage_options))
    except TableNotFoundError:
        raise no_version(table_uri, storage_options, f"version {version}") from None
    except (DeltaError, OSError, ValueError) as error:
        if version is not None and version not in versions_of(table_uri, storage_options):
            raise no_version(table_uri, storage_options, f"version {version}") from None
        if any(text in str(error) for text in _REFUSED_BY_LIBRARY):
            feature = UnreadableFeature(in_short(error), "the Delta library refuses it")
            refuse([feature], _name(table_uri), ENGINE)
        raise unreadable(table_uri, error) from error
    metadata, fields = table.metadata(), json.loads(table.schema().to_json())["fields"]
    protocol = table.protocol()
    found = unreadable_features(
        protocol.reader_features or (), protocol.min_reader_version, metadata.configuration
    )
    refuse(found, _name(table_uri), ENGINE)
    has_times = metadata.configuration.get(_IN_COMMIT_TIMESTAMPS, "").lower() == "true"
    found_version = DeltaVersion(
        table_uri, table.version(), str(metadata.id), fields, tuple(metadata.partition_columns), has_times
    )
    if at is not None:
        found_version.check_times("timestampAsOf", "versionAsOf")
    return found_version


def _name(table_uri: str) -> str:
    return f"The Delta table {table_uri}"


def _missing(table_uri: str) -> ConfigurationError:
    return ConfigurationError(
        f"There is no Delta table {table_uri}. Check the path and the storage.* options. Nothing was read."
    )


def unreadable(table_uri: str, error: Exception) -> RetryableError:
    return retryable(error)(
        f"The Delta table {table_uri} cannot be read: {in_short(error)}. Check the path, the storage.* "
        "options and that the storage is reachable, and read again."
    )


# Time travel ----------------------------------------------------------------------------------------------


def _version_at(table_uri: str, storage_options: Mapping[str, str], at: datetime) -> int:
    """Return the newest version at a time."""
    at_ms = at.timestamp() * 1000
    older = [
        version for version, time_ms in times_ms(versions_of(table_uri, storage_options)) if time_ms <= at_ms
    ]
    if not older:
        raise no_version(table_uri, storage_options, f"version at {at.astimezone(timezone.utc).isoformat()}")
    return older[-1]


def times_ms(versions: Mapping[int, datetime]) -> Iterator[tuple[int, int]]:
    """Yield versions, oldest first, and the time of each in milliseconds since 1970. It is that of its log
    file, but later than the one before.
    """
    last_ms = -1
    for version, modified in sorted(versions.items()):
        last_ms = max(int(modified.timestamp() * 1000), last_ms + 1)
        yield version, last_ms


def versions_of(table_uri: str, storage_options: Mapping[str, str]) -> dict[int, datetime]:
    """Return the versions of which the log has an entry, and when each was written."""
    try:
        log = open_log(table_uri, storage_options)
        infos = log.get_file_info(pafs.FileSelector(LOG, allow_not_found=True))
    except TableNotFoundError:
        return {}
    except (DeltaError, OSError) as error:
        raise unreadable(table_uri, error) from error
    return {
        int(name.removesuffix(".json")): info.mtime or datetime.fromtimestamp(0, timezone.utc)
        for info in infos
        if (name := posixpath.basename(info.path)).endswith(".json")
        and name.removesuffix(".json").isdecimal()
    }


def no_version(table_uri: str, storage_options: Mapping[str, str], what: str) -> ConfigurationError:
    versions = versions_of(table_uri, storage_options)
    if not versions:
        return _missing(table_uri)
    return ConfigurationError(
        f"The Delta table {table_uri} has no {what}, or its log no longer has it: it has entries of the "
        f"versions {min(versions)} to {max(versions)}. Nothing was read."
    )


# What cannot be read --------------------------------------------------------------------------------------


def unreadable_features(
    reader_features: Iterable[str], reader_version: int, properties: Mapping[str, str]
) -> Iterator[UnreadableFeature]:
    """
    Args:
        reader_version: `minReaderVersion` of the protocol
        properties: of the table
    """
    for feature in sorted(set(reader_features) - READABLE_FEATURES):
        yield UnreadableFeature(
            f"table feature {feature!r}",
            "its requirements for readers are unknown to this version of Penstock",
        )
    if reader_version > 3:
        yield UnreadableFeature(
            f"reader version {reader_version}", "it is newer than version 3, which Penstock knows"
        )
    mapping = properties.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        yield UnreadableFeature(
            f"column mapping (delta.columnMapping.mode = {mapping})", "files have other names of columns"
        )
