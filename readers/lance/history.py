"""The versions of a Lance table, for streams: the rows that each one adds to the version before.

Tables have no id. So an offset has a mark of its version, which the versions of another table in the same
place do not have.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ...committers.errors import ConfigurationError
from ..scan import ScanFile
from ..streaming.change_feed import DELETE, INSERT, ChangeValues
from ..streaming.columns import problems_of_columns
from ..streaming.commits import Commit, CommitKind, Part, single_files
from ..streaming.errors import cleaned_up, dropped, other_schema
from ..streaming.positions import Order, Position
from ..table import TableScan
from .changes import Difference, difference, kind_of, values_of
from .scan import FragmentRows, LanceTableReader, scan_file
from .table import newest_version, open_version, versions_there
from .versions import ColumnIds, Fragments, LanceVersion, columns_there, mark_of

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

COMMITS_KEPT = 1000
FILES_KEPT = 100_000
"""Commits and files that a process keeps: the end of a batch is found before its files are planned."""
_VERSIONS_KEPT = 2
"""A version has all fragments of the table. It is compared with the one before."""


class LanceHistory:
    """See `StreamedTable`.

    Args:
        reader: of the newest version when the stream was opened
        scan: what the stream reads
        allows_more: the stream reads these columns alone, whatever others the table gets
    """

    def __init__(self, reader: LanceTableReader, scan: TableScan, *, allows_more: bool) -> None:
        self._reader = reader
        self._uri = str(reader.table.uri)
        self._columns = LanceVersion(reader.table).columns
        self._names = scan.types.names
        self._are_all = not allows_more and set(reader.table.schema.names) <= set(scan.columns)
        self._newest = int(reader.table.version)
        self._versions: OrderedDict[int, LanceVersion] = OrderedDict()
        self._commits: OrderedDict[int, Commit[ScanFile]] = OrderedDict()
        self._snapshot: tuple[int, Sequence[ScanFile]] | None = None
        self._marks: OrderedDict[int, int] = OrderedDict()
        """Of the versions between which a batch is. The last one was recalled last."""

    @property
    def table_id(self) -> str:
        """See `StreamedTable`. The same for all: see `order_of`."""
        return ""

    @property
    def name(self) -> str:
        return f"The Lance table {self._uri}"

    # Versions -------------------------------------------------------------------------------------------

    def newest(self) -> int:
        """See `StreamedTable`. It costs one request if there is no new version."""
        found = newest_version(self._reader.table, self._reader.storage_options)
        if found is None:
            raise dropped(self.name)
        self._newest = found
        if self._marks and (last := next(reversed(self._marks))) != found:
            self._check(last, self._marks[last])
        return found

    def first_since(self, at: datetime, until: int) -> int | None:
        """See `StreamedTable`. Few versions are opened: they are in the order of their times."""
        numbers = [number for number in versions_there(self._reader.table) if number <= until]
        place = bisect_left(numbers, at, key=lambda number: self._version(number).at)
        if place == 0 and numbers[0] > 1:
            raise ConfigurationError(
                f"startingTimestamp: the Lance table {self._uri} no longer has its versions from "
                f"{at.astimezone(timezone.utc).isoformat()} on: the oldest one is {numbers[0]}. Nothing was "
                "read. Give a later time, or a startingVersion; or neither, to begin with all rows that the "
                "table has."
            )
        return numbers[place] if place < len(numbers) else None

    def start_at(self, version: int, until: int) -> Position:
        """See `StreamedTable`. The next version may be one that does not exist yet."""
        if version == until + 1:
            return Position(until)
        if version > until or self._load(version) is None:
            raise ConfigurationError(
                f"startingVersion: the Lance table {self._uri} has no version {version}, or it was cleaned "
                f"up. The newest one is {until}. Nothing was read."
            )
        return Position(version, 0)

    def order_of(self, version: int) -> int:
        """See `StreamedTable`."""
        mark = self._version(version).mark
        self._remember(version, mark)
        return mark

    def recall(self, version: int, order: Order) -> None:
        """See `StreamedTable`.

        Raises:
            ConfigurationError: the version is one of another table.
        """
        if isinstance(order, int):
            is_known = self._marks.get(version) == order
            self._remember(version, order)
            if not is_known:
                self._check(version, order)

    def _remember(self, version: int, mark: int) -> None:
        self._marks[version] = mark
        self._marks.move_to_end(version)
        if len(self._marks) > _VERSIONS_KEPT:
            self._marks.popitem(last=False)

    def _check(self, version: int, mark: int) -> None:
        """Load a version again: the next one is compared with it."""
        self._versions.pop(version, None)
        found = self._load(version) if version <= self._newest else None
        if version > self._newest or (found is not None and found.mark != mark):
            self._versions.clear()
            self._commits.clear()
            raise ConfigurationError(
                f"{self.name} is another table than the one that this query has read up to version "
                f"{version}: it was dropped and created again, or restored from a copy of its files. Start "
                "with a new checkpoint to read it. Nothing more was read."
            )

    def _version(self, number: int) -> LanceVersion:
        found = self._load(number)
        if found is None:
            raise self._gone(number)
        return found

    def _load(self, number: int) -> LanceVersion | None:
        found = self._versions.get(number)
        if found is None:
            table = open_version(self._uri, self._reader.storage_options, number)
            if table is None:
                return None
            found = LanceVersion(table)
        self._versions[number] = found
        self._versions.move_to_end(number)
        if len(self._versions) > _VERSIONS_KEPT:
            self._versions.popitem(last=False)
        return found

    # Commits --------------------------------------------------------------------------------------------

    def after(self, version: int, until: int) -> Iterator[Commit[ScanFile]]:
        """See `StreamedTable`."""
        for number in range(version + 1, until + 1):
            yield self.commit(number)

    def commit(self, version: int) -> Commit[ScanFile]:
        """See `StreamedTable`."""
        known = self._commits.get(version)
        if known is not None:
            return known
        found = self._commits[version] = self._commit(version)
        while len(self._commits) > COMMITS_KEPT or self._files_kept() > FILES_KEPT:
            self._commits.popitem(last=False)
        return found

    def _files_kept(self) -> int:
        return sum(len(commit.files) for commit in self._commits.values())

    def _commit(self, number: int) -> Commit[ScanFile]:
        last = self._load(number - 1) if number > 1 else None
        now = self._version(number)
        before = self._before(now) if last is None else last.fragments
        found = difference(before, (last or now).ids(self._names), now)
        if self._reader.reads_changes:
            files, kind = list(self._changes(last, found, now)), found.kind
        else:
            kind = kind_of(found, now)
            files = self._files(now, found.new.values()) if kind is CommitKind.ADDS else []
        problems = ""
        if files or number > self._reader.table.version:
            problems = "; ".join(self._problems(now))
        if problems:
            return Commit(number, now.shown, kind, other_schema=problems)
        if self._reader.reads_changes:
            is_whole = kind is not CommitKind.ADDS
            return Commit(number, now.shown, CommitKind.ADDS, files, is_whole, at=now.at)
        return Commit(number, now.shown, kind, files, at=now.at)

    def _before(self, now: LanceVersion) -> Fragments:
        """Return the fragments of the version before, which is not there. If it was cleaned up after the
        stream had read it, its mark says whether this version has all that it had.
        """
        if now.number == 1:
            return {}
        mark = self._marks.get(now.number - 1)
        fragments = None if mark is None else now.up_to(mark)
        if fragments is None:
            raise self._gone(now.number - 1)
        return fragments

    def _files(
        self,
        of: LanceVersion,
        fragments: Iterable[FragmentMetadata],
        values: ChangeValues = (),
        without: int | None = None,
    ) -> list[ScanFile]:
        """Return fragments of a version.

        Args:
            values: of the columns of the change feed
            without: see `FragmentRows`
        """
        columns = of.ids(self._names)
        return [scan_file(one, of.number, columns, values, without) for one in fragments if one.num_rows]

    def _changes(self, last: LanceVersion | None, found: Difference, now: LanceVersion) -> Iterator[ScanFile]:
        """Yield the rows that leave the table and those that it gets."""
        inserts, deletes = values_of(now, INSERT), values_of(now, DELETE)
        if last is not None:
            gone = [*found.gone, *(was for was, _ in found.changed)]
            yield from self._files(last, gone, deletes)
            yield from self._files(last, [was for was, _ in found.fewer], deletes, now.number)
        new = [*(one for _, one in found.changed), *found.new.values()]
        yield from self._files(now, new, inserts)

    def _problems(self, version: LanceVersion) -> Iterator[str]:
        """Yield why the rows do not fit the columns of the stream."""
        are_all = self._are_all and version.number > self._reader.table.version
        there = columns_there(self._columns, version.columns)
        yield from problems_of_columns(there, self._columns, self._names, are_all=are_all)

    def snapshot(self, version: int, after: int, until: int | None) -> Iterator[Part[ScanFile]]:
        """See `StreamedTable`. Older fragments come first."""
        if self._snapshot is None or self._snapshot[0] != version:
            found = self._version(version)
            if problems := "; ".join(self._problems(found)):
                raise other_schema(found.shown, problems)
            values = values_of(found, INSERT) if self._reader.reads_changes else ()
            self._snapshot = version, self._files(found, found.fragments.values(), values)
        return single_files(self._snapshot[1], after, until)

    def select(self, file: ScanFile) -> ScanFile:
        """See `StreamedTable`. Lance knows no bounds: it skips rows when it reads them."""
        return file

    def joined(self, files: Iterable[ScanFile]) -> Iterable[ScanFile]:
        """See `StreamedTable`. Fragments that the newest version of the batch has as they were are read of
        it, so that tasks do not open a version for each commit.
        """
        files = list(files)
        newest = max((_rows(file).version for file in files), default=0)
        if all(_rows(file).version == newest for file in files):
            return files
        version = self._version(newest)
        columns, there = version.ids(self._names), version.fragments
        return [_of_version(file, newest, columns, there) for file in files]

    def _gone(self, version: int) -> ConfigurationError:
        return cleaned_up(
            f"{self.name} no longer has version {version}, which this stream needs: it was cleaned up before "
            "the stream had read it, or compared the next one with it.",
            "the table keep its versions for longer (older_than of cleanup_old_versions)",
        )


def _rows(file: ScanFile) -> FragmentRows:
    assert isinstance(file.only, FragmentRows)
    return file.only


def _of_version(file: ScanFile, version: int, columns: ColumnIds, there: Fragments) -> ScanFile:
    """Return a file as one of a newer version, if its rows are the same there."""
    rows = _rows(file)
    fragment = there.get(rows.fragment_id)
    if fragment is None or rows.columns != columns or rows.mark != mark_of(fragment):
        return file
    return replace(file, only=replace(rows, version=version))
