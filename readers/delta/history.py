"""The commits of a Delta table, for streams: the rows that each one adds, as its log entry says.

Entries: `PROTOCOL.md` of Delta, "Actions". Files with `dataChange=false` have rows that were there before, as
those of a compaction. An entry never changes, so what is read of it is the same in each process.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone

import pyarrow.fs as pafs
from deltalake.exceptions import DeltaError

from ...committers.delta.active_files import files_at
from ...committers.delta.history import open_log
from ...committers.delta.log_files import entry_name
from ...committers.delta.schema_match import Fields, problems_of_reading
from ...committers.errors import ConfigurationError, RetryableError, TableNotSupportedError
from ..scan import ScanFile
from ..streaming.change_feed import check_change_names
from ..streaming.commits import Commit, CommitKind, Part, single_files
from ..streaming.errors import cleaned_up, replaced
from ..streaming.positions import Order, Position
from ..table import TableScan
from ..unreadable import refuse
from .entry import CHANGE_FIELDS, Entry, StreamFile
from .scan import DeltaTableReader
from .table import ENGINE, DeltaVersion, load_version, times_ms, unreadable, unreadable_features, versions_of

ENTRIES_KEPT = 200
FILES_KEPT = 100_000
"""Entries and files that a process keeps: the end of a batch is found before its files are planned."""


_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)


class DeltaHistory:
    """See `StreamedTable`.

    Args:
        reader: of the newest version when the stream was opened
        scan: what the stream reads
        allows_more: the stream reads these columns alone, whatever others the table gets
    """

    def __init__(self, reader: DeltaTableReader, scan: TableScan, *, allows_more: bool) -> None:
        self._opened = reader.version
        self._storage_options = reader.storage_options
        self._read_fields: Fields = [one for one in reader.version.fields if one["name"] in scan.types.names]
        names = set(reader.column_names) - {one["name"] for one in CHANGE_FIELDS if reader.reads_changes}
        self._are_all = not allows_more and names <= set(scan.columns)
        self._reads_changes = reader.reads_changes
        self._select = reader.selecting(scan.where, scan.types)
        self._log: pafs.FileSystem | None = None
        self._newest = reader.version.version
        self._newest_file: tuple[object, ...] | None = None
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._snapshot: tuple[int, Sequence[StreamFile]] | None = None

    @property
    def table_id(self) -> str:
        return self._opened.table_id

    @property
    def name(self) -> str:
        return f"The Delta table {self._opened.table_uri}"

    # Versions -------------------------------------------------------------------------------------------

    def newest(self) -> int:
        """See `StreamedTable`. Usually it costs one request, if there is no new version."""
        with self._errors():
            log = self._open_log()
            while True:
                known, following = log.get_file_info([entry_name(self._newest), entry_name(self._newest + 1)])
                if self._newest_file != (found := _identity(known)):
                    if self._newest_file is not None:
                        self._reload()
                        continue
                    self._newest_file = found
                if following.type is not pafs.FileType.File:
                    return self._newest
                self._newest, self._newest_file = self._newest + 1, _identity(following)

    def _reload(self) -> None:
        """The newest known entry is another one, or gone: the table was created again, or its log cleaned."""
        now = load_version(self._opened.table_uri, self._storage_options)
        if now.table_id != self.table_id:
            raise replaced(self.name, now.table_id, self.table_id)
        self._newest, self._newest_file = now.version, None
        self._entries.clear()

    def first_since(self, at: datetime, until: int) -> int | None:
        """See `StreamedTable`."""
        self._opened.check_times("startingTimestamp", "startingVersion")
        times = list(times_ms(versions_of(self._opened.table_uri, self._storage_options)))
        at_ms = at.timestamp() * 1000
        newer = [version for version, time_ms in times if time_ms >= at_ms and version <= until]
        if newer and newer[0] == times[0][0] > 0:
            raise ConfigurationError(
                f"startingTimestamp: the Delta table {self._opened.table_uri} no longer has the entries of "
                f"its log from {at.astimezone(timezone.utc).isoformat()} on: the oldest one is of version "
                f"{newer[0]}. Nothing was read. Give a later time, or a startingVersion; or neither, to "
                "begin with all rows that the table has."
            )
        return newer[0] if newer else None

    def start_at(self, version: int, until: int) -> Position:
        """See `StreamedTable`. The next version may be one that does not exist yet."""
        if version == until + 1:
            return Position(until)
        if version > until:
            raise ConfigurationError(
                f"startingVersion: the Delta table {self._opened.table_uri} has no version {version}: the "
                f"newest one is {until}. Nothing was read."
            )
        self._entry(version)
        return Position(version, 0)

    def order_of(self, version: int) -> None:
        """See `StreamedTable`. Versions are numbers in an order."""

    def recall(self, version: int, order: Order) -> None:
        """See `StreamedTable`."""

    # Commits --------------------------------------------------------------------------------------------

    def after(self, version: int, until: int) -> Iterator[Commit[StreamFile]]:
        """See `StreamedTable`."""
        for number in range(version + 1, until + 1):
            yield self.commit(number)

    def commit(self, version: int) -> Commit[StreamFile]:
        """See `StreamedTable`."""
        entry = self._entry(version)
        shown = f"Version {version} of the Delta table {self._opened.table_uri}"
        problems = self._problems(entry, version)
        kind, files = entry.kind, tuple(map(StreamFile, entry.added))
        if self._reads_changes and not problems:
            files = tuple(self._changes(entry, version))
            is_whole = kind is not CommitKind.ADDS
            return Commit(version, shown, CommitKind.ADDS, files, is_whole, at=entry.at)
        return Commit(version, shown, kind, files, other_schema="; ".join(problems), at=entry.at)

    def _changes(self, entry: Entry, version: int) -> Iterator[StreamFile]:
        try:
            yield from entry.changes(version)
        except ValueError as error:
            raise TableNotSupportedError(
                f"The entry of version {version} in the log of the Delta table {self._opened.table_uri} does "
                f"not say what it changes: {error}. Nothing of it was read. Its writer left out what a "
                "change feed needs; skipChangeCommits=true in place of changes=true passes over it."
            ) from error

    def _problems(self, entry: Entry, version: int) -> Sequence[str]:
        """Return why the rows do not fit the columns of the stream. Older versions may have columns that the
        table has no longer.
        """
        metadata, protocol = entry.metadata or {}, entry.protocol or {}
        refuse(
            unreadable_features(
                protocol.get("readerFeatures") or (),
                int(protocol.get("minReaderVersion", 1)),
                metadata.get("configuration") or {},
            ),
            f"Version {version} of the Delta table {self._opened.table_uri}",
            ENGINE,
        )
        if entry.metadata is None:
            return ()
        if metadata["id"] != self.table_id:
            raise replaced(self.name, str(metadata["id"]), self.table_id)
        there: Fields = json.loads(metadata["schemaString"])["fields"]
        allows_more = version <= self._opened.version
        if not self._are_all:
            names = {one["name"] for one in self._read_fields}
            there = [one for one in there if one["name"] in names]
        return problems_of_reading(there, self._read_fields, allows_more=allows_more)

    def _entry(self, version: int) -> Entry:
        known = self._entries.get(version)
        if known is not None:
            self._entries.move_to_end(version)
            return known
        with self._errors():
            try:
                with self._open_log().open_input_file(entry_name(version)) as file:
                    content = file.read()
            except FileNotFoundError:
                raise self._gone(version) from None
            try:
                entry = Entry.of(content)
            except _DAMAGED as error:
                raise TableNotSupportedError(
                    f"The entry of version {version} in the log of the Delta table {self._opened.table_uri} "
                    f"cannot be read: {error!r}. Nothing of it was read. Repair the log with the engine that "
                    "has written it."
                ) from error
        self._keep(version, entry)
        return entry

    def _keep(self, version: int, entry: Entry) -> None:
        self._entries[version] = entry
        while len(self._entries) > ENTRIES_KEPT or self._files_kept() > FILES_KEPT:
            self._entries.popitem(last=False)

    def _files_kept(self) -> int:
        return sum(len(entry.added) + len(entry.removed) for entry in self._entries.values())

    def select(self, file: StreamFile) -> ScanFile | None:
        """See `StreamedTable`."""
        found = self._select(file.file)
        if found is None or not file.values:
            return found
        deletes = None if file.only is not None else found.deletes
        return replace(found, values=(*found.values, *file.values), deletes=deletes, only=file.only)

    def joined(self, files: Iterable[ScanFile]) -> Iterable[ScanFile]:
        """See `StreamedTable`. A file is in one commit."""
        return files

    def snapshot(self, version: int, after: int, until: int | None) -> Iterator[Part[StreamFile]]:
        """See `StreamedTable`. Older files come first."""
        return single_files(self._files(version), after, until)

    def _files(self, version: int) -> Sequence[StreamFile]:
        if self._snapshot is None or self._snapshot[0] != version:
            try:
                files = files_at(self._opened.table_uri, self._storage_options, version)
            except RetryableError:
                if version < min(versions_of(self._opened.table_uri, self._storage_options), default=0):
                    raise self._gone(version) from None
                raise
            files.sort(key=lambda file: (file.modified_ms, file.logged_path))
            entry = self._entry(version) if self._reads_changes else Entry()
            rows = entry.inserts(version, files) if self._reads_changes else map(StreamFile, files)
            self._snapshot = version, tuple(rows)
        return self._snapshot[1]

    def _gone(self, version: int) -> ConfigurationError:
        versions = versions_of(self._opened.table_uri, self._storage_options)
        there = f"has entries of the versions {min(versions)} to {max(versions)}" if versions else "is empty"
        return cleaned_up(
            f"The log of the Delta table {self._opened.table_uri} no longer has version {version}, which "
            f"this stream needs: it {there}. The log was cleaned up before the stream had read it.",
            "the table keep its log for longer (delta.logRetentionDuration)",
        )

    def _open_log(self) -> pafs.FileSystem:
        if self._log is None:
            self._log = open_log(self._opened.table_uri, self._storage_options)
        return self._log

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError) as error:
            raise unreadable(self._opened.table_uri, error) from error


def _identity(info: pafs.FileInfo) -> tuple[object, ...]:
    return info.type, info.mtime, info.size


def with_change_fields(version: DeltaVersion) -> DeltaVersion:
    """Return the version with the columns of a change feed.

    Raises:
        ConfigurationError: the table has columns with their names.
    """
    check_change_names(f"Delta table {version.table_uri}", (str(one["name"]) for one in version.fields))
    return replace(version, fields=[*version.fields, *CHANGE_FIELDS])
