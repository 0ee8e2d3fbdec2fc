"""Changes of Hudi tables: rows that leave the table and rows that it gets, each with its kind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.support.hudi import HudiLake, after
from tests.support.hudi_table import HudiTable
from tests.support.table_streams import TableStream

from penstock import ConfigurationError, PenstockError, RetryableError, TableNotSupportedError
from penstock.committers.hudi.timeline import time_of
from penstock.committers.store.sql import SqlManifestStore
from penstock.readers import scan
from penstock.readers.hudi.changed_rows import Codes, changed_rows
from penstock.readers.table import split
from penstock.testing.conformance import Query

NUMBERED = pa.schema([("id", pa.int64()), ("n", pa.int64())])
SIGNS = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
CHANGE_COLUMNS = "_change_type, _commit_version, _commit_timestamp"


def numbered(*some: tuple[int, int]) -> pa.Table:
    return pa.table({"id": [one for one, _ in some], "n": [n for _, n in some]}, schema=NUMBERED)


@pytest.fixture(params=[6, 9])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> HudiTable:
    """A table with a file of five rows."""
    made = HudiTable(tmp_path, request.param)
    made.create(NUMBERED)
    made.append_rows(numbered(*((number, 0) for number in range(5))))
    return made


def upsert(
    lake: HudiTable, file: str, *rows: tuple[int, int], deleted: Iterable[int] = (), **commit: Any
) -> str:
    """Write the next slice of a file; return the instant. Rows replace those with their id."""
    there = set(pq.read_table(lake.folder / file, columns=["id"])["id"].to_pylist())
    ids, gone = {one for one, _ in rows}, set(deleted)
    counts = {
        "numInserts": len(ids - there),
        "numUpdateWrites": len(ids & there),
        "numDeletes": len(gone & there),
    }
    keeps = ~pc.field("id").isin(sorted(ids | gone))
    instant = commit.pop("instant", "") or lake.later()
    lake.write(instant, numbered(*rows), file, counts, keeps, operation="UPSERT", **commit)
    return instant


def delete_group(lake: HudiTable, file: str, instant: str = "") -> None:
    """Delete the rows of a file group, as `delete_partition` does with those of a partition."""
    lake.replaced.add(group := file.partition("_")[0])
    operation = "DELETE_PARTITION"
    lake.complete(instant or lake.later(), "replacecommit", None, {"": [group]}, operation=operation)


def changes_of(lake: HudiTable, **options: str) -> TableStream:
    return TableStream(lake, changes="true", columns=f"id, n, {CHANGE_COLUMNS}", **options)


def kinds(rows: Iterable[dict[str, Any]] | None) -> list[tuple[str, int, int]]:
    return sorted((row["_change_type"], row["id"], row["n"]) for row in rows or ())


def started(lake: HudiTable, **options: str) -> TableStream:
    stream = changes_of(lake, **options)
    assert {row["_change_type"] for row in stream.next() or ()} == {"insert"}
    return stream


# What a commit changes ------------------------------------------------------------------------------------


def test_rows_of_a_file_that_is_written_again_have_the_kind_of_their_change(lake: HudiTable) -> None:
    """Those that stay are in no batch."""
    stream = started(lake)
    upsert(lake, lake.file_of(0), (1, 7), (8, 1), (9, 1), deleted=[2, 3])
    assert kinds(stream.next()) == [
        ("delete", 2, 0),
        ("delete", 3, 0),
        ("insert", 8, 1),
        ("insert", 9, 1),
        ("update_postimage", 1, 7),
        ("update_preimage", 1, 0),
    ]
    assert stream.next() is None


def test_changes_have_the_version_and_the_time_that_order_the_commits(lake: HudiTable) -> None:
    """In tables of version 9 that of the completion. Hudi's own columns have the instants."""
    stream = TableStream(lake, changes="true")
    first = lake.instants()[-1]
    instants = [first, upsert(lake, lake.file_of(0), (1, 7))]
    ends = instants if lake.version == 6 else [lake.end_of(one) for one in instants]
    for instant, end in zip(instants, ends, strict=True):
        rows = (
            stream.next()
            if instant == first
            else TableStream(lake, changes="true", startingVersion=instant).next()
        )
        assert {(row["_commit_version"], row["_commit_timestamp"]) for row in rows or ()} <= {
            (int(end), time_of(end)),
            (int(ends[-1]), time_of(ends[-1])),
        }
        assert rows
    new = [row for row in rows or () if row["_change_type"] == "update_postimage"]
    assert [(row["_hoodie_commit_time"], row["_commit_version"]) for row in new] == [
        (instants[-1], int(ends[-1]))
    ]


def test_a_commit_that_is_completed_later_has_a_greater_version(tmp_path: Path) -> None:
    """Also if its instant is earlier: sinks apply the changes of a batch in the order of their versions."""
    lake = HudiTable(tmp_path, 9)
    lake.create(NUMBERED)
    lake.append_rows(numbered((1, 0)))
    stream = started(lake)
    early = lake.reserve()
    upsert(lake, lake.file_of(1), deleted=[1], instant=after(early, 1000))
    lake.append_rows(numbered((1, 1)), instant=early)
    rows = sorted(stream.next() or (), key=lambda row: row["_commit_version"])
    assert [(row["_change_type"], row["n"]) for row in rows] == [("delete", 0), ("insert", 1)]


def test_a_file_that_loses_all_rows_is_read(lake: HudiTable) -> None:
    stream = started(lake)
    upsert(lake, lake.file_of(0), deleted=range(5))
    assert kinds(stream.next()) == [("delete", number, 0) for number in range(5)]
    lake.append_rows(numbered((1, 1)), before=lake.live()[0])
    assert kinds(stream.next()) == [("insert", 1, 1)]


def test_a_commit_without_statistics_is_compared_too(lake: HudiTable) -> None:
    stream = started(lake)
    file = lake.file_of(0)
    lake.write(lake.later(), numbered((6, 1)), file, {"numInserts": None}, operation="UPSERT")
    assert kinds(stream.next()) == [("insert", 6, 1)]


def test_clustering_changes_no_rows(lake: HudiTable) -> None:
    lake.append_rows(numbered((7, 0)))
    stream = started(lake)
    lake.compact()
    assert stream.next() is None
    upsert(lake, lake.file_of(7), (7, 1), deleted=[0])
    assert kinds(stream.next()) == [
        ("delete", 0, 0),
        ("update_postimage", 7, 1),
        ("update_preimage", 7, 0),
    ]


def test_file_groups_that_are_replaced_leave_with_their_newest_rows(lake: HudiTable) -> None:
    """`insert_overwrite` and `delete_partition`."""
    stream = started(lake)
    upsert(lake, lake.file_of(0), (1, 7), deleted=[2, 3, 4])
    stream.next()
    lake.overwrite_rows(numbered((1, 8)))
    assert kinds(stream.next()) == [("delete", 0, 0), ("delete", 1, 7), ("insert", 1, 8)]
    delete_group(lake, lake.file_of(1))
    assert kinds(stream.next()) == [("delete", 1, 8)]


def test_a_file_group_that_two_commits_replace_leaves_once(lake: HudiTable) -> None:
    stream = started(lake)
    for _ in range(2):
        delete_group(lake, lake.file_of(0))
    lake.append_rows(numbered((6, 0)))
    assert kinds(stream.next()) == [*(("delete", number, 0) for number in range(5)), ("insert", 6, 0)]


def test_a_slice_of_a_later_instant_may_be_replaced_by_an_earlier_one(tmp_path: Path) -> None:
    """If it was completed before."""
    lake = HudiTable(tmp_path, 9)
    lake.create(NUMBERED)
    lake.append_rows(numbered((1, 0)))
    stream = started(lake)
    early = lake.reserve()
    upsert(lake, lake.file_of(1), (1, 1), instant=after(early, 1000))
    delete_group(lake, lake.file_of(1), early)
    assert kinds(stream.next()) == [
        ("delete", 1, 1),
        ("update_postimage", 1, 1),
        ("update_preimage", 1, 0),
    ]


def test_a_commit_that_changes_rows_is_in_one_batch(lake: HudiTable) -> None:
    """Also if it writes several files."""
    lake.append_rows(numbered((7, 0)))
    stream = started(lake, maxFilesPerTrigger="1")
    stream.next()
    lake.overwrite(5, 6)
    lake.append_rows(numbered((8, 1)))
    assert len(kinds(stream.next())) == 8
    assert kinds(stream.next()) == [("insert", 8, 1)]
    stream.start()
    assert len(stream.read(2)) == 8


def test_a_condition_can_be_on_the_kind(lake: HudiTable) -> None:
    stream = TableStream(
        lake, changes="true", columns="id", where="_change_type = 'delete' OR n = 9", startingVersion="latest"
    )
    stream.next()
    upsert(lake, lake.file_of(0), (1, 9), (2, 8), deleted=[3])
    assert stream.next() == [{"id": 3}, {"id": 1}]


def test_rows_are_found_in_all_row_groups_and_by_one_task(
    lake: HudiTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they are read in several batches."""
    monkeypatch.setattr(scan, "_PROBED_ROWS", 10)
    monkeypatch.setattr(scan, "BATCH_ROWS_MAX", 64)
    stream = started(lake)
    lake.append_rows(numbered(*((number, 0) for number in range(100, 1100))))
    stream.next()
    old = lake.file_of(100)
    pq.write_table(pq.read_table(lake.folder / old), lake.folder / old, row_group_size=77)
    changed = range(100, 1100, 7)
    instant = upsert(lake, old, *((number, 1) for number in changed), deleted=range(101, 1100, 7))
    new = lake.folder / lake.file_of(100)
    rows = pq.read_table(new)
    order = random.Random(0).sample(range(rows.num_rows), rows.num_rows)
    pq.write_table(rows.take(order), new, row_group_size=50)
    assert Counter(kind for kind, _, _ in kinds(stream.next())) == {
        "delete": len(range(101, 1100, 7)),
        "update_preimage": len(changed),
        "update_postimage": len(changed),
    }
    (file,) = changes_of(lake, startingVersion=instant).plan._table.commit(int(instant)).files
    assert len(split([replace(file, size_bytes=1 << 30)], 1, 100)) == 1


# Tables that Penstock writes ------------------------------------------------------------------------------

UPSERTS = {"writeMode": "upsert", "keys": "id", "deleteWhen": "op = 'd'", "dropColumns": "op"}


@pytest.mark.parametrize("version", [6, 9])
def test_upserts_and_deletes_of_penstock_with_keys_that_move_to_another_partition(
    version: int, tmp_path: Path, store: SqlManifestStore
) -> None:
    """A row that leaves one partition and is new in another one is a deletion and an insert."""
    lake = HudiLake(tmp_path, version)
    query = Query(lake, options={**UPSERTS, "partitionBy": "day"}, store=store)

    def change(batch_id: int, *some: tuple[int, str, str]) -> None:
        columns = [pa.array(column) for column in zip(*some, strict=True)]
        query.run(store, query.batch(batch_id), pa.table(columns, names=["id", "day", "op"]))

    change(0, (1, "x", "u"), (2, "x", "u"), (3, "y", "u"))
    table = HudiTable(tmp_path, version)
    stream = TableStream(table, changes="true", columns=f"id, day, {CHANGE_COLUMNS}")

    def read() -> list[tuple[str, int, str]]:
        return sorted((row["_change_type"], row["id"], row["day"]) for row in stream.next() or ())

    assert read() == [("insert", 1, "x"), ("insert", 2, "x"), ("insert", 3, "y")]
    change(1, (1, "y", "u"), (2, "x", "d"), (4, "z", "u"))
    assert read() == [("delete", 1, "x"), ("delete", 2, "x"), ("insert", 1, "y"), ("insert", 4, "z")]
    change(2, (5, "z", "u"))
    assert read() == [("insert", 5, "z")]


def test_generated_keys_tell_the_rows_of_a_table_without_a_record_key(
    tmp_path: Path, store: SqlManifestStore
) -> None:
    """Equal rows, too."""
    lake = HudiTable(tmp_path)
    query = Query(lake, store=store)
    query.run(store, query.batch(0), pa.table({"id": [1, 1, 1, 2]}))
    stream = TableStream(lake, changes="true", columns=f"id, {CHANGE_COLUMNS}")
    assert stream.ids() == [1, 1, 1, 2]
    (old,) = lake.live()
    keeps = pc.field("_hoodie_commit_seqno").isin(
        pq.read_table(lake.folder / old)["_hoodie_commit_seqno"].slice(1)
    )
    lake.write(lake.later(), pa.table({"id": pa.array([], pa.int64())}), old, {"numDeletes": 1}, keeps)
    assert [(row["id"], row["_change_type"]) for row in stream.next() or ()] == [(1, "delete")]


# What cannot be known -------------------------------------------------------------------------------------


def test_rows_without_a_record_key_are_refused(lake: HudiTable) -> None:
    stream = started(lake)
    upsert(lake, old := lake.file_of(0), (1, 1))
    rows = pq.read_table(lake.folder / old)
    without = rows.set_column(2, rows.schema.field(2), pa.nulls(5, pa.string()))
    pq.write_table(without, lake.folder / old)
    with pytest.raises(TableNotSupportedError, match=f"{old} of .* has rows without _hoodie_record_key"):
        stream.next()


def test_rows_that_cannot_be_told_apart_are_refused(lake: HudiTable) -> None:
    stream = started(lake)
    old = lake.folder / lake.file_of(0)
    upsert(lake, old.name, (1, 1))
    rows = pq.read_table(old)
    pq.write_table(pa.concat_tables([rows, rows]), old)
    with pytest.raises(PenstockError, match=r"the file before has another number of them"):
        stream.next()


def test_a_commit_that_does_not_say_which_slice_it_follows_is_refused(lake: HudiTable) -> None:
    stream = started(lake)
    instant = lake.later()
    lake.write(instant, numbered((1, 1)), lake.file_of(0), {"numDeletes": 1, "prevCommit": None})
    with pytest.raises(
        TableNotSupportedError, match=f"Instant {instant} .* cannot be read: .*prevCommit is None"
    ):
        stream.next()


def test_two_files_that_may_be_the_slice_before_are_refused(lake: HudiTable) -> None:
    stream = started(lake)
    old = lake.file_of(0)
    upsert(lake, old, (1, 1))
    (lake.folder / old.replace("_0-0-0_", "_1-0-0_")).write_bytes((lake.folder / old).read_bytes())
    with pytest.raises(PenstockError, match="has several files of the file group"):
        stream.next()


def test_a_column_with_the_name_of_one_of_the_feed_is_refused(tmp_path: Path) -> None:
    lake = HudiTable(tmp_path)
    lake.create(pa.schema([("id", pa.int64()), ("_Commit_Version", pa.int64())]))
    with pytest.raises(ConfigurationError, match=r"the Hudi table .* has a column _commit_version"):
        TableStream(lake, changes="true")


def test_what_passes_over_changes_does_not_go_with_them(lake: HudiTable) -> None:
    with pytest.raises(ConfigurationError, match="give one of them"):
        changes_of(lake, skipChangeCommits="true")


# What is no longer there ----------------------------------------------------------------------------------


CHANGES: dict[str, Callable[[HudiTable, str], object]] = {
    "written again": lambda lake, file: upsert(lake, file, (1, 1)),
    "replaced": delete_group,
}


@pytest.mark.parametrize("done", [True, False], ids=["", "not all yet"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_slice_that_the_cleaner_has_deleted_before_it_was_compared_is_an_error(
    change: str, done: bool, lake: HudiTable
) -> None:
    """An earlier slice of the same file group is not taken for it."""
    upsert(lake, first := lake.file_of(0), (0, 1))
    stream = started(lake)
    CHANGES[change](lake, old := lake.file_of(0))
    assert old != first
    lake.append_rows(numbered((9, 9)))
    lake.clean(old, done=done)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"no longer has the file .* its cleaner has deleted it"):
            stream.next()
        stream.start()
    assert {one for _, one, _ in kinds(changes_of(lake).next())} >= {9}


def test_a_slice_that_was_written_and_cleaned_is_an_error(lake: HudiTable) -> None:
    stream = started(lake)
    upsert(lake, lake.file_of(0), (1, 1))
    new = lake.file_of(0)
    upsert(lake, new, (1, 2))
    lake.clean(new)
    with pytest.raises(ConfigurationError, match=f"no longer has the file {new}, .* its cleaner"):
        stream.next()


def test_a_slice_that_is_cleaned_between_plan_and_read_is_an_error_of_the_task(lake: HudiTable) -> None:
    stream = started(lake)
    upsert(lake, old := lake.file_of(0), (1, 1))
    end = stream.plan.end_of_batch(None)
    stream.next()
    lake.clean(old)
    assert end is not None
    with pytest.raises(RetryableError, match=f"The data file {old} .* is missing"):
        stream.read(1)


def test_a_commit_that_was_read_and_restored_away_is_an_error(lake: HudiTable) -> None:
    stream = started(lake)
    upsert(lake, lake.file_of(0), (1, 1))
    stream.next()
    gone = lake.instants()[-1]
    lake.roll_back()
    with pytest.raises(ConfigurationError, match=f"no longer has the instant {gone}, which .* has read"):
        stream.next()


def test_a_commit_that_was_restored_away_before_it_was_read_is_in_no_batch(lake: HudiTable) -> None:
    stream = started(lake)
    upsert(lake, lake.file_of(0), (1, 1))
    lake.roll_back()
    upsert(lake, lake.file_of(0), (1, 2), deleted=[2])
    assert kinds(stream.next()) == [
        ("delete", 2, 0),
        ("update_postimage", 1, 2),
        ("update_preimage", 1, 0),
    ]


# The comparison -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_random_slices_are_compared_as_counters_are(seed: int) -> None:
    """Few keys, so that a key has several rows, also of one commit."""
    chance = random.Random(seed)
    for _ in range(200):
        old = [(chance.randrange(8), chance.randrange(3), number) for number in range(chance.randrange(12))]
        kept = [row for row in old if chance.random() < 0.6]
        new = [*kept, *((chance.randrange(8), 9, number) for number in range(chance.randrange(6)))]
        chance.shuffle(new)
        columns = {
            name: Codes.of(pa.chunked_array([[row[place] for row in [*old, *new]]], pa.int64()), len(old))
            for place, name in enumerate(
                ("_hoodie_record_key", "_hoodie_commit_time", "_hoodie_commit_seqno")
            )
        }
        found = changed_rows(columns.__getitem__, "path")
        gone = [old[number] for number in [*found.deleted.to_pylist(), *found.before_update.to_pylist()]]
        more = [new[number] for number in [*found.inserted.to_pylist(), *found.after_update.to_pylist()]]
        assert Counter(gone) == Counter(old) - Counter(new)
        assert Counter(more) == Counter(new) - Counter(old)
        updated = {row[0] for row in gone} & {row[0] for row in more}
        assert {old[number][0] for number in found.before_update.to_pylist()} == updated
        assert {new[number][0] for number in found.after_update.to_pylist()} == updated


# Random histories -----------------------------------------------------------------------------------------


class History:
    """A random history of a table, and how its rows were before each commit."""

    def __init__(self, lake: HudiTable, chance: random.Random) -> None:
        self.lake, self.chance = lake, chance
        self._next = 0

    def rows(self) -> Counter[tuple[int, int]]:
        """As the package hudi reads them."""
        return Counter((row["id"], row["n"]) for row in self.lake.rows())

    def _new(self) -> list[tuple[int, int]]:
        first, self._next = self._next, self._next + self.chance.choice([1, 3, 30])
        return [(number, 0) for number in range(first, self._next)]

    def step(self) -> None:
        lake, live = self.lake, self.lake.live()
        kind = self.chance.choice(
            ["append"] * 3 + ["upsert"] * 5 + ["insert", "compact", "overwrite", "delete partition"]
        )
        file = self.chance.choice(live) if live else ""
        if kind == "append" or not live:
            lake.append_rows(numbered(*self._new()))
        elif kind == "insert":
            lake.append_rows(numbered(*self._new()), before=file)
        elif kind == "upsert":
            there = pq.read_table(lake.folder / file, columns=["id"])["id"].to_pylist()
            some = self.chance.sample(there, self.chance.randrange(len(there) + 1))
            cut = self.chance.randrange(len(some) + 1)
            new = self._new() if self.chance.random() < 0.5 else []
            n = self.chance.randrange(1, 1000)
            upsert(lake, file, *((one, n) for one in some[:cut]), *new, deleted=some[cut:])
        elif kind == "compact":
            lake.compact()
        elif kind == "overwrite" and self.chance.random() < 0.3:
            lake.overwrite_rows(numbered(*self._new()))
        elif self.chance.random() < 0.3:
            delete_group(lake, file)
            lake.append_rows(numbered(*self._new()))  # the package needs statistics in the last commit


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.campaign) for n in range(3, 150))]
)
def test_changes_of_a_random_history_add_up_to_the_rows(seed: int, tmp_path: Path) -> None:
    """After each batch, which has whole commits, to the rows that the table had then."""
    chance = random.Random(seed)
    lake = HudiTable(tmp_path, chance.choice([6, 8, 9]))
    lake.create(NUMBERED)
    past = History(lake, chance)
    past.step()
    seen: list[list[dict[str, Any]]] = []
    net: Counter[tuple[int, int | None]] = Counter()
    states = [past.rows()]
    limits = chance.choice([{}, {"maxFilesPerTrigger": "1"}, {"maxBytesPerTrigger": "10000"}])
    stream = changes_of(lake, **limits)

    def read() -> bool:
        rows = stream.next()
        if rows is None:
            return False
        seen.append(rows)
        for row in rows:
            net[row["id"], row["n"]] += SIGNS[row["_change_type"]]
        assert min(net.values(), default=0) >= 0
        if not limits:
            assert +net == states[-1]
        return True

    for _ in range(25):
        event = chance.random()
        if event < 0.6:
            past.step()
            states.append(past.rows())
        elif event < 0.7:
            stream.start()
        elif event < 0.8:
            assert [stream.read(number) for number in range(len(seen))] == seen
        else:
            read()
    while read():
        pass
    assert +net == past.rows()


def test_changed_rows_are_those_of_hudis_incremental_query(tmp_path: Path) -> None:
    """Which has no deletions, and one image of an update. As the package hudi reads it."""
    chance = random.Random(3)
    lake = HudiTable(tmp_path, 9)
    lake.create(NUMBERED)
    lake.append_rows(numbered(*((number, 0) for number in range(20))))
    past = History(lake, chance)
    past._next = 20
    stream = started(lake)
    for _ in range(8):
        last = lake.instants()[-1]
        upsert(
            lake,
            lake.live()[0],
            *((one, chance.randrange(99)) for one in chance.sample(range(20), 4)),
            *past._new(),
        )
        rows = [row for row in stream.next() or () if SIGNS[row["_change_type"]] > 0]
        expected = lake.rows(after=lake.end_of(last))
        assert Counter((row["id"], row["n"]) for row in rows) == Counter(
            (row["id"], row["n"]) for row in expected
        )
        assert expected
