"""`penstock gc` for one table: find the files that nothing references, list or delete them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..committers.cleaning.cleanup import ClassifiedFiles
from ..committers.errors import ConfigurationError, PenstockError
from ..committers.store.sql import SqlManifestStore
from ..committers.store.status import StreamStatus
from ..committers.texts.safe_text import one_line
from ..datasource.destinations import cleanup_of, stored_table
from ..datasource.stored.stored_table import Cleanable
from ..datasource.stored.stream_access import has_own_access
from ..datasource.stored.table_access import TableAccess
from . import output

GRACE_MIN = timedelta(hours=1)
"""Minimum of --older-than: the clocks of the storage and this machine may differ."""

_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "min": timedelta(minutes=1)}


@dataclass(slots=True)
class CleanedTable:
    """Result for one table. After an error, the remaining files are unchanged."""

    table_uri: str
    found: ClassifiedFiles | None = None
    deleted: int = 0
    error: PenstockError | None = None

    @property
    def files(self) -> int:
        return 0 if self.found is None else len(self.found.unneeded)

    def to_json(self) -> dict[str, object]:
        found = self.found or ClassifiedFiles()
        return {
            "table_uri": self.table_uri,
            "files": [output.listed_file_json(file) for file in found.unneeded],
            "size_bytes": found.size_bytes,
            "deleted": self.deleted,
            "kept_young": len(found.young),
            "kept_unsettled": len(found.unsettled),
            "error": None if self.error is None else str(self.error),
        }


def parse_grace(text: str) -> timedelta:
    """Parse --older-than.

    Raises:
        ConfigurationError: the text is not a duration, or the duration is too short.
    """
    match = re.fullmatch(r"(\d{1,5})\s*(d|h|min)", text.strip())
    if match is None:
        raise ConfigurationError(
            f"--older-than {text!r} is not an age. Give days or hours, such as 7d or 12h."
        )
    grace = int(match[1]) * _UNITS[match[2]]
    if grace < GRACE_MIN:
        raise ConfigurationError(
            f"--older-than {text!r} is too short. Give at least 1h: the clocks of the storage and this "
            "machine may differ."
        )
    return grace


def by_table(streams: Sequence[StreamStatus]) -> Mapping[str, list[StreamStatus]]:
    tables: dict[str, list[StreamStatus]] = {}
    for stream in streams:
        tables.setdefault(stream.key.table_uri, []).append(stream)
    return tables


def clean_table(
    store: SqlManifestStore,
    streams: Sequence[StreamStatus],
    access: TableAccess,
    now: datetime,
    grace: timedelta,
    *,
    delete: bool,
) -> CleanedTable:
    """Clean up the table of `streams`, which all write to the same table."""
    cleaned, keys = CleanedTable(streams[0].key.table_uri), [stream.key for stream in streams]
    try:
        for stream in streams:
            stored_table(stream, access).committer()  # refuses unknown kinds of tables
        stored = stored_table(
            next((one for one in streams if has_own_access(one, access)), streams[0]), access
        )
        if not isinstance(stored, Cleanable):
            return cleaned
        cleanup = cleanup_of(stored, store, keys)
        shown = one_line(f"Scanning {cleaned.table_uri}")
        with output.progress(shown) as show:
            cleaned.found = cleanup.find(now, grace)
            for count in cleanup.delete(cleaned.found) if delete else ():
                cleaned.deleted += count
                show(f"Deleted {cleaned.deleted:,} of {cleaned.files:,} files")
    except PenstockError as error:
        cleaned.error = error
    return cleaned


def print_cleaned(cleaned: CleanedTable, now: datetime, *, delete: bool) -> None:
    found = cleaned.found or ClassifiedFiles()
    output.print_line(cleaned.table_uri, style="bold")
    for file in found.unneeded:
        old = output.age(now - file.modified_at)
        output.print_line(f"  {output.size(file.size_bytes):>10}  {old:>6} old  {file.path}")
    output.print_line(f"  {_summary(cleaned, found, delete=delete)}")
    if found.young or found.unsettled:
        output.print_line(
            f"  Kept: {output.count(len(found.young), 'file')} younger than the grace period, "
            f"{len(found.unsettled):,} of batches that may still be committed."
        )


def _summary(cleaned: CleanedTable, found: ClassifiedFiles, *, delete: bool) -> str:
    if cleaned.found is None and cleaned.error is None:
        return "Not supported for this kind of table: files of failed tasks are not searched for."
    if cleaned.found is None:
        return "Not checked: see the error."
    files = f"{output.count(len(found.unneeded), 'file')}, {output.size(found.size_bytes)}"
    if not found.unneeded:
        return "Nothing to delete."
    if not delete:
        return f"{files} that nothing references. Nothing was deleted: add --delete to do so."
    left = len(found.unneeded) - cleaned.deleted
    return f"{files}: deleted." if not left else f"{files}: {cleaned.deleted:,} deleted, {left:,} left."
