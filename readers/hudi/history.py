"""The commits of a Hudi table, for streams: the rows that each one adds, or all that it changes.

A version is the instant of a commit, as a number. A stream reads the commits that are completed and that it
has not read yet, in the order of their completions; in layout 1, which has no times of them, in the order of
their instants. So it misses no commit that is completed after a later one. A completed instant never changes,
so what is read of it is the same in each process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import lru_cache

from ...committers.errors import ConfigurationError
from ...committers.hudi import avro
from ...committers.hudi.archive import archived_commits
from ...committers.hudi.timeline import FIRST_INSTANT, Timeline
from ..scan import ScanFile
from ..streaming.change_feed import CHANGE_FIELDS, ChangeValues, change_values
from ..streaming.columns import problems_of_columns
from ..streaming.commits import Commit, CommitKind, Part, single_files
from ..streaming.errors import cleaned_up, replaced
from ..streaming.positions import NOTHING, Order, Position
from ..table import TableScan
from .changes import SliceChanges, inserts
from .columns import columns_by_name
from .commits import CommitContent
from .read_commits import Before, ReadCommits
from .scan import HudiTableReader
from .slices import slices_at
from .table import HudiState, load_state, parse_schema, schema_text, unreadable

COMMITS_KEPT = 200
"""Commits that a process keeps: the end of a batch is found before its files are planned."""
_POSITIONS_KEPT = 100
"""Positions of which a process knows what was read before: those of the last batches."""


class HudiHistory:
    """See `StreamedTable`.

    Args:
        reader: of the newest version when the stream was opened
        scan: what the stream reads
        allows_more: the stream reads these columns alone, whatever others the table gets
    """

    def __init__(self, reader: HudiTableReader, scan: TableScan, *, allows_more: bool) -> None:
        self._opened = reader.version
        self._storage_options = reader.storage_options
        self._names = scan.types.names
        self._reads_changes = reader.reads_changes
        names = set(reader.column_names) - {one.name for one in CHANGE_FIELDS if self._reads_changes}
        self._are_all = not allows_more and names <= set(scan.columns)
        self._recalled: int | None = None
        self._before: OrderedDict[int, Before] = OrderedDict()
        self._run: Before | None = None
        """All commits that the last call of `after` yields."""
        self._archive: tuple[str, str, Mapping[int, str]] | None = None
        self._snapshot: tuple[int, Sequence[ScanFile]] | None = None
        self._content = lru_cache(COMMITS_KEPT)(self._read_content)
        self._changed_files = lru_cache(COMMITS_KEPT)(self._find_changed_files)
        self._use(reader.version.state)
        self._had = frozenset(self._instants)
        """Instants of the table when the stream was opened."""

    def _use(self, state: HudiState) -> None:
        self._state = state
        self._instants = {int(instant): instant for instant, _ in state.timeline.commits}
        self._slices = SliceChanges(self._opened, state.timeline)

    @property
    def _timeline(self) -> Timeline:
        return self._state.timeline

    @property
    def table_id(self) -> str:
        return self._opened.state.table_id

    @property
    def name(self) -> str:
        return f"The Hudi table {self._opened.table_uri}"

    # Versions -------------------------------------------------------------------------------------------

    def newest(self) -> int:
        """See `StreamedTable`."""
        self._load()
        read = self._nothing_read() if self._recalled is None else self._read(self._recalled)
        unread = self._unread(read)
        if not unread:
            return NOTHING if self._recalled is None else self._recalled
        self._keep(unread[-1], Before(read, unread, len(unread) - 1))
        return unread[-1]

    def _load(self) -> None:
        with self._errors():
            state = load_state(self._opened.table_uri, self._opened.storage)
        if state.table_id != self.table_id:
            raise replaced(self.name, state.table_id, self.table_id)
        self._use(state)

    def first_since(self, at: datetime, until: int) -> int | None:
        """See `StreamedTable`. The time of a commit is that of its completion, in layout 1 its instant."""
        wanted = self._state.instant(at)
        since = FIRST_INSTANT if self._timeline.layout.has_completion_times else wanted
        if any(time >= wanted for time in self._archived(since).values()):
            raise ConfigurationError(
                f"startingTimestamp: the instants of the Hudi table {self._opened.table_uri} from "
                f"{at.astimezone(timezone.utc).isoformat()} on have been archived in part. Nothing was read. "
                "Give a later time, or a startingVersion; or neither, to begin with all rows that the table "
                "has."
            )
        there = self._unread(self._nothing_read())
        newer = (one for one in there if self._timeline.order_of(self._instants[one])[0] >= wanted)
        found = next(newer, None)
        if found is not None:
            self._begin_at(found, there)
        return found

    def start_at(self, version: int, until: int) -> Position:
        """See `StreamedTable`."""
        if version not in self._instants:
            raise ConfigurationError(
                f"startingVersion: the Hudi table {self._opened.table_uri} has no completed instant "
                f"{version}, or it was archived. Nothing was read."
            )
        self._begin_at(version, self._unread(self._nothing_read()))
        return Position(version, 0)

    def _begin_at(self, version: int, there: Sequence[int]) -> None:
        self._keep(version, Before(self._nothing_read(), there, there.index(version)))

    # What was read --------------------------------------------------------------------------------------

    def order_of(self, version: int) -> Order:
        """See `StreamedTable`."""
        return self._before_of(version).commits.to_dict()

    def recall(self, version: int, order: Order) -> None:
        """See `StreamedTable`."""
        self._recalled = version
        if version in self._before:
            return
        try:
            self._keep(version, Before(ReadCommits.of(order)))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"The checkpoint of this query does not say which commits of the {self.name[4:]} were read: "
                f"{error!r}. Nothing was read. Restore the checkpoint, or start with a new one."
            ) from error

    def _keep(self, version: int, before: Before) -> None:
        self._before[version] = before
        self._before.move_to_end(version)
        while len(self._before) > _POSITIONS_KEPT:
            self._before.popitem(last=False)

    def _before_of(self, version: int) -> Before:
        if version == NOTHING:
            return Before(ReadCommits(FIRST_INSTANT, frozenset()))
        if version not in self._before:
            assert self._run is not None
            before = replace(self._run, count=self._run.then.index(version))
        else:
            before = self._before[version]
        self._keep(version, before)
        return before

    def _nothing_read(self) -> ReadCommits:
        """What a new query has read: commits in the archive."""
        return ReadCommits(self._timeline.first, frozenset())

    def _read(self, version: int) -> ReadCommits:
        """Return what was read once a version was, without what is in the archive.

        Raises:
            ConfigurationError: the table no longer has some of it, or unread commits were archived.
        """
        before = self._before_of(version)
        read = before.commits if version == NOTHING else before.commits | (version,)
        try:
            return self._still_there(read)
        except ConfigurationError:
            self._load()  # a listing may lack instants while others are archived
            return self._still_there(read)

    def _still_there(self, read: ReadCommits) -> ReadCommits:
        first = self._timeline.first
        archived: Collection[int] = ()
        if first > read.first:
            archived = self._archived(min([read.first, *map(str, read.instants)]))
        whole = read.complete({*self._instants, *archived})
        late = [one for one in self._instants if str(one) < read.first]
        if whole is None or not whole.instants.issuperset(late):
            raise self._changed(
                "has other commits than this stream has read, before those that its checkpoint lists"
            )
        if missing := whole.instants.difference(self._instants, archived):
            raise self._changed(f"no longer has the instant {min(missing)}, which this stream has read")
        unread = {one for one in archived if str(one) >= read.first} - whole.instants
        if unread:
            raise self._gone(min(unread))
        if first <= read.first:
            return whole
        return ReadCommits(first, whole.instants.intersection(self._instants))

    def _archived(self, since: str) -> Mapping[int, str]:
        """Return the archived commits from an instant on, with the times that order them."""
        first = self._timeline.first
        if self._archive is None or self._archive[:2] != (since, first):
            storage, layout = self._opened.storage, self._timeline.layout
            with self._errors():
                if storage.names(layout.archive):
                    avro.check_library(self._opened.table_uri)
                found = archived_commits(storage, layout, since, first)
            self._archive = since, first, {int(instant): time for instant, time in found.items()}
        return self._archive[2]

    def _unread(self, read: ReadCommits) -> list[int]:
        return self._in_order(self._instants.keys() - read.instants)

    def _in_order(self, instants: Iterable[int]) -> list[int]:
        return sorted(instants, key=lambda one: self._timeline.order_of(self._instants[one]))

    # Commits --------------------------------------------------------------------------------------------

    def after(self, version: int, until: int) -> Iterator[Commit[ScanFile]]:
        """See `StreamedTable`."""
        if until == NOTHING:
            return
        read, wanted = self._read(version), self._read(until)
        run = [*self._in_order(wanted.instants - read.instants - {until}), until]
        self._run = Before(read, run)
        for instant in run:  # what was planned before may lack commits that were completed since
            self._before.pop(instant, None)
        self._keep(until, replace(self._run, count=len(run) - 1))
        for instant in run:
            yield self.commit(instant)

    def commit(self, version: int) -> Commit[ScanFile]:
        """See `StreamedTable`."""
        instant = self._instants.get(version)
        if instant is None:
            raise self._gone(version)
        content = self._content(instant)
        problems = "; ".join(self._problems(version, content))
        shown, at = self._shown(instant), self._state.time(instant)
        only_adds = content.kind is CommitKind.ADDS
        if self._reads_changes and not problems:
            files = self._inserts(content.files, instant) if only_adds else self._changed_files(instant)
            return Commit(version, shown, CommitKind.ADDS, files, is_whole=not only_adds, at=at)
        return Commit(
            version,
            shown,
            content.kind,
            () if problems else content.files,
            other_schema=problems if content.files or not only_adds else "",
            at=at,
        )

    def _inserts(self, files: Sequence[ScanFile], instant: str) -> Sequence[ScanFile]:
        return inserts(files, self._values(instant)) if self._reads_changes else files

    def _find_changed_files(self, instant: str) -> Sequence[ScanFile]:
        with self._errors():
            return self._slices.files(instant, self._content(instant), self._values(instant))

    def _values(self, instant: str) -> ChangeValues:
        """Return what the columns of the change feed have for a commit: what orders the commits, so that
        later changes have greater values.
        """
        time = self._timeline.order_of(instant)[0]
        return change_values(None, int(time), self._state.time(time))

    def _shown(self, instant: str) -> str:
        return f"Instant {instant} of the Hudi table {self._opened.table_uri}"

    def _read_content(self, instant: str) -> CommitContent:
        path = self._timeline.path_of(instant)
        with self._errors():
            found = None if path is None else self._opened.storage.read(path)
        if found is None:
            raise self._gone(int(instant))
        return CommitContent.of(found, instant, self._shown(instant), reads_changes=self._reads_changes)

    def _problems(self, version: int, content: CommitContent) -> Iterator[str]:
        """Yield why the rows do not fit the columns of the stream. Those of commits that the table had when
        the stream was opened do: Hudi's writers allow no other changes.
        """
        uri = self._opened.table_uri
        text = "" if version in self._had else schema_text(content.extra, uri)
        if text:
            there, read = columns_by_name(parse_schema(text, uri), self._opened.schema)
            yield from problems_of_columns(there, read, self._names, are_all=self._are_all)

    def joined(self, files: Iterable[ScanFile]) -> Iterable[ScanFile]:
        """See `StreamedTable`. A file is in one commit."""
        return files

    def select(self, file: ScanFile) -> ScanFile:
        """See `StreamedTable`. No bounds of files are known: tasks skip their row groups."""
        return file

    def snapshot(self, version: int, after: int, until: int | None) -> Iterator[Part[ScanFile]]:
        """See `StreamedTable`. Older files come first."""
        return single_files(self._files(version), after, until)

    def _files(self, version: int) -> Sequence[ScanFile]:
        if self._snapshot is None or self._snapshot[0] != version:
            if version not in self._instants:
                raise self._gone(version)  # cleaners that have run since may be archived, too
            read = self._read(version)
            names = dict(self._timeline.commits)
            commits = tuple(
                sorted((one, names[one]) for one in map(self._instants.__getitem__, read.instants))
            )
            timeline = replace(self._timeline, commits=commits, first=read.first)
            latest = commits[-1][0]
            with self._errors():
                slices, gone = slices_at(
                    self._opened.table_uri,
                    self._opened.storage,
                    self._storage_options,
                    timeline,
                    lambda instant: instant > latest,
                )
            if gone:
                raise self._cleaned(version, gone)
            slices.sort(key=lambda one: (one.instant, one.path))
            files = [ScanFile(one.path, one.size_bytes) for one in slices]
            self._snapshot = version, self._inserts(files, self._instants[version])
        return self._snapshot[1]

    # Errors ---------------------------------------------------------------------------------------------

    def _gone(self, instant: int) -> ConfigurationError:
        return cleaned_up(
            f"{self.name} no longer has the instant {instant}, which this stream needs: it was archived "
            "before the stream had read it.",
            "the table keep more commits (hoodie.keep.min.commits)",
        )

    def _cleaned(self, version: int, gone: Sequence[str]) -> ConfigurationError:
        return ConfigurationError(
            f"{self.name} no longer has all files of the instant {version}, with whose rows this stream "
            f"begins: its cleaner has deleted {len(gone):,} of them, such as {gone[0]}, before the stream "
            "had read them. Nothing more was read. Start with a new checkpoint, and larger limits or none; "
            "or let the cleaner keep more commits (hoodie.clean.commits.retained)."
        )

    def _changed(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self.name} {what}: commits were rolled back, or the table was replaced, or its archive was "
            "deleted. Nothing more was read. Start with a new checkpoint."
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unreadable(self._opened.table_uri, error) from error
