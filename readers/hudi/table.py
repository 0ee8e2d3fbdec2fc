"""Versions of a Hudi table, for readers: its columns, and what of it cannot be read.

A version is the table as of an instant: the newest slices of all commits whose instants are not later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import islice
from typing import Any

import pyarrow as pa

from ...committers.error_causes import retryable
from ...committers.errors import ConfigurationError, RetryableError, TableNotSupportedError
from ...committers.hudi import avro
from ...committers.hudi.commit_metadata import SCHEMA_KEY, extra_metadata
from ...committers.hudi.names import META_COLUMNS
from ...committers.hudi.properties import ID, PATH, VERSIONS, layout_of, parse
from ...committers.hudi.schema import arrow_schema
from ...committers.hudi.storage import HudiStorage
from ...committers.hudi.timeline import Timeline, instant_at, time_of
from ..unreadable import UnreadableFeature, refuse

_COMMITS_READ = 100
"""Commits that are searched for a schema; only commits by Hudi's tools may have none."""
_CLEAN = ".clean"


@dataclass(frozen=True, slots=True)
class HudiState:
    """A table as it is now."""

    properties: Mapping[str, str]
    names: frozenset[str]
    """Of the files of the timeline."""
    timeline: Timeline

    @property
    def table_id(self) -> str:
        """The id of a table that Penstock has created; of others the name, which a table in its place may
        have too.
        """
        return self.properties.get(ID) or self.properties.get("hoodie.table.name", "")

    @property
    def is_utc(self) -> bool:
        """Instants are in UTC; else in the time zone of the writer's machine, as of this one."""
        return self.properties.get("hoodie.table.timeline.timezone", "LOCAL").upper() == "UTC"

    def instant(self, at: datetime) -> str:
        """Return a time as an instant of the table."""
        return instant_at(at.astimezone(timezone.utc) if self.is_utc else at.astimezone())

    def time(self, instant: str) -> datetime | None:
        """Return the time of an instant of the table; None if it is none."""
        try:
            found = time_of(instant)
        except ValueError:
            return None
        return found if self.is_utc else found.replace(tzinfo=None).astimezone()


@dataclass(frozen=True, slots=True)
class HudiVersion:
    """One version of a table."""

    table_uri: str
    storage: HudiStorage
    state: HudiState
    """Of the table when the version was loaded."""
    timeline: Timeline
    """Without later instants than that of the version."""
    instant: str
    """The last commit of the version; `0`: there is none."""
    schema: pa.Schema
    """Hudi's own columns first, as Hudi for Spark has them."""

    @property
    def shown(self) -> str:
        return f"instant {self.instant} of the Hudi table {self.table_uri}"


def load_version(
    table_uri: str, storage_options: Mapping[str, str], at: datetime | None = None
) -> HudiVersion:
    """Load the newest version, or the one at a time.

    Raises:
        ConfigurationError: the table or the version does not exist.
        TableNotSupportedError: it has a feature that the reader does not know, or files of the version were
            cleaned.
        RetryableError: it cannot be read now.
    """
    storage = HudiStorage(table_uri, storage_options)
    try:
        return _load(table_uri, storage, at)
    except OSError as error:
        raise unreadable(table_uri, error) from error


def unreadable(table_uri: str, error: Exception) -> RetryableError:
    return retryable(error)(
        f"The Hudi table {table_uri} cannot be read: {error}. Check the path, the storage.* options and that "
        "the storage is reachable, and read again."
    )


def load_state(table_uri: str, storage: HudiStorage) -> HudiState:
    """
    Raises:
        ConfigurationError: the table does not exist.
        TableNotSupportedError: it has a feature that the reader does not know.
        OSError: it cannot be read now.
    """
    content = storage.read(PATH) or storage.read(f"{PATH}.backup")
    if content is None:
        raise ConfigurationError(
            f"There is no Hudi table {table_uri}. Check the path and the storage.* options. Nothing was read."
        )
    properties = parse(content.decode())
    refuse(_unreadable(properties), f"The Hudi table {table_uri}", "Hudi")
    layout = layout_of(properties)
    if layout.has_completion_times:
        avro.check_library(table_uri)
    names = storage.names(layout.folder)
    return HudiState(properties, frozenset(names), Timeline.of(names, layout))


def _load(table_uri: str, storage: HudiStorage, at: datetime | None) -> HudiVersion:
    state = load_state(table_uri, storage)
    timeline = state.timeline
    if at is not None:
        wanted = state.instant(at)
        timeline = _as_of(timeline, wanted, table_uri)
        _check_not_cleaned(storage, timeline.layout.folder, state.names, wanted, table_uri)
    instant = timeline.commits[-1][0] if timeline.commits else "0"
    schema = _schema(storage, timeline, state.properties, table_uri)
    return HudiVersion(table_uri, storage, state, timeline, instant, schema)


# Time travel ----------------------------------------------------------------------------------------------


def _as_of(timeline: Timeline, wanted: str, table_uri: str) -> Timeline:
    commits = tuple(one for one in timeline.commits if one[0] <= wanted)
    if not commits or wanted < timeline.first:  # files of archived commits cannot be told from later ones
        first = f"its first one is {time_of(timeline.commits[0][0])}" if timeline.commits else "it has none"
        raise ConfigurationError(
            f"The Hudi table {table_uri} has no commit at instant {wanted}, or it was archived: {first}. "
            "Nothing was read."
        )
    return replace(timeline, commits=commits)


def _check_not_cleaned(
    storage: HudiStorage, folder: str, names: Iterable[str], wanted: str, table_uri: str
) -> None:
    """
    Raises:
        TableNotSupportedError: the cleaner may have deleted files that the version has.
    """
    cleans = sorted(name for name in names if name.endswith(_CLEAN))
    if not cleans:
        return
    avro.check_library(table_uri)
    content = storage.read(f"{folder}/{cleans[-1]}")
    try:
        kept = str((avro.decode(content) if content else {}).get("earliestCommitToRetain") or "")
    except ValueError:
        kept = ""
    if not kept or wanted < kept:
        since = f"before {kept}" if kept else "of earlier versions"
        raise TableNotSupportedError(
            f"The Hudi table {table_uri} cannot be read as of instant {wanted}: its cleaner may have deleted "
            f"files {since}. Nothing was read. Read a later version."
        )


# What is read ---------------------------------------------------------------------------------------------


def _schema(
    storage: HudiStorage, timeline: Timeline, properties: Mapping[str, str], table_uri: str
) -> pa.Schema:
    """
    Raises:
        TableNotSupportedError: the table has no schema, or one that cannot be read.
    """
    text = properties.get("hoodie.table.create.schema", "")
    for _, name in islice(reversed(timeline.commits), _COMMITS_READ):
        extra = extra_metadata(storage.read(f"{timeline.layout.folder}/{name}") or b"")
        if found := schema_text(extra, table_uri):
            text = found
            break
    return parse_schema(text, table_uri)


def schema_text(extra: Mapping[str, str], table_uri: str) -> str:
    """Return the schema in the extra metadata of a commit; empty if it has none.

    Raises:
        TableNotSupportedError: files may have other names of columns.
    """
    if extra.get("latest_schema"):
        what = UnreadableFeature("schema on read", "columns may have other names in older files")
        refuse([what], f"The Hudi table {table_uri}", "Hudi")
    return extra.get(SCHEMA_KEY) or ""


def parse_schema(text: str, table_uri: str) -> pa.Schema:
    """Return the columns of a table, Hudi's own first.

    Raises:
        TableNotSupportedError: the schema cannot be read.
    """
    own = [pa.field(name, pa.string()) for name in META_COLUMNS]
    try:
        record: dict[str, Any] = json.loads(text)
        return pa.schema([*own, *arrow_schema(record)])
    except (ValueError, KeyError, TypeError, RecursionError, pa.ArrowException) as error:
        raise TableNotSupportedError(
            f"The Hudi table {table_uri} cannot be read: its schema is not known ({error!r}). Nothing was "
            "read. Read it with Hudi's own engine."
        ) from error


def _unreadable(properties: Mapping[str, str]) -> Iterator[UnreadableFeature]:
    version = properties.get("hoodie.table.version", "")
    if version not in VERSIONS:
        yield UnreadableFeature(
            f"table version {version or 'unknown'}", f"Penstock reads {', '.join(VERSIONS)}"
        )
    wanted = {
        "hoodie.table.type": ("COPY_ON_WRITE", "rows of log files would be missing"),
        "hoodie.table.base.file.format": ("PARQUET", "Penstock reads Parquet"),
        "hoodie.table.format": ("NATIVE", "the timeline of other formats is elsewhere"),
        "hoodie.datasource.write.drop.partition.columns": ("FALSE", "files lack the partition columns"),
        "hoodie.partition.metafile.use.base.format": ("FALSE", "partitions would not be found"),
        "hoodie.populate.meta.fields": ("TRUE", "files lack Hudi's own columns"),
        "hoodie.schema.on.read.enable": ("FALSE", "columns may have other names in older files"),
    }
    for key, (value, why) in wanted.items():
        if (given := properties.get(key, value).strip()).upper() != value:
            yield UnreadableFeature(f"{key} = {given}", why)
    if properties.get("hoodie.bootstrap.base.path"):
        yield UnreadableFeature("bootstrapped files", "a part of their columns is in another table")
