"""Streams of Hudi tables, whose commits may be completed after later ones, and move rows to other files."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.hudi import after
from tests.support.hudi_table import HudiTable
from tests.support.lakes import IDS, ids
from tests.support.table_streams import TableStream

from penstock import ConfigurationError, PenstockError, RetryableError, TableNotSupportedError
from penstock.committers.hudi.timeline import time_of
from penstock.datasource.reading.formats import stream_options
from penstock.readers.hudi import read_commits
from penstock.readers.hudi.read_commits import ReadCommits


@pytest.fixture(params=[6, 9])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> HudiTable:
    """A table with a row in each of two commits."""
    made = HudiTable(tmp_path, request.param)
    made.create(IDS)
    made.append(1)
    made.append(2)
    return made


def started(lake: HudiTable, **options: str) -> TableStream:
    """A stream that has read all rows that are there."""
    stream = TableStream(lake, **options)
    assert stream.next() is not None
    return stream


# Completed after later ones -------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
def test_a_commit_that_is_completed_after_a_later_one_is_not_missed(lake: HudiTable, restarts: bool) -> None:
    early = lake.later()
    lake.request(early)
    stream = started(lake)
    lake.append(3)
    assert stream.ids() == [3]
    lake.append(4, instant=early)
    if restarts:
        stream.start()
    assert stream.ids() == [4]
    assert stream.ids() is None
    lake.append(5)
    assert stream.ids() == [5]
    stream.start()
    assert [sorted(row["id"] for row in stream.read(number)) for number in range(4)] == [
        [1, 2],
        [3],
        [4],
        [5],
    ]


def test_a_commit_that_nobody_knew_of_is_read_however_late_it_is(lake: HudiTable) -> None:
    """A batch of Penstock gets its instant when it is planned, and requests it when it is committed."""
    early = lake.later()
    later = after(early, 1000)
    lake.append(3, instant=later)
    stream = started(lake)
    lake.append(4, instant=early)
    stream.start()
    stream.plan.stop_at_newest()
    assert stream.ids() == [4]
    assert stream.ids() is None


def test_late_commits_are_divided_by_limits_too(lake: HudiTable) -> None:
    early = [lake.later(number) for number in range(3)]
    lake.append(9, instant=after(early[-1], 5000))
    stream = started(lake, maxFilesPerTrigger="10")
    for number, instant in enumerate(early):
        lake.append(3 + number, instant=instant)
    stream.options["maxFilesPerTrigger"] = "1"
    seen = []
    for _ in early:
        stream.start()
        seen.append(stream.ids())
    assert seen == [[3], [4], [5]]
    assert stream.ids() is None


def test_a_late_commit_is_read_once_if_the_commits_around_it_were_planned_before(lake: HudiTable) -> None:
    stream = started(lake, maxFilesPerTrigger="2")
    first, late, last = (lake.later(number) for number in (0, 1, 2))
    lake.append(3, instant=first)
    lake.append(4, instant=last)
    stream.parsed = stream_options(lake.source, {**lake.options, "maxFilesPerTrigger": "1"})
    assert stream.ids() == [3]
    lake.append(5, instant=late)
    lake.append(6)
    expected = [[5], [4], [6]] if lake.version == 6 else [[4], [5], [6]]
    assert [stream.ids(), stream.ids()] == expected[:2]
    stream.start()
    assert [stream.ids(), stream.ids()] == [expected[2], None]


def test_commits_are_read_in_the_order_of_their_completions(tmp_path: Path) -> None:
    """Version 6 has no times of them."""
    for version, expected in ((6, [[3], [4]]), (9, [[4], [3]])):
        folder = tmp_path / str(version)
        folder.mkdir()
        lake = HudiTable(folder, version)
        lake.create(IDS)
        stream = started(lake, startingVersion="latest", maxFilesPerTrigger="1")
        early = lake.later()
        lake.append(4, instant=after(early, 1000))
        lake.append(3, instant=early)
        assert [stream.ids(), stream.ids()] == expected


def test_a_version_begins_after_what_comes_before_it_in_this_order(tmp_path: Path) -> None:
    lake = HudiTable(tmp_path, 9)
    lake.create(IDS)
    early = after(lake.later(), -60_000)
    late = after(early, 1000)
    lake.append(2, instant=late)
    lake.append(1, instant=early)
    assert TableStream(lake, startingVersion=early).ids() == [1]
    lake.append(3)
    assert TableStream(lake, startingVersion=early).ids() == [1, 3]
    assert TableStream(lake, startingVersion=late).ids() == [1, 2, 3]
    completed = time_of(lake.end_of(early))
    assert TableStream(lake, startingTimestamp=completed.isoformat()).ids() == [1, 3]
    time = completed + timedelta(milliseconds=1)
    assert TableStream(lake, startingTimestamp=time.isoformat()).ids() == [3]


# New slices with old rows ---------------------------------------------------------------------------------


def test_of_a_file_with_old_and_new_rows_only_the_new_ones_are_read(lake: HudiTable) -> None:
    """As Hudi's writers add rows to small files."""
    stream = started(lake)
    lake.append(3, 4, before=lake.file_of(1))
    lake.append(5, before=lake.file_of(3))
    assert lake.ids() == [1, 2, 3, 4, 5]
    assert stream.ids() == [3, 4, 5]
    lake.compact()
    lake.append(6, before=lake.file_of(1))
    assert stream.ids() == [6]
    filtered = TableStream(lake, startingVersion=lake.instants()[2], where="id > 3", columns="id")
    assert filtered.ids() == [4, 5, 6]


def test_new_rows_are_found_in_all_row_groups(lake: HudiTable) -> None:
    stream = started(lake)
    old = lake.file_of(1)
    pq.write_table(pa.concat_tables([pq.read_table(lake.folder / old)] * 50), lake.folder / old)
    lake.append(*range(100, 150), before=old)
    new = lake.folder / lake.file_of(100)
    rows = pq.read_table(new)
    pq.write_table(rows.take(list(range(0, 100, 2)) + list(range(1, 100, 2))), new, row_group_size=7)
    assert stream.ids() == list(range(100, 150))


def test_a_commit_whose_file_has_other_rows_than_it_says_is_an_error(lake: HudiTable) -> None:
    """Then the column with the instants does not tell which rows are new."""
    stream = started(lake)
    lake.write(lake.later(), ids(3, 4), lake.file_of(1), {"numInserts": 3})
    with pytest.raises(PenstockError, match=r"has 2 rows of the commit .* says that it has added 3"):
        stream.ids()


@pytest.mark.parametrize(
    ("counts", "operation"),
    [({"numDeletes": None}, "UPSERT"), ({"numUpdateWrites": None}, "INSERT"), ({}, "BUCKET_RESCALE")],
)
def test_a_commit_that_does_not_prove_that_it_only_adds_rows_is_refused(
    counts: dict[str, int], operation: str, lake: HudiTable
) -> None:
    stream = started(lake, ignoreDeletes="true")
    lake.write(lake.later(), ids(3), counts={"numInserts": 1, **counts}, operation=operation)
    with pytest.raises(ConfigurationError, match=r"Instant .* changes rows"):
        stream.ids()


@pytest.mark.parametrize(
    ("counts", "operation", "kind"),
    [
        ({"numInserts": 1, "numUpdateWrites": 1}, "UPSERT", "changes"),
        ({"numInserts": 1, "numDeletes": 1}, "UPSERT", "changes"),
        ({"numDeletes": 1}, "UPSERT", "deletes"),
        ({}, "DELETE", None),
        ({"numInserts": 1}, "UPSERT", None),
        ({"numInserts": 1}, "BULK_INSERT", None),
    ],
)
def test_statistics_say_what_a_commit_does(
    counts: dict[str, int], operation: str, kind: str | None, lake: HudiTable
) -> None:
    stream = started(lake)
    added = ids(3) if counts.get("numInserts") else ids()
    lake.write(lake.later(), added, lake.file_of(1), counts, operation=operation)
    if kind is None:
        assert (stream.ids() or []) == added["id"].to_pylist()
        return
    with pytest.raises(ConfigurationError, match=f"Instant .* {kind} rows"):
        stream.ids()


def test_partitions_that_are_deleted_only_lose_rows(lake: HudiTable) -> None:
    stream = started(lake)
    groups = [one.partition("_")[0] for one in lake.live()]
    lake.complete(lake.later(), "replacecommit", None, {"": groups}, operation="DELETE_PARTITION")
    with pytest.raises(ConfigurationError, match=r"Instant .* deletes rows"):
        stream.ids()


# Random histories -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(n, marks=pytest.mark.campaign) for n in range(6, 200))]
)
def test_every_row_is_in_one_batch_and_the_last_batch_can_be_repeated(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    lake = HudiTable(tmp_path, chance.choice([6, 8, 9]))
    lake.create(IDS)
    numbers = iter(range(10_000))
    live: list[int] = []
    expected: list[int] = []
    seen: list[int] = []
    pending: list[str] = []
    lake.append(live_row := next(numbers))
    live.append(live_row)
    stream: TableStream | None = None
    last: list[int] | None = None
    options = chance.choice([{}, {"maxFilesPerTrigger": "1"}, {"maxFilesPerTrigger": "3"}])

    def add(instant: str = "", before: str = "") -> None:
        rows = [next(numbers) for _ in range(chance.randrange(1, 4))]
        lake.append(*rows, instant=instant, before=before)
        (live if stream is None else expected).extend(rows)

    def read() -> bool:
        nonlocal last
        assert stream is not None
        found = stream.ids()
        if found is None:
            return False
        last = found
        seen.extend(found)
        return True

    for _ in range(30):
        event = chance.random()
        if event < 0.3:
            add()
        elif event < 0.45:
            add(before=chance.choice(lake.live()))
        elif event < 0.55:
            pending.append(lake.reserve(chance.randrange(3)))
            if chance.random() < 0.5:
                lake.request(pending[-1])
        elif event < 0.65 and pending:
            add(pending.pop(chance.randrange(len(pending))))
        elif event < 0.75:
            lake.compact()
        elif stream is None:
            stream = TableStream(lake, skipChangeCommits="true", **options)
            expected.extend(live)
        elif event < 0.85:
            stream.start()
            if last is not None:
                assert sorted(row["id"] for row in stream.read(len(stream.ends) - 1)) == last
        elif event < 0.9:
            while read():
                pass
            if not pending:
                lake.archive(chance.randrange(1, 4))
                last = None
        else:
            read()
    if stream is None:
        stream = TableStream(lake, **options)
        expected.extend(live)
    while read():
        pass
    assert sorted(seen) == sorted(expected)
    assert lake.ids() == sorted({*live, *expected})


# What is no longer there ----------------------------------------------------------------------------------


def test_a_commit_that_was_completed_late_and_archived_before_it_was_read_is_an_error(
    lake: HudiTable,
) -> None:
    early = lake.later()
    lake.append(3, instant=after(early, 1000))
    stream = started(lake)
    lake.append(4, instant=early)
    lake.append(5, instant=after(early, 2000))
    lake.archive()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"no longer has the instant {early}, .* was archived"):
            stream.ids()
        stream.start()


def test_commits_that_were_read_may_be_archived(lake: HudiTable) -> None:
    stream = started(lake)
    for number in range(3, 8):
        lake.append(number)
        assert stream.ids() == [number]
        lake.archive()
        if number % 2:
            stream.start()
    assert stream.ids() is None
    assert len(stream.ends[-1]["order"]["read"]) <= 2


def test_a_rolled_back_commit_is_an_error(lake: HudiTable) -> None:
    stream = started(lake)
    gone = lake.instants()[-1]
    lake.roll_back()
    lake.append(3)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"no longer has the instant {gone}, which .* has read"):
            stream.ids()
        stream.start()


def test_another_table_without_an_id_in_its_place_is_refused(tmp_path: Path) -> None:
    """Hudi's own tables have none."""
    lake = HudiTable(tmp_path)
    lake.create(IDS, {"penstock.table.id": ""})
    lake.append(1)
    stream = started(lake)
    lake.drop()
    lake.create(IDS, {"penstock.table.id": ""})
    lake.append(1)
    lake.append(2)
    for _ in range(2):
        with pytest.raises(
            ConfigurationError, match=r"no longer has the instant .* or the table was replaced"
        ):
            stream.ids()
        stream.start()


@pytest.mark.parametrize("done", [True, False])
def test_files_that_a_cleaner_deletes_while_the_first_rows_are_read_are_not_missed(
    lake: HudiTable, done: bool
) -> None:
    stream = TableStream(lake, maxFilesPerTrigger="1")
    assert stream.ids() == [1]
    old = lake.file_of(2)
    lake.append(3, before=old)
    lake.clean(old, done=done)
    stream.start()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"its cleaner has deleted 1 of them, such as {old}"):
            stream.ids()
    assert TableStream(lake).ids() == [1, 2, 3]


def test_files_that_a_cleaner_deletes_meanwhile_are_an_error_when_they_are_read(lake: HudiTable) -> None:
    stream = started(lake)
    lake.append(3)
    old = lake.file_of(3)
    lake.append(4, before=old)
    lake.clean(old)
    with pytest.raises(RetryableError, match=f"The data file {old} .* is missing"):
        stream.ids()


# Checkpoints ----------------------------------------------------------------------------------------------


def test_long_histories_are_stored_as_a_number_and_a_sum(
    lake: HudiTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_commits, "KEPT", 2)
    early = lake.later()
    for number in range(3, 8):
        lake.append(number, instant=after(early, 1000 + number))
    stream = started(lake, maxFilesPerTrigger="4")
    assert stream.all_ids() == [number for number in range(1, 8) if number not in ids_of(stream, 0)]
    lake.append(8)
    stream.start()
    assert stream.ids() == [8]
    assert len(stream.ends[-1]["order"]["read"]) == 2
    lake.archive(2)
    lake.append(9)
    stream.start()
    assert stream.ids() == [9]
    lake.append(10, instant=after(early, 3000))
    lake.append(11, instant=after(early, 2900))
    stream.start()
    assert stream.ids() == [10, 11]


def ids_of(stream: TableStream, number: int) -> list[int]:
    return [row["id"] for row in stream.read(number)]


def test_a_commit_that_is_completed_after_a_thousand_later_ones_is_an_error(
    lake: HudiTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a row that is missing."""
    monkeypatch.setattr(read_commits, "KEPT", 2)
    early = lake.later()
    for number in range(3, 7):
        lake.append(number, instant=after(early, 1000 + number))
    stream = started(lake)
    lake.append(7, instant=early)
    stream.start()
    with pytest.raises(ConfigurationError, match="has other commits than this stream has read, before those"):
        stream.ids()


def test_sets_of_commits_are_the_same_after_they_were_stored() -> None:
    for count in (0, 1, 5, read_commits.KEPT + 7):
        there = [20261130053247123 + number * 1234 for number in range(count)]
        made = ReadCommits("20261130053247123", frozenset(there))
        again = ReadCommits.of(json.loads(json.dumps(made.to_dict())))
        assert ReadCommits.of(json.loads(json.dumps(again.to_dict()))) == again
        assert again.complete(there) == made
        if count > read_commits.KEPT:
            assert again.complete(there[1:]) is None


@pytest.mark.parametrize(
    "order",
    [None, 7, {}, {"first": "x", "read": []}, {"first": "1", "read": ["x"]}, {"first": "1", "read": 1}],
)
def test_a_checkpoint_without_the_commits_that_were_read_is_refused(lake: HudiTable, order: object) -> None:
    stream = started(lake)
    lake.append(3)
    assert stream.ids() == [3]
    stream.ends[-1] = {**stream.ends[-1], "order": order}
    stream.start()
    with pytest.raises(
        ConfigurationError, match=r"does not say which commits of the Hudi table .* were read"
    ):
        stream.ids()


# What cannot be read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"partitionToWriteStats": {"": [{"numInserts": 1}]}}'])
def test_a_damaged_commit_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    lake = HudiTable(tmp_path)
    lake.create(IDS)
    stream = started(lake)
    lake.append(1)
    instant = lake.later()
    (lake.timeline / f"{instant}.commit").write_bytes(content)
    assert stream.ids() == [1]
    with pytest.raises(
        (TableNotSupportedError, ConfigurationError), match=f"Instant {instant} of the Hudi table"
    ):
        stream.ids()


def test_a_table_that_becomes_merge_on_read_is_refused(lake: HudiTable) -> None:
    stream = started(lake)
    path = lake.meta / "hoodie.properties"
    path.write_text(path.read_text().replace("COPY_ON_WRITE", "MERGE_ON_READ"))
    for again in (stream.ids, stream.start):
        with pytest.raises(TableNotSupportedError, match="MERGE_ON_READ"):
            again()


def test_a_column_that_is_not_null_in_a_commit_alone_is_the_same(tmp_path: Path) -> None:
    lake = HudiTable(tmp_path)
    lake.create(IDS)
    stream = started(lake)
    for kind, problem in (("long", None), (["null", "int"], "'id' is now id int32, and id int64")):
        schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": kind}]})
        lake.append_rows(ids(1), schema=schema)
        if problem is None:
            assert stream.ids() == [1]
        else:
            with pytest.raises(ConfigurationError, match=problem):
                stream.ids()
