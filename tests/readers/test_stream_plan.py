"""Batches of streams over random histories of a table, in memory: no row is lost or read twice, and a
repeated batch has the same rows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

import pytest

from penstock import ConfigurationError
from penstock.readers.scan import ScanFile
from penstock.readers.streaming.commits import Commit, CommitKind, Part, single_files
from penstock.readers.streaming.plan import (
    EMPTY_COMMITS_AGE,
    EMPTY_COMMITS_MAX,
    Limits,
    Skips,
    StreamPlan,
    StreamStart,
)
from penstock.readers.streaming.positions import INITIAL, NOTHING, Offset, Order, Position, is_initial

SEEDS = 300
NOW = datetime(2026, 11, 29, tzinfo=timezone.utc)


@dataclass
class Table:
    """A table in memory. A version is its place in the list."""

    commits: list[Commit[ScanFile]] = field(default_factory=list)
    replaced: list[list[ScanFile]] = field(default_factory=list)
    """All files at each version."""
    table_id: str = "one"
    name: str = "The table"

    def add(self, kind: CommitKind, files: Sequence[ScanFile], live: Sequence[ScanFile]) -> None:
        number = len(self.commits)
        self.commits.append(Commit(number, f"Version {number}", kind, files))
        self.replaced.append(list(live))

    def append(self, *names: str) -> None:
        files = [ScanFile(name, 10) for name in names]
        self.add(CommitKind.ADDS, files, [*self.live, *files])

    def compact(self) -> None:
        self.add(CommitKind.ADDS, (), [ScanFile(f"compacted {len(self.commits)}", 10)])

    @property
    def live(self) -> list[ScanFile]:
        return self.replaced[-1] if self.replaced else []

    def newest(self) -> int:
        return len(self.commits) - 1

    def first_since(self, at: datetime, until: int) -> int | None:
        return None

    def start_at(self, version: int, until: int) -> Position:
        return Position(until) if version > until else Position(version, 0)

    def order_of(self, version: int) -> None: ...

    def recall(self, version: int, order: Order) -> None: ...

    def after(self, version: int, until: int) -> Iterator[Commit[ScanFile]]:
        yield from self.commits[version + 1 : until + 1]

    def commit(self, version: int) -> Commit[ScanFile]:
        return self.commits[version]

    def snapshot(self, version: int, after: int, until: int | None) -> Iterator[Part[ScanFile]]:
        return single_files(self.replaced[version], after, until)

    def joined(self, files: Iterable[ScanFile]) -> Iterable[ScanFile]:
        return files

    def select(self, file: ScanFile) -> ScanFile | None:
        return None if file.path.startswith("other") else file


def plan_of(table: Table, start: StreamStart, skips: Skips = Skips()) -> StreamPlan[ScanFile]:
    return StreamPlan(table, start, skips, lambda: NOW)


class Query:
    """What Spark does with a plan: it logs the end of a batch, reads it, and may stop in between."""

    def __init__(self, table: Table, start: StreamStart, limits: Limits, skips: Skips = Skips()) -> None:
        self.table, self.start, self.limits, self.skips = table, start, limits, skips
        self.log: list[dict[str, object]] = []
        self.restart()

    def restart(self) -> None:
        self.plan = plan_of(self.table, self.start, self.skips)

    def files(self, number: int) -> list[str]:
        begin = Offset.of(self.log[number - 1]) if number else None
        return [file.path for file in self.plan.files(begin, Offset.of(self.log[number]))]

    def next(self) -> list[str] | None:
        begin = Offset.of(self.log[-1]) if self.log else None
        end = self.plan.end_of_batch(begin, self.limits)
        if end == begin:
            return None
        self.log.append(end.to_dict())
        return self.files(len(self.log) - 1)

    def drain(self) -> list[str]:
        found: list[str] = []
        while (files := self.next()) is not None:
            found += files
        return found


@pytest.mark.parametrize("limits", [Limits(), Limits(files=2), Limits(file_bytes=25), Limits(1, 1)])
def test_every_file_is_in_one_batch_and_a_repeated_batch_has_the_same_files(limits: Limits) -> None:
    for seed in range(SEEDS):
        chance = random.Random(seed)
        table, expected, snapshot = Table(), [], chance.random() < 0.5
        for number in range(chance.randrange(4)):
            table.append(*(f"before {number}-{part}" for part in range(chance.randrange(4))))
            if chance.random() < 0.3 and table.live:
                table.compact()
        begin = StreamStart() if snapshot else StreamStart(is_latest=True)
        query = Query(table, begin, limits)
        if snapshot:
            expected += [file.path for file in table.live]
        seen: list[list[str]] = []
        if (files := query.next()) is not None:
            seen.append(files)
        for number in range(chance.randrange(12)):
            event = chance.random()
            if event < 0.4:
                names = [f"{number}-{part}" for part in range(chance.randrange(5))]
                table.append(*names, "other")
                expected += names
            elif event < 0.5:
                table.compact()
            elif event < 0.7:
                query.restart()
                assert [query.files(one) for one in range(len(query.log))] == seen
            elif (files := query.next()) is not None:
                seen.append(files)
        while (files := query.next()) is not None:
            seen.append(files)
        assert [path for files in seen for path in files] == expected, seed
        assert [query.files(one) for one in range(len(query.log))] == seen
        for files in seen[1:]:
            assert limits.files is None or len(files) <= limits.files
            assert limits.file_bytes is None or len(files) <= max(limits.file_bytes // 10, 1)


def test_the_first_batch_is_the_same_after_the_table_has_grown() -> None:
    """Spark does not log where it begins."""
    for begin in (StreamStart(), StreamStart(is_latest=True), StreamStart(version=1)):
        table = Table()
        table.append("a")
        table.append("b")
        query = Query(table, begin, Limits())
        first = query.next()
        table.append("c")
        query.restart()
        assert query.files(0) == first
        assert query.drain() == ["c"]
    assert is_initial(INITIAL)


def test_a_stream_to_the_newest_version_ends_there() -> None:
    table = Table()
    table.append("a", "b", "c")
    query = Query(table, StreamStart(), Limits(files=2))
    query.plan.stop_at_newest()
    assert query.next() == ["a", "b"]
    table.append("d")
    assert query.drain() == ["c"]
    query.restart()
    assert query.drain() == ["d"]


def test_an_empty_table_is_read_from_its_first_commit_on() -> None:
    table = Table()
    query = Query(table, StreamStart(), Limits())
    assert query.next() == []
    assert query.log[0]["version"] == NOTHING
    assert query.next() is None
    table.append("a")
    assert query.next() == ["a"]


def test_commits_without_rows_make_no_batch_but_are_stored_in_the_end() -> None:
    table = Table()
    table.append("a")
    query = Query(table, StreamStart(), Limits())
    query.next()
    for _ in range(EMPTY_COMMITS_MAX):
        table.compact()
    assert query.next() is None
    table.compact()
    assert query.next() == []
    assert query.next() is None


def test_old_commits_without_rows_are_stored_soon() -> None:
    """A table that shares its versions with others may lose them before there are many."""
    table = Table()
    table.append("a")
    query = Query(table, StreamStart(), Limits())
    query.next()
    for at, expected in ((NOW - EMPTY_COMMITS_AGE, None), (NOW - 2 * EMPTY_COMMITS_AGE, []), (NOW, None)):
        table.compact()
        table.commits[-1] = replace(table.commits[-1], is_whole=True, at=at)
        assert query.next() == expected


@pytest.mark.parametrize("kind", [CommitKind.DELETES, CommitKind.CHANGES])
def test_rows_before_a_change_are_read_and_the_change_is_refused(kind: CommitKind) -> None:
    table = Table()
    table.append("a")
    query = Query(table, StreamStart(), Limits())
    query.next()
    table.append("b")
    table.add(kind, (), table.live)
    table.append("c")
    assert query.next() == ["b"]
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"Version 2 (deletes|changes) rows"):
            query.next()
    for skips in (Skips(changes=True), *([Skips(deletes=True)] if kind is CommitKind.DELETES else [])):
        query.skips = skips
        query.restart()
        before = list(query.log)
        assert query.next() == ["c"]
        query.log = before


def test_offsets_that_do_not_fit_are_refused() -> None:
    table = Table()
    table.append("a")
    table.append("b")
    plan = plan_of(table, StreamStart())
    early, late = Offset("one", Position(0)), Offset("one", Position(1))
    with pytest.raises(ConfigurationError, match="do not fit The table"):
        list(plan.files(late, early))
    with pytest.raises(ConfigurationError, match="the first batch has no beginning"):
        list(plan.files(None, late))
    with pytest.raises(ConfigurationError, match="another table"):
        list(plan.files(early, Offset("two", Position(1))))
    with pytest.raises(ConfigurationError, match="another table"):
        plan.end_of_batch(Offset("two", Position(1)))
    for content in ({"n": 4}, {"format": 2}, {"format": 1, "table": "one", "version": "x"}):
        with pytest.raises(ConfigurationError, match="does not know"):
            Offset.of(content)


def test_offsets_have_the_order_of_versions_as_the_table_gives_it() -> None:
    """Also that of where the first batch begins."""
    for order in (None, 7, {"before": [1, 2]}):
        offset = Offset("one", Position(3), Position(1, 0), order, order)
        assert Offset.of(json.loads(json.dumps(offset.to_dict()))) == offset


def test_a_time_in_the_future_is_refused() -> None:
    at = datetime(2027, 1, 1, tzinfo=timezone.utc)
    with pytest.raises(ConfigurationError, match=r"startingTimestamp: 2027-01-01.* is in the future"):
        plan_of(Table(), StreamStart(at=at)).end_of_batch(None)
