"""The snapshots of a DuckLake, for streams: the rows of a table that each one adds, as the catalog says.

A lake has one sequence of snapshots for all its tables. Which rows a snapshot has added never changes, but
the files with them do: files are merged, and rows of the catalog are flushed. So the rows of a snapshot are
in one batch, and where a batch ends is told by snapshots, and not by files: see `catalog`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property

import pyarrow as pa

from ...committers.ducklake.connection import Lake
from ...committers.errors import ConfigurationError, RetryableError, TableNotSupportedError
from ..scan import ScanFile
from ..streaming.change_feed import DELETE, INSERT, ChangeValues, change_values
from ..streaming.columns import problems_of_columns
from ..streaming.commits import Commit, CommitKind, Part
from ..streaming.errors import cleaned_up, replaced
from ..streaming.positions import Order, Position
from ..table import TableScan
from .catalog import ORIGIN, CatalogFiles, FoundFile
from .changes import adds_rows, changes_of, kind_of, may_hide_deletions
from .columns import LakeColumn
from .deletions import CatalogDeletions
from .files import Origins, joined
from .scan import DuckLakeTableReader
from .table import SO, ColumnHistory, is_there

COMMITS_AT_ONCE = 100
"""Commits that are read from the catalog with the same statements."""


class DuckLakeHistory:
    """See `StreamedTable`. A version is the id of a snapshot.

    Args:
        reader: of the newest snapshot when the stream was opened
        scan: what the stream reads
        allows_more: the stream reads these columns alone, whatever others the table gets
    """

    def __init__(self, reader: DuckLakeTableReader, scan: TableScan, *, allows_more: bool) -> None:
        self._opened = reader.version
        self._scan = scan
        self._reads_changes = reader.reads_changes
        self._are_all = not allows_more and {one.name for one in reader.version.columns} <= set(scan.columns)

    @property
    def table_id(self) -> str:
        return self._opened.uuid

    @property
    def name(self) -> str:
        return f"The DuckLake table {self._opened.server.address.uri}"

    @contextmanager
    def _attached(self) -> Iterator[Lake]:
        with self._opened.server.attached("Nothing more was read") as lake:
            if lake is None:
                raise RetryableError(f"The catalog of {self.name[4:]} is missing. Nothing more was read.")
            lake.begin()
            yield lake

    # Versions -------------------------------------------------------------------------------------------

    def newest(self) -> int:
        """See `StreamedTable`."""
        address = self._opened.server.address
        with self._attached() as lake:
            number = lake.snapshot()
            found = lake.find_table(address.schema, address.table)
        if not found:
            raise ConfigurationError(f"{self.name} was dropped or renamed. Nothing more was read.")
        if found[0][0] != self.table_id:
            raise replaced(self.name, found[0][0], self.table_id)
        return number

    def first_since(self, at: datetime, until: int) -> int | None:
        """See `StreamedTable`."""
        with self._attached() as lake:
            ((oldest, found),) = lake.rows(
                "SELECT min(snapshot_id), "
                "min(snapshot_id) FILTER (WHERE snapshot_time >= ? AND snapshot_id <= ?) "
                f"FROM {lake.name}.snapshots()",
                at,
                until,
            )
        if found is not None and found == oldest > 0:
            raise ConfigurationError(
                f"startingTimestamp: the snapshots of the DuckLake table {self._opened.server.address.uri} "
                f"from {at.astimezone(timezone.utc).isoformat()} on have expired in part: the oldest one is "
                f"{oldest}. {SO}. Give a later time, or a startingVersion; or neither, to begin with all "
                "rows that the table has."
            )
        return None if found is None else int(found)

    def start_at(self, version: int, until: int) -> Position:
        """See `StreamedTable`. The next snapshot may be one that does not exist yet."""
        if version == until + 1:
            return Position(until)
        with self._attached() as lake:
            if version > until or not is_there(lake, version):
                raise ConfigurationError(
                    f"startingVersion: the DuckLake table {self._opened.server.address.uri} has no snapshot "
                    f"{version}, or it has expired. The newest one is {until}. {SO}."
                )
        return Position(version, 0)

    def order_of(self, version: int) -> None:
        """See `StreamedTable`. Snapshots are numbers in an order."""

    def recall(self, version: int, order: Order) -> None:
        """See `StreamedTable`."""

    # Commits --------------------------------------------------------------------------------------------

    def after(self, version: int, until: int) -> Iterator[Commit[ScanFile]]:
        """See `StreamedTable`. Snapshots that do not change the table are commits without rows."""
        for first in range(version + 1, until + 1, COMMITS_AT_ONCE):
            yield from self._commits(first, min(first + COMMITS_AT_ONCE - 1, until))

    def commit(self, version: int) -> Commit[ScanFile]:
        """See `StreamedTable`."""
        (found,) = self._commits(version, version)
        return found

    def _commits(self, first: int, last: int) -> Iterator[Commit[ScanFile]]:
        """Yield commits, and raise what is wrong with one after those before it. The catalog is not open
        while they are used: only one process can open one in a DuckDB file.
        """
        found: list[Commit[ScanFile]] = []
        problem = None
        with self._attached() as lake:
            files = self._files(lake, first, last, Origins(first - 1, last))
            made, columns = _made(lake, first - 1, last), self._columns(lake, first - 1)
            deleted = CatalogDeletions.of(
                lake, self._opened, (first, last), self._scan.where, self._scan.types
            )
            commits = _Commits(made, files, columns, deleted)
            try:
                found.extend(self._commit(commits, number) for number in range(first, last + 1))
            except (ConfigurationError, TableNotSupportedError) as error:
                problem = error
        yield from found
        if problem is not None:
            raise problem

    def _files(self, lake: Lake, first: int, last: int, origins: Origins) -> CatalogFiles:
        return CatalogFiles(lake, self._opened, first, last, origins, self._scan.where, self._scan.types)

    def _columns(self, lake: Lake, first: int) -> ColumnHistory:
        return ColumnHistory.load(lake, self._opened.table_id, first)

    def _commit(self, commits: _Commits, number: int) -> Commit[ScanFile]:
        shown = f"Snapshot {number} of the DuckLake table {self._opened.server.address.uri}"
        if number not in commits.made:
            raise self._expired(number)
        made, at = commits.made[number]
        try:
            changes = changes_of(made, self._opened.table_id)
        except ValueError as error:
            raise TableNotSupportedError(
                f"{shown} makes changes that this version of Penstock does not know: {error}. Nothing of it "
                "was read. Use a newer version of Penstock, or begin with a later snapshot (startingVersion)."
            ) from error
        kind = kind_of(changes, lambda: number in commits.files.deletions)
        adds, deletes = adds_rows(changes), kind is not CommitKind.ADDS
        if not adds and not (deletes and self._reads_changes):
            return Commit(number, shown, kind, is_whole=not deletes, at=at)
        if problems := "; ".join(self._problems(number, commits.columns.at(number))):
            return Commit(number, shown, kind, other_schema=problems)
        if not self._reads_changes:
            files = [] if deletes else list(commits.added(number))
            return Commit(number, shown, kind, files, is_whole=not deletes)
        files = list(self._deleted(commits, number, changes, shown)) if deletes else []
        files += _with_values(commits.added(number) if adds else (), change_values(INSERT, number, at))
        return Commit(number, shown, CommitKind.ADDS, files, is_whole=True, at=at)

    def _deleted(
        self, commits: _Commits, number: int, changes: frozenset[str], shown: str
    ) -> Iterator[ScanFile]:
        """Yield the rows that a snapshot has deleted, with the columns of a change feed."""
        if number - 1 not in commits.made:
            raise self._expired(number - 1, "read it, or compared the next one with it")
        is_known = "inlined_delete" not in changes or commits.deleted.has_deletions(number)
        if may_hide_deletions(changes) or not is_known:
            raise TableNotSupportedError(
                f"{shown} deletes rows of the catalog and flushes them, or moves rows to other files, in the "
                "same transaction: the catalog does not say which rows it deletes. Nothing of it was read. "
                "Start with a new checkpoint, which begins with all rows of the table; for the future, "
                "delete and flush rows in transactions of their own."
            )
        _, at = commits.made[number]
        yield from _with_values(commits.removed(number), change_values(DELETE, number, at))

    def _problems(self, number: int, columns: Sequence[LakeColumn]) -> Iterator[str]:
        """Yield why the rows do not fit the columns of the stream. Those of older snapshots do: the format
        allows no other changes.
        """
        if number > self._opened.snapshot:
            there, read = ({one.number: one for one in some} for some in (columns, self._opened.columns))
            yield from problems_of_columns(there, read, self._scan.types.names, are_all=self._are_all)

    def snapshot(self, version: int, after: int, until: int | None) -> list[Part[ScanFile]]:
        """See `StreamedTable`. Rows with older origins come first; `Position.files` is the last origin."""
        origins = Origins(after, version if until is None else until)
        with self._attached() as lake:
            if not is_there(lake, version):
                raise self._expired(version)
            files = self._files(lake, version, version, origins)
            found = files.data_files(version, origins)
            columns = self._columns(lake, version).at(version)
            found += _of_origins(files, files.inlined(version, columns, origins))
            _, at = _made(lake, version, version)[version]
        values = change_values(INSERT, version, at) if self._reads_changes else ()
        return _parts([FoundFile(_with_value(one.file, values), one.origins) for one in found], until)

    def joined(self, files: Iterable[ScanFile]) -> Iterable[ScanFile]:
        """See `StreamedTable`."""
        return joined(files)

    def select(self, file: ScanFile) -> ScanFile:
        """See `StreamedTable`. Files without matching rows were left out before."""
        return file

    def _expired(self, version: int, done: str = "read it") -> ConfigurationError:
        """
        Args:
            done: what the stream has not done with the snapshot
        """
        return cleaned_up(
            f"The DuckLake of {self._opened.server.address.uri} no longer has the snapshot {version}, which "
            f"this stream needs: it has expired before the stream had {done}.",
            "the DuckLake keep its snapshots for longer (expire_older_than)",
        )


@dataclass
class _Commits:
    """What the catalog says of a range of snapshots."""

    made: Mapping[int, tuple[str, datetime]]
    """What each of them, and the one before them, has changed, and when; without those that have expired."""
    files: CatalogFiles
    columns: ColumnHistory
    deleted: CatalogDeletions

    def added(self, number: int) -> Iterator[ScanFile]:
        """Yield the rows that a snapshot has added."""
        yield from (one.file for one in self.files.data_files(number, Origins(number - 1, number)))
        yield from self._inlined(number, self.columns.at(number))

    def removed(self, number: int) -> Iterator[ScanFile]:
        """Yield the rows that a snapshot has deleted."""
        yield from self.deleted.deleted_files(number)
        yield from self.deleted.deleted_inlined(number, self.columns.at(number - 1))

    def _inlined(self, number: int, columns: Sequence[LakeColumn]) -> Iterator[ScanFile]:
        """Yield rows of the catalog that a snapshot has added.

        Args:
            columns: of the table in the snapshot
        """
        files, own = self.files, Origins(number - 1, number)
        if not files.has_inlined(number):
            return
        if files.has_lost_inlined(number) or columns != self.columns.at(files.last):
            yield from (one.file for one in _of_origins(files, files.inlined(number, columns, own)))
        elif number in self._of_last:
            yield self._of_last[number]

    @cached_property
    def _of_last(self) -> Mapping[int, ScanFile]:
        """Rows of the catalog that the last snapshot has, by their origin: a statement for each snapshot
        would take long.
        """
        files = self.files
        rows = files.inlined(files.last, self.columns.at(files.last), files.origins)
        return {one.origins.until: one.file for one in _of_origins(files, rows)}


def _made(lake: Lake, first: int, last: int) -> Mapping[int, tuple[str, datetime]]:
    rows = lake.rows(
        "SELECT s.snapshot_id, coalesce(c.changes_made, ''), epoch(s.snapshot_time::TIMESTAMPTZ) "
        f"FROM {lake.metadata('ducklake_snapshot')} s "
        f"LEFT JOIN {lake.metadata('ducklake_snapshot_changes')} c ON c.snapshot_id = s.snapshot_id "
        "WHERE s.snapshot_id BETWEEN ? AND ?",
        first,
        last,
    )
    return {number: (made, datetime.fromtimestamp(at, timezone.utc)) for number, made, at in rows}


def _with_values(files: Iterable[ScanFile], values: ChangeValues) -> Iterator[ScanFile]:
    return (_with_value(file, values) for file in files)


def _with_value(file: ScanFile, values: ChangeValues) -> ScanFile:
    return replace(file, values=(*file.values, *values))


def _of_origins(files: CatalogFiles, rows: pa.Table) -> Iterator[FoundFile]:
    """Yield rows of the catalog as a file for each of their origins."""
    first = 0
    counts = rows[ORIGIN].combine_chunks().value_counts()
    for origin, count in zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True):
        numbers = pa.array(range(first, first + count))
        (own,) = rows.take(numbers).combine_chunks().to_batches()  # a copy: a slice is sent with all rows
        yield FoundFile(files.inlined_file(own), Origins(origin - 1, origin))
        first += count


def _parts(found: Sequence[FoundFile], until: int | None) -> list[Part[ScanFile]]:
    """Return files in the order of their origins. Those that have an origin in common are in one part."""
    ends: list[int] = []
    groups: list[list[ScanFile]] = []
    for one in sorted(found, key=lambda one: one.origins.after):
        if not ends or one.origins.after >= ends[-1]:
            ends.append(one.origins.until)
            groups.append([])
        ends[-1] = max(ends[-1], one.origins.until)
        groups[-1].append(one.file)
    return [Part(end, files) for end, files in zip([*ends[:-1], until], groups or [[]], strict=True)]
